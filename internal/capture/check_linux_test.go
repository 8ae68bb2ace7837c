package capture

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/shm"
)

// TestCheck: each invariant has a word that breaks it.
func TestCheck(t *testing.T) {
	d, err := shm.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id := shm.NewUUID()
	obj, err := d.Create(Prefix+id.String(), spec(id, minSlots, 64), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(obj.Unlink(), obj.Close()); err != nil {
			t.Error(err)
		}
	}()
	m, err := lay(obj)
	if err != nil {
		t.Fatal(err)
	}
	_, writer, err := obj.Section(sectWriter, 0)
	if err != nil {
		t.Fatal(err)
	}
	look := func(want string, offset uint64) {
		t.Helper()
		o, err := shm.OpenPath(filepath.Join(d.Path(), obj.Name()))
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		got := Check(o)
		if want == "" && len(got) == 0 {
			return
		}
		if len(got) != 1 || got[0].Invariant != want || got[0].Offset != offset {
			t.Errorf("%+v, want %s at %#x", got, want, offset)
		}
	}
	look("", 0)
	m.tail.Store(minSlots)
	look("", 0)
	m.tail.Store(minSlots + 1)
	look("capture.tail", writer.Offset+offTail)
	m.tail.Store(0)
	m.state.Store(3)
	look("capture.state", writer.Offset+offState)

	other, err := d.Create("no-capture", shm.Spec{Kind: shm.KindCapture}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := Check(other); len(got) != 1 || got[0].Invariant != "capture.layout" {
		t.Errorf("%+v", got)
	}
	if err := errors.Join(other.Unlink(), other.Close()); err != nil {
		t.Error(err)
	}
}
