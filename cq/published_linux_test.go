package cq_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestPublished: how much a writer published is known while it is there and when it is gone, read
// or not, whatever kind of queue it is.
func TestPublished(t *testing.T) {
	d, err := shm.OpenDir("")
	must(t, err)
	defer d.Close()
	named, err := cq.Create(d, "published", cq.Options{})
	must(t, err)
	w1, err := cq.Attach(t.Context(), d, "published", cq.WriterOptions{})
	must(t, err)
	own := anonymous(t, cq.Options{})
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), own, a)
	w2, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
	must(t, errors.Join(err, <-done, a.Close(), b.Close()))
	others := anonymousOthers(t, cq.Options{})
	w3 := joinOthers(t, others)
	for _, c := range []struct {
		q *cq.Queue
		w *cq.Writer
	}{{named, w1}, {own, w2}, {others, w3}} {
		lane := c.w.Lane()
		check := func(want uint64) {
			t.Helper()
			if n, err := c.q.Published(lane); err != nil || n != want {
				t.Errorf("%s: %d, %v, want %d", c.q.Name(), n, err, want)
			}
		}
		check(0)
		for i := range uint64(5) {
			must(t, c.w.Post(&cq.Entry{Context: i}))
			check(c.w.Next())
		}
		must(t, c.w.Close())
		check(5)
		var es [8]cq.Msg
		if n, err := cq.Read(c.q, es[:]); n != 5 {
			t.Errorf("read %d, %v", n, err)
		}
		_, _ = cq.Read(c.q, es[:]) // may retire the lane
		check(5)
		if _, err := c.q.Published(1 << 20); !errors.Is(err, cq.ErrInvalid) {
			t.Errorf("lane that there is not: %v", err)
		}
	}
	must(t, named.Close())
	if _, err := named.Published(1); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
