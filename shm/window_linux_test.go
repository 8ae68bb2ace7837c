package shm

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

func TestWindowIsShared(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	look := openObject(t, d, "a", ReadOnly)
	w, err := look.Window(secData, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, _, err := o.Section(secData, 0)
	if err != nil || len(w.Bytes()) != len(mem) {
		t.Fatal(err, len(w.Bytes()))
	}
	look.Close() // the window goes on
	word(w.Bytes(), 8).Store(7)
	if got := word(mem, 8).Load(); got != 7 {
		t.Errorf("the owner sees %d", got)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	word(w.Bytes(), 8).Add(1)
	if got := word(w.Bytes(), 8).Load(); got != 1 {
		t.Errorf("after Close the word is %d, want a page of zeros, and one", got)
	}
	if got := word(mem, 8).Load(); got != 7 {
		t.Errorf("a write after Close arrived: %d", got)
	}
	if _, err := look.Window(secData, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("of a closed object: %v", err)
	}
	if _, err := o.Window(secData, 1); !errors.Is(err, ErrKind) {
		t.Errorf("of no section: %v", err)
	}
	look = openObject(t, d, "a", Inspect)
	if _, err := look.Window(secData, 0); !errors.Is(err, syscall.EACCES) {
		t.Errorf("for an inspector: %v", err)
	}
}

// TestWindowClosedInUse: an access beside Close meets the section or zeros, and never a hole. A
// hole would end the test process.
func TestWindowClosedInUse(t *testing.T) {
	o := makeObject(t, openTestDir(t), "a")
	var users sync.WaitGroup
	for range 200 {
		w, err := o.Window(secData, 0)
		if err != nil {
			t.Fatal(err)
		}
		begun := make(chan struct{})
		users.Go(func() {
			at := word(w.Bytes(), 0)
			close(begun)
			for range 2000 {
				at.Add(1)
			}
			runtime.KeepAlive(w)
		})
		<-begun
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	users.Wait()
}
