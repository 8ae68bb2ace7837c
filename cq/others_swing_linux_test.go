package cq_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// TestOthersGivenUpIsMute: nobody listens to a writer of another user that was given up, whatever
// its tail does, also if the queue comes to a set later; that it has gone is noticed all the same.
func TestOthersGivenUpIsMute(t *testing.T) {
	t.Parallel()
	const rings, most = 200, 50
	for name, o := range map[string]cq.Options{"shared": {Shared: true}, "set later": {}} {
		t.Run(name, func(t *testing.T) {
			o.Size, o.Spin = 8, -1
			q := anonymousOthers(t, o)
			h := startHostile(t, q)
			h.do(t, "lane 0", 1<<40)
			h.do(t, "ring", 1)
			var bad *cq.LaneError
			if _, err := cq.ReadContext(soon(t), q, make([]cq.Context, 1),
				cq.ReadOptions{}); !errors.As(err, &bad) {
				t.Fatal(err)
			}
			if !o.Shared {
				addTo(t, waitSet(t, openDir(t), cq.WaitSetOptions{}), q)
			}
			if cq.Relays(q, bad.Lane) {
				t.Error("its rings are passed on")
			}
			before := q.Stats().Sleeps
			woken := make(chan struct{})
			go func() {
				defer close(woken)
				_, _ = sread(q, make([]cq.Context, 1), time.Hour)
			}()
			h.do(t, "swing", rings)
			must(t, q.Signal())
			<-woken
			if n := q.Stats().Sleeps - before; n > most {
				t.Errorf("%d sleeps for %d rings", n, rings)
			}
			h.kill()
			eventually(t, "the row is free", func() bool {
				_, _ = cq.Read(q, make([]cq.Context, 1))
				return q.Stats().Retired == 1
			})
		})
	}
}

// TestOthersGivenUpHasNoPipe: what a writer of another user that was given up writes to the pipe of
// the queue's descriptor wakes nobody who waits for that.
func TestOthersGivenUpHasNoPipe(t *testing.T) {
	const bytes, most = 20, 4
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1, Wait: cq.WaitFD})
	h := startHostile(t, q)
	h.do(t, "lane 0", 1<<40)
	h.do(t, "ring", 1)
	eventually(t, "it is given up", func() bool {
		var bad *cq.LaneError
		_, err := cq.Read(q, make([]cq.Context, 1))
		return errors.As(err, &bad)
	})
	wakes := 0
	for range bytes {
		eventually(t, "there is nothing to read", func() bool {
			_, _ = cq.Read(q, make([]cq.Context, 1))
			return cq.TryWait(q) == nil
		})
		h.do(t, "pipe", 1)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(waitFD(q)), Events: unix.POLLIN}}, 0)
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		wakes += max(n, 0)
	}
	if wakes > most {
		t.Errorf("%d wakes for %d bytes", wakes, bytes)
	}
	h.kill()
	eventually(t, "the row is free", func() bool {
		_, _ = cq.Read(q, make([]cq.Context, 1))
		return q.Stats().Retired == 1
	})
}
