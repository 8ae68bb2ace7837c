package cq_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestWriterClosed: a lane that was given back goes to the next writer, also in this process and
// with what nobody has read yet.
func TestWriterClosed(t *testing.T) {
	for _, at := range []site{{}, {memfd: true}} {
		t.Run(at.String(), func(t *testing.T) {
			q := at.create(t, cq.Options{Size: 8, MaxLanes: 2})
			a, b := at.attach(t, q), at.attach(t, q)
			_, err := at.tryAttach(t, q)
			wantErr(t, "a third of two", err, cq.ErrLanes, syscall.ENOSPC)
			post(t, a, 0, 3)
			_, _, err = a.Reserve(2) // never published
			must(t, err)
			must(t, a.Close())
			a = at.attach(t, q)
			if a.Lane() != 1 || a.Next() != 3 || a.Free() != 5 {
				t.Errorf("lane %d, next %d, free %d", a.Lane(), a.Next(), a.Free())
			}
			post(t, a, 3, 5)
			post(t, b, 100, 101)
			got := drain(t, q)
			slices.Sort(got)
			if want := []uint64{0, 1, 2, 3, 4, 100}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if s := a.Stats(); s.Posted != 5 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestBlockedReaderDies: a successor finds what came while the queue had no reader, and sleeps and
// wakes as its predecessor did.
func TestBlockedReaderDies(t *testing.T) {
	t.Parallel()
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: wait, Spin: -1})
			w := attach(t, d, q.Name())
			_, err := sread(q, make([]cq.Msg, 1), time.Millisecond) // lanes are parked
			wantErr(t, "nothing", err, cq.ErrTimedOut)
			must(t, q.Detach())
			for i := range uint64(5) {
				c := startReader(t, namedSite)
				c.expect("steady", 0, "reading")
				post(t, w, 0, 4)
				eventually(t, "the child has read", func() bool { return w.Free() == 8 })
				c.kill()
				post(t, w, 10*i+4, 10*i+6)
				q, err := cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true, Spin: -1})
				must(t, err)
				if got := drain(t, q); !slices.Equal(got, upTo(10*i+4, 10*i+6)) {
					t.Error(got)
				}
				wait := later(func() { post(t, w, 99, 100) })
				if n, err := sread(q, make([]cq.Msg, 1), time.Minute); n != 1 || err != nil {
					t.Error(n, err)
				}
				wait()
				must(t, q.Detach())
			}
			q, err = cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})
			must(t, err)
			must(t, q.Close())
		})
	}
}
