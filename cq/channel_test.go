package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// channel makes a channel that is closed when the test ends.
func channel(t testing.TB, d *shm.Dir) *cq.Channel {
	t.Helper()
	c, err := cq.NewChannel(d)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// attached makes a queue of the channel with a writer. When the test ends what is unacknowledged is
// acknowledged.
func attached(t testing.TB, d *shm.Dir, c *cq.Channel, name string, o cq.Options) (*cq.Queue,
	*cq.Writer) {
	t.Helper()
	q, err := cq.Create(d, name, o)
	must(t, err)
	t.Cleanup(func() { closeQueue(t, q) })
	must(t, c.Attach(q))
	t.Cleanup(func() {
		for c.Ack(q, 1) == nil {
		}
		if err := c.Detach(context.Background(), q); err != nil &&
			!errors.Is(err, fs.ErrNotExist) && err != cq.ErrClosed {
			t.Error(err)
		}
	})
	return q, attach(t, d, name)
}

// gets takes an event that is there or comes soon.
func gets(t testing.TB, what string, c *cq.Channel, q *cq.Queue) cq.ChannelEvent {
	t.Helper()
	ev, err := getEvent(c, tooLong)
	if err != nil || ev.Queue != q {
		t.Fatalf("%s: event %+v, %v", what, ev, err)
	}
	return ev
}

func noEvent(t testing.TB, what string, c *cq.Channel) {
	t.Helper()
	if ev, err := c.TryGetEvent(); !errors.Is(err, cq.ErrWouldBlock) {
		t.Errorf("%s: event of %v, %v", what, ev.Queue, err)
	}
}

// TestChannelGetters: each event goes to one of many goroutines, all queues get theirs.
func TestChannelGetters(t *testing.T) {
	const queues, rounds, getters = 3, 200, 4
	d := openDir(t)
	c := channel(t, d)
	var qs [queues]*cq.Queue
	var ws [queues]*cq.Writer
	for i := range qs {
		qs[i], ws[i] = attached(t, d, c, fmt.Sprintf("q%d", i), cq.Options{Shared: true})
		must(t, c.RequestNotify(qs[i], cq.NotifyAny))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var read, events atomic.Int64
	var all sync.WaitGroup
	for range getters {
		all.Go(func() {
			buf := make([]cq.Context, 4)
			for {
				ev, err := c.GetEvent(ctx, cq.WaitOptions{})
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					return
				}
				events.Add(1)
				err = cq.Drain(c, ev, cq.NotifyAny, buf, 0, func(es []cq.Context) error {
					read.Add(int64(len(es)))
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range uint64(rounds) {
		for _, w := range ws {
			post(t, w, i, i+1)
		}
		if i%8 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	eventually(t, "everything is read", func() bool { return read.Load() == queues*rounds })
	cancel()
	all.Wait()
	if n := events.Load(); n > queues*rounds {
		t.Errorf("%d events of %d completions", n, queues*rounds)
	}
}
