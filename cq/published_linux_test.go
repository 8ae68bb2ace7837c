package cq_test

import (
	"errors"
	"io/fs"
	"os"
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
	named, err := cq.Create(cq.Named(d, "published"), cq.Options{})
	must(t, err)
	w1, err := cq.Attach(t.Context(), cq.Named(d, "published"), cq.WriterOptions{})
	must(t, err)
	own := anonymous(t, cq.Options{})
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), own, a)
	w2, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{})
	must(t, errors.Join(err, <-done, a.Close(), b.Close()))
	others := anonymousOthers(t, cq.Options{})
	w3 := join(t, others)
	for _, c := range []struct {
		q *cq.Queue
		w *cq.Writer
	}{{named, w1}, {own, w2}, {others, w3}} {
		lane, err := c.q.Lane(c.w.Lane(), shm.UUID{})
		must(t, err)
		check := func(want uint64) {
			t.Helper()
			if l, err := c.q.Lane(lane.Row, lane.Object); err != nil || l.Published != want {
				t.Errorf("%s: %+v, %v, want %d", c.q.Name(), l, err, want)
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
		if _, err := c.q.Lane(1<<20, lane.Object); !errors.Is(err, cq.ErrInvalid) {
			t.Errorf("lane that there is not: %v", err)
		}
	}
	publishedInOneRow(t)
	must(t, named.Close())
	if _, err := named.Lane(1, shm.UUID{1}); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// publishedInOneRow: of writers of other users who had a row one after the other each is asked for
// by its own lane.
func publishedInOneRow(t *testing.T) {
	t.Helper()
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 1})
	var lanes []shm.UUID
	total := uint64(0)
	want := func(which int, n uint64, stale bool) {
		t.Helper()
		got, err := q.Lane(1, lanes[which])
		if errors.Is(err, shm.ErrStale) != stale || !stale && (err != nil || got.Published != n ||
			got.Row != 1 || got.Object != lanes[which] || got.UID != os.Geteuid()) {
			t.Errorf("writer %d of %d: %+v, %v, want %d, stale %v", which, len(lanes), got, err, n,
				stale)
		}
	}
	for i := range 3 {
		w := join(t, q)
		lane, err := q.Lane(1, shm.UUID{})
		must(t, err)
		lanes = append(lanes, lane.Object)
		want(i, total, false)
		if i > 0 {
			want(i-1, total, false)
		}
		post(t, w, 0, 2)
		total += 2
		want(i, total, false)
		if i > 0 {
			want(i-1, total-2, false) // not the entries of the next one
		}
		if i > 1 {
			want(i-2, 0, true)
		}
		must(t, w.Close())
		for retired := uint64(i) + 1; q.Stats().Retired < retired; {
			_ = drain(t, q)
		}
		want(i, total, false)
	}
	if _, err := q.Lane(1, shm.UUID{1}); !errors.Is(err, shm.ErrStale) {
		t.Errorf("by another object: %v", err)
	}
	if _, err := q.Lane(1, shm.UUID{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("object of a row without a writer: %v", err)
	}
}
