package device

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestWindow: between the word that says how a send ended and the completion itself the server can
// die. Until the completion is published the send has not ended, and its slot is not free.
func TestWindow(t *testing.T) {
	t.Parallel()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	check(err)
	defer l.Close()
	q, err := newCompletions(cq.Options{}, nil)
	check(err)
	c, err := net.Dial("unix", path)
	check(err)
	defer c.Close()
	server, err := l.AcceptUnix()
	check(err)
	defer server.Close()
	accepted := make(chan error, 1)
	go func() { accepted <- q.Accept(context.Background(), c.(*net.UnixConn)) }()
	w, err := attachQueue(context.Background(), server, nil, maxLaneBytes)
	check(errors.Join(err, <-accepted))
	page, err := newPage(1, 2, 1)
	check(err)
	defer func() { check(errors.Join(w.Close(), q.Close(), page.close())) }()

	e := &Endpoint{q: q, slots: make([]sendSlot, 2)}
	lane, err := q.Lane(w.Lane(), shm.UUID{})
	check(err)
	s := &session{page: page, txLane: w.Lane(), txObject: lane.Object}
	for range 3 {
		i := e.freeSlot(s)
		if i != 0 {
			t.Fatalf("slot %d is free", i)
		}
		e.slots[i] = sendSlot{busy: true, before: page.done[i].Load()}
		if e.ended(s, i) {
			t.Error("ended before it began")
		}
		page.done[i].Store(w.Next() + 1)
		if e.ended(s, i) || e.freeSlot(s) == i {
			t.Error("ended without a completion")
		}
		check(w.Post(&cq.Entry{Context: 1}))
		if !e.ended(s, i) || e.freeSlot(s) != i {
			t.Error("did not end")
		}
	}
}
