package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
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

func noEvent(t testing.TB, what string, c *cq.Channel) {
	t.Helper()
	if ev, err := c.TryGetEvent(); !errors.Is(err, cq.ErrWouldBlock) {
		t.Errorf("%s: event of %v, %v", what, ev.Queue, err)
	}
}

func event(t testing.TB, what string, c *cq.Channel, q *cq.Queue) cq.ChannelEvent {
	t.Helper()
	ev, err := c.TryGetEvent()
	if err != nil || ev.Queue != q {
		t.Errorf("%s: event of %v, %v", what, ev.Queue, err)
	}
	return ev
}

// TestChannelOneShot: an arming makes one event, for what comes after it.
func TestChannelOneShot(t *testing.T) {
	d := openDir(t)
	c := channel(t, d)
	q, w := attached(t, d, c, "q", cq.Options{UserContext: "mine"})
	post(t, w, 0, 1)
	noEvent(t, "not armed", c)
	must(t, c.RequestNotify(q, cq.NotifyAny))
	noEvent(t, "what was there before makes none", c)
	post(t, w, 1, 5)
	if !c.Pending(q) {
		t.Error("no event pending")
	}
	ev := event(t, "armed", c, q)
	if ev.Context != "mine" || ev.Solicited || ev.Dummy {
		t.Errorf("event %+v", ev)
	}
	post(t, w, 5, 7)
	noEvent(t, "one for any number", c)
	if got := drain(t, q); len(got) != 7 {
		t.Errorf("read %v", got)
	}
	must(t, c.Ack(q, 1))
	must(t, c.RequestNotify(q, cq.NotifyAny))
	must(t, c.RequestNotify(q, cq.NotifyAny))
	post(t, w, 7, 9)
	event(t, "armed twice", c, q)
	noEvent(t, "is armed once", c)
	drain(t, q)
	// Polled before the event was fetched: it comes all the same.
	must(t, c.RequestNotify(q, cq.NotifyAny))
	post(t, w, 9, 10)
	drain(t, q)
	event(t, "polled before", c, q)
	if got := drain(t, q); got != nil {
		t.Errorf("read %v", got)
	}
	wantErr(t, "wrong mode", c.RequestNotify(q, 0), cq.ErrInvalid)
	wantErr(t, "wrong mode", c.RequestNotify(q, 3), cq.ErrInvalid)
}

