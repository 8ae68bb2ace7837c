package cq

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTurnIsNoDelay: while a writer waits for one of its user who is stopped in the middle of
// attaching, its own time to attach does not run: two of those would use it up, though there is
// room.
func TestTurnIsNoDelay(t *testing.T) {
	q, err := CreateAnonymous(t.Name(), Options{Size: 4, MaxLanes: 2, Spin: -1, Trust: CrossUser})
	noError(t, err)
	h := q.home.(*memfdHome)
	done, err := h.turns.take(t.Context(), os.Geteuid())
	noError(t, err)
	at := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", at)
	noError(t, err)
	served, attached := make(chan error, 1), make(chan error, 1)
	go func() { served <- q.Serve(l, nil) }()
	go func() {
		conn, err := net.DialUnix("unix", nil, at)
		if err == nil {
			var w *Writer
			w, err = AttachConn(t.Context(), conn, WriterOptions{Trust: CrossUser})
			if err == nil {
				err = w.Close()
			}
			err = errors.Join(err, conn.Close())
		}
		attached <- err
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		select {
		case err := <-attached:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		h.turns.mu.Lock()
		waits = h.turns.users[os.Geteuid()].here == 2
		h.turns.mu.Unlock()
	}
	h.mu.Lock()
	for m := range h.meetings {
		if until, is := m.Context().Deadline(); is || m.Limited() {
			t.Errorf("it is waited for until %v", until)
		}
	}
	if n := len(h.meetings); n != 1 {
		t.Errorf("%d rendezvous", n)
	}
	h.mu.Unlock()
	done()
	noError(t, <-attached)
	noError(t, l.Close())
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	noError(t, q.Close())
}
