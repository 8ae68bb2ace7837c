package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// waitSet makes a set that is closed when the test ends.
func waitSet(t testing.TB, d *shm.Dir, o cq.WaitSetOptions) *cq.WaitSet {
	t.Helper()
	s, err := cq.NewWaitSet(d, o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// member makes a queue with a writer, in the set until the test ends.
func member(t testing.TB, d *shm.Dir, name string, o cq.Options, sets ...interface {
	Add(cq.Waitable) error
	Remove(cq.Waitable) error
}) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q, err := cq.Create(cq.Named(d, name), o)
	must(t, err)
	t.Cleanup(func() { closeQueue(t, q) })
	for _, s := range sets {
		must(t, s.Add(q))
		t.Cleanup(func() {
			err := s.Remove(q)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && err != cq.ErrClosed {
				t.Error(err)
			}
		})
	}
	return q, attach(t, d, name)
}

// TestWaitSetShort: those that do not fit come the next time, and each gets its turn.
func TestWaitSetShort(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	for i := range 5 {
		_, w := member(t, d, fmt.Sprintf("q%d", i), cq.Options{UserContext: i}, s)
		post(t, w, 0, 1)
	}
	seen := map[any]int{}
	dst := make([]cq.Waitable, 2)
	for range 10 {
		n, err := s.Wait(t.Context(), dst, cq.WaitOptions{})
		if err != nil || n == 0 || n > 2 {
			t.Fatal(n, err)
		}
		for _, m := range dst[:n] {
			seen[m.UserContext()]++
		}
	}
	if len(seen) != 5 {
		t.Errorf("only %v had a turn", seen)
	}
	if n, err := s.Wait(t.Context(), nil, cq.WaitOptions{}); n != 0 || err != nil {
		t.Errorf("without room: %d, %v", n, err)
	}
}

// TestWaitSetBusy: one goroutine at a time waits on a set.
func TestWaitSetBusy(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := error(cq.ErrBusy)
		for errors.Is(err, cq.ErrBusy) { // the second one may come first
			_, err = s.Wait(ctx, nil, cq.WaitOptions{})
		}
		done <- err
	}()
	eventually(t, "a second waiter is refused", func() bool {
		_, err := setWait(s, nil, 0)
		return errors.Is(err, cq.ErrBusy)
	})
	cancel()
	wantErr(t, "the first", <-done, context.Canceled)
}

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
	q, err := cq.Create(cq.Named(d, name), o)
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

// TestThresholdOverrun: a lane that overran and was drained in part ends a wait for more.
func TestThresholdOverrun(t *testing.T) {
	for _, take := range []int{3, 4} {
		q, w := pair(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue, Spin: -1})
		post(t, w, 0, 4)
		if err := w.Post(&cq.Entry{}); err != cq.ErrOverrun {
			t.Fatal(err)
		}
		if got := read(t, q, take); len(got) != take {
			t.Fatal(got)
		}
		dst := make([]cq.Context, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n := take; ; {
			k, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{Threshold: 3})
			if n += k; err != nil {
				if err != cq.ErrOverrun || n != 4 {
					t.Errorf("after %d of 4: %d, %v", take, n, err)
				}
				break
			}
		}
		if ctx.Err() != nil {
			t.Fatal("it waited for more")
		}
		closeQueue(t, q)
		must(t, w.Close())
	}
}

// TestSpinEnds: looking ends at the deadline and with the context, however long it may last.
func TestSpinEnds(t *testing.T) {
	q, _ := pair(t, cq.Options{Size: 8, Spin: time.Hour})
	dst := make([]cq.Context, 1)
	done := make(chan error, 2)
	go func() {
		_, err := sread(q, dst, 10*time.Millisecond)
		done <- err
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		done <- err
	}()
	for _, want := range []error{cq.ErrTimedOut, context.DeadlineExceeded} {
		select {
		case err := <-done:
			wantErr(t, "wait", err, want)
		case <-time.After(time.Minute):
			t.Fatal("it still spins; want ", want)
		}
	}
}