// TestChannelSolicited: any beats solicited, errors are always solicited.
func TestChannelSolicited(t *testing.T) {
	d := openDir(t)
	c := channel(t, d)
	q, w := attached(t, d, c, "q", cq.Options{})
	must(t, c.RequestNotify(q, cq.NotifySolicited))
	post(t, w, 0, 3)
	noEvent(t, "plain completions", c)
	must(t, w.Post(&cq.Entry{Context: 3, Meta: cq.MetaSolicited}))
	if ev := event(t, "solicited", c, q); !ev.Solicited {
		t.Error("event does not say so")
	}
	drain(t, q)
	must(t, c.RequestNotify(q, cq.NotifySolicited))
	postError(t, w, 4)
	if ev := event(t, "an error", c, q); !ev.Solicited {
		t.Error("event does not say so")
	}
	must(t, q.ReadErr(&cq.ErrorEntry{}))
	must(t, c.RequestNotify(q, cq.NotifySolicited))
	must(t, c.RequestNotify(q, cq.NotifyAny))
	must(t, c.RequestNotify(q, cq.NotifySolicited))
	post(t, w, 5, 6)
	if ev := event(t, "any wins", c, q); ev.Solicited {
		t.Error("a plain completion is called solicited")
	}
	drain(t, q)
	// Due and not fetched when it is armed again: both events come.
	must(t, c.RequestNotify(q, cq.NotifyAny))
	post(t, w, 6, 7)
	must(t, c.RequestNotify(q, cq.NotifyAny))
	post(t, w, 7, 8)
	event(t, "the first arming's", c, q)
	event(t, "the second's", c, q)
	noEvent(t, "no more", c)
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

// TestChannelEnds leaves a blocked get in every way but an event.
func TestChannelEnds(t *testing.T) {
	d := openDir(t)
	c, err := cq.NewChannel(d)
	must(t, err)
	q, w := attached(t, d, c, "q", cq.Options{})
	_, err = getEvent(c, 0)
	wantErr(t, "timeout", err, cq.ErrTimedOut, syscall.EAGAIN)
	_, err = getEvent(c, time.Millisecond)
	wantErr(t, "timeout", err, cq.ErrTimedOut)
	ctx, cancel := context.WithCancel(t.Context())
	wait := later(cancel)
	_, err = c.GetEvent(ctx, cq.WaitOptions{})
	wantErr(t, "cancel", err, context.Canceled)
	wait()
	wait = later(func() { must(t, c.Signal()) })
	_, err = c.GetEvent(t.Context(), cq.WaitOptions{})
	wantErr(t, "signal", err, cq.ErrSignaled)
	wait()
	must(t, c.Signal())
	_, err = c.GetEvent(t.Context(), cq.WaitOptions{})
	wantErr(t, "signal before", err, cq.ErrSignaled)
	must(t, c.SignalAll())
	_, err = getEvent(c, 0)
	wantErr(t, "a broadcast leaves nothing", err, cq.ErrTimedOut)

	must(t, c.Inject(q))
	if !c.Pending(q) {
		t.Error("a dummy is not pending")
	}
	if ev, err := c.GetEvent(t.Context(), cq.WaitOptions{}); err != nil || !ev.Dummy || ev.Queue != q {
		t.Errorf("dummy: %+v, %v", ev, err)
	}
	wantErr(t, "close with a queue", c.Close(), cq.ErrBusy, syscall.EBUSY)
	wantErr(t, "close of a queue", q.Close(), cq.ErrBusy)
	wantErr(t, "attached twice", c.Attach(q), fs.ErrExist)
	other := channel(t, d)
	wantErr(t, "attached to another", other.Attach(q), cq.ErrBusy)
	wantErr(t, "not of this one", other.RequestNotify(q, cq.NotifyAny), fs.ErrNotExist)

	// Acknowledging.
	wantErr(t, "too many", c.Ack(q, 2), cq.ErrInvalid)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	err = c.Detach(ctx, q)
	wantErr(t, "not acknowledged", err, context.DeadlineExceeded)
	wantField(t, err, "unacknowledged events")
	cancel()
	wantErr(t, "detached half", c.RequestNotify(q, cq.NotifyAny), fs.ErrNotExist)
	post(t, w, 0, 1)
	noEvent(t, "detached half", c)
	wait = later(func() { must(t, c.Ack(q, 1)) })
	must(t, c.Detach(t.Context(), q))
	wait()
	wantErr(t, "detached", c.Detach(t.Context(), q), fs.ErrNotExist)
	wait = later(func() { must(t, c.Close()) })
	_, err = c.GetEvent(t.Context(), cq.WaitOptions{})
	wantErr(t, "closed", err, cq.ErrClosed)
	wait()
	_, err = c.TryGetEvent()
	wantErr(t, "closed", err, cq.ErrClosed)
	must(t, c.Close())
}

// TestChannelBudget: a queue that is filled as fast as it is read does not keep others waiting, and
// nothing of it stays behind.
func TestChannelBudget(t *testing.T) {
	d := openDir(t)
	c := channel(t, d)
	busy, w := attached(t, d, c, "busy", cq.Options{Size: 256})
	quiet, v := attached(t, d, c, "quiet", cq.Options{})
	must(t, c.RequestNotify(busy, cq.NotifyAny))
	must(t, c.RequestNotify(quiet, cq.NotifyAny))
	post(t, w, 0, 200)
	post(t, v, 0, 1)
	var order []*cq.Queue
	got := map[*cq.Queue]int{}
	buf := make([]cq.Context, 16)
	for got[busy] < 200 || got[quiet] < 1 {
		ev, err := getEvent(c, time.Minute)
		must(t, err)
		order = append(order, ev.Queue)
		must(t, cq.Drain(c, ev, cq.NotifyAny, buf, 50, func(es []cq.Context) error {
			got[ev.Queue] += len(es)
			return nil
		}))
	}
	if len(order) < 5 || order[0] != quiet && order[1] != quiet {
		t.Errorf("%d turns, the quiet one late: %v", len(order), got)
	}
	boom := errors.New("boom")
	post(t, v, 1, 2)
	ev := cq.ChannelEvent{}
	for ev.Queue != quiet {
		ev, _ = getEvent(c, time.Minute)
	}
	err := cq.Drain(c, ev, cq.NotifyAny, buf, 0, func([]cq.Context) error { return boom })
	wantErr(t, "handler's error", err, boom)
	wantErr(t, "no buffer", cq.Drain(c, ev, cq.NotifyAny, buf[:0], 0, nil), cq.ErrInvalid)
}

// TestEntries goes through a queue in place.
func TestEntries(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 256})
	post(t, w, 0, 100)
	next := uint64(0)
	take := func(most, leaveAt int) (err error) {
		n := 0
		for e, err := range q.Entries(most) {
			if err != nil {
				return err
			}
			if e.Context != next {
				t.Fatalf("entry %d, want %d", e.Context, next)
			}
			next++
			if n++; n == leaveAt {
				break
			}
		}
		return nil
	}
	must(t, take(10, -1))
	must(t, take(0, 40))
	if next != 50 {
		t.Errorf("%d taken", next)
	}
	must(t, take(0, -1))
	if next != 100 {
		t.Errorf("%d taken", next)
	}
	must(t, take(0, -1))
	post(t, w, 100, 101)
	postError(t, w, 7)
	wantErr(t, "an error", take(0, -1), cq.ErrAvail)
	must(t, q.ReadErr(&cq.ErrorEntry{}))
	post(t, w, 101, 102)
	es, err := q.Peek(1)
	if len(es) != 1 {
		t.Fatal(err)
	}
	wantErr(t, "handed out", take(0, -1), cq.ErrBusy)
	must(t, q.Release(1))
}
