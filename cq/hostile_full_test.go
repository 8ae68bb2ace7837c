package cq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestHostileHintsOfFullLane: a mark that another process of the same user has wiped away comes
// again when the writer finds no room, or both sides would wait for each other for ever.
func TestHostileHintsOfFullLane(t *testing.T) {
	shmtest.Conforms(t)
	d, q := create(t, cq.Options{Size: 8, Spin: -1})
	w := attach(t, d, q.Name())
	dst := make([]cq.Msg, 8)
	if _, err := sread(q, dst, time.Millisecond); !errors.Is(err, cq.ErrTimedOut) {
		t.Fatal(err) // the reader knows the lane, and has parked it
	}
	post(t, w, 0, 8)
	clear(scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectHints, 0))
	if n, err := cq.Read(q, dst); n != 0 || err != cq.ErrWouldBlock {
		t.Fatalf("the mark is not wiped away: %d, %v", n, err)
	}
	if err := w.Post(&cq.Entry{}); err != cq.ErrFull {
		t.Fatal(err)
	}
	if n, err := cq.Read(q, dst); n != 8 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestHostileHintsOfRefusedLane: the same where there is some room, but not as much as is asked
// for, or none that was not promised.
func TestHostileHintsOfRefusedLane(t *testing.T) {
	shmtest.Conforms(t)
	for name, refused := range map[string]func(*cq.Writer) error{
		"credit": func(w *cq.Writer) error { return w.Credit(4) },
		"post":   func(w *cq.Writer) error { return w.Post(&cq.Entry{}) },
	} {
		t.Run(name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Spin: -1})
			w := attach(t, d, q.Name())
			dst := make([]cq.Msg, 8)
			if _, err := sread(q, dst, time.Millisecond); !errors.Is(err, cq.ErrTimedOut) {
				t.Fatal(err) // the reader knows the lane, and has parked it
			}
			if name == "post" {
				if err := w.Credit(3); err != nil {
					t.Fatal(err)
				}
			}
			post(t, w, 0, 5)
			clear(scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectHints, 0))
			if n, err := cq.Read(q, dst); n != 0 || err != cq.ErrWouldBlock {
				t.Fatalf("the mark is not wiped away: %d, %v", n, err)
			}
			if err := refused(w); err != cq.ErrFull {
				t.Fatal(err)
			}
			if n, err := cq.Read(q, dst); n != 5 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}
