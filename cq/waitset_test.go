package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// group is a poll set or a wait set.
type group interface {
	Add(cq.Waitable) error
	Remove(cq.Waitable) error
	Close() error
}

// waitSet makes a set that is closed when the test ends.
func waitSet(t testing.TB, d *shm.Dir, o cq.WaitSetOptions) *cq.WaitSet {
	t.Helper()
	return shmtest.Have(cq.NewWaitSet(d, o)).In(t)
}

// addTo makes members of a set until the test ends.
func addTo(t testing.TB, s group, ms ...cq.Waitable) {
	t.Helper()
	for _, m := range ms {
		must(t, s.Add(m))
		t.Cleanup(func() {
			if err := s.Remove(m); err != nil && !errors.Is(err, fs.ErrNotExist) &&
				!errors.Is(err, cq.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// member makes a queue with a writer, in the sets until the test ends.
func member(t testing.TB, d *shm.Dir, name string, o cq.Options, sets ...group) (*cq.Queue,
	*cq.Writer) {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Named(d, name), o)).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	for _, s := range sets {
		addTo(t, s, q)
	}
	return q, attach(t, d, name)
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
	return shmtest.Have(cq.NewChannel(d)).In(t)
}

// attachTo makes queues those of the channel until the test ends. What is unacknowledged then is
// acknowledged.
func attachTo(t testing.TB, c *cq.Channel, qs ...*cq.Queue) {
	t.Helper()
	for _, q := range qs {
		must(t, c.Attach(q))
		t.Cleanup(func() {
			for c.Ack(q, 1) == nil {
			}
			err := c.Detach(context.Background(), q)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, cq.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// attached makes a queue of the channel with a writer.
func attached(t testing.TB, d *shm.Dir, c *cq.Channel, name string, o cq.Options) (*cq.Queue,
	*cq.Writer) {
	t.Helper()
	q, w := member(t, d, name, o)
	attachTo(t, c, q)
	return q, w
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

// TestAdoptIntoSet: a successor's set is its own, for queues of both kinds.
func TestAdoptIntoSet(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Wait: cq.WaitInSet, WaitSet: s})).Or(t)
	w := attach(t, d, "q")
	must(t, q.Detach())
	e, err := cq.CreateEvents(cq.Named(d, "e"), cq.EventOptions{Wait: cq.WaitInSet, WaitSet: s})
	must(t, err)
	must(t, e.Detach())
	for _, m := range []cq.Waitable{q, e} {
		wantErr(t, "no member any more", s.Remove(m), fs.ErrNotExist)
	}
	q = shmtest.Have(cq.Open(cq.Named(d, "q"), cq.Options{Existing: true, WaitSet: s})).In(t)
	e = shmtest.Have(cq.OpenEvents(cq.Named(d, "e"),
		cq.EventOptions{Existing: true, WaitSet: s})).In(t)
	for _, m := range []cq.Waitable{q, e} {
		wantErr(t, "a member again", s.Add(m), fs.ErrExist)
	}
	dst := make([]cq.Waitable, 2)
	_, _ = setWait(s, dst, 0)
	wait := later(func() { post(t, w, 0, 1) })
	n, err := setWait(s, dst, time.Minute)
	wait()
	if n != 1 || err != nil || dst[0] != cq.Waitable(q) {
		t.Errorf("%d, %v, %v", n, err, dst[:n])
	}
}

// TestCloseRacesAdd: a set that closes either has the queue, and stays open, or has not. A queue in
// a set that is gone could never be closed.
func TestCloseRacesAdd(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	q := shmtest.Have(cq.Create(cq.Named(d, queueName(t)), cq.Options{})).In(t)
	race := func(what string, closing, add, remove func() error) {
		var closed, added error
		var both sync.WaitGroup
		both.Go(func() { closed = closing() })
		both.Go(func() { added = add() })
		both.Wait()
		switch {
		case closed == nil && added == nil:
			t.Fatalf("%s: closed with a member", what)
		case added == nil:
			wantErr(t, what, closed, cq.ErrBusy)
			must(t, remove())
			must(t, closing())
		default:
			wantErr(t, what, added, cq.ErrClosed)
		}
	}
	keep := waitSet(t, d, cq.WaitSetOptions{}) // so that the bell stays
	must(t, keep.Add(q))
	for range 1000 {
		s := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
		race("wait set", s.Close, func() error { return s.Add(q) },
			func() error { return s.Remove(q) })
		p := shmtest.Got(cq.NewPollSet(d, 0)).Or(t)
		race("poll set", p.Close, func() error { return p.Add(q) },
			func() error { return p.Remove(q) })
		c := shmtest.Got(cq.NewChannel(d)).Or(t)
		race("channel", c.Close, func() error { return c.Attach(q) },
			func() error { return c.Detach(t.Context(), q) })
	}
	must(t, keep.Remove(q))
}

// TestDetachTwice: of two goroutines that detach a queue one comes last, when the queue may be
// attached again, and leaves it there.
func TestDetachTwice(t *testing.T) {
	d := openDir(t)
	c := channel(t, d)
	q, w := attached(t, d, c, queueName(t), cq.Options{Shared: true})
	for i := range 600 {
		must(t, c.RequestNotify(q, cq.NotifyAny))
		post(t, w, uint64(i), uint64(i+1))
		gets(t, "posted", c, q)
		read(t, q, 4)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan struct{}, 4)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := c.Detach(ctx, q); err == nil {
					first <- struct{}{}
				}
			})
		}
		runtime.Gosched()
		must(t, c.Ack(q, 1))
		<-first
		for err := error(cq.ErrBusy); errors.Is(err, cq.ErrBusy); {
			err = c.Attach(q) // another one may detach it once more
		}
		all.Wait()
		cancel()
		if err := c.Attach(q); err == nil || errors.Is(err, os.ErrExist) {
			continue
		} else {
			t.Fatalf("%d: the queue is lost between the accounts: %v", i, err)
		}
	}
}

// TestSetTellsOfBadLane: a lane that cannot be opened is something to read, also for a set that
// found that out only now.
func TestSetTellsOfBadLane(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Join(d.Path(), "q")) })
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{})).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	must(t, s.Add(q))
	t.Cleanup(func() { must(t, s.Remove(q)) })
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
	post(t, w, 0, 1)
	must(t, w.Close())
	must(t, os.WriteFile(filepath.Join(d.Path(), "q", "lane-0001"), make([]byte, 8192), 0o600))
	dst := make([]cq.Waitable, 1)
	n, err := setWait(s, dst, 0)
	if n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	var lane *cq.LaneError
	if _, err := cq.Read(q, make([]cq.Msg, 1)); !errors.As(err, &lane) {
		t.Errorf("read: %v", err)
	}
}

// TestSecondCallerIsRefused: two goroutines on one set is a mistake that gets an answer, and no
// damage.
func TestSecondCallerIsRefused(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	p := shmtest.Have(cq.NewPollSet(d, 0)).In(t)
	for i := range 3 {
		_, w := member(t, d, "q"+string(rune('0'+i)), cq.Options{Shared: true}, s, p)
		post(t, w, 0, 1)
	}
	counter := shmtest.Have(cq.CreateCounter(cq.Named(d, "n"), cq.CounterOptions{})).In(t)
	must(t, p.Add(counter))
	t.Cleanup(func() { must(t, p.Remove(counter)) })
	must(t, counter.Add(1))
	check := func(err error) {
		if err != nil && !errors.Is(err, cq.ErrBusy) && !errors.Is(err, cq.ErrWouldBlock) {
			t.Error(err)
		}
	}
	var all sync.WaitGroup
	for g := range 3 {
		all.Go(func() {
			for i := range 2000 {
				dst := make([]cq.Waitable, 1+(g+i)%9)
				_, err := setWait(s, dst, time.Millisecond)
				check(err)
				_, err = p.Poll(dst)
				check(err)
				check(s.TryWait())
			}
		})
	}
	all.Wait()
}

// TestFeederFarFuture: a feeder that wants its turn in a thousand years takes no deadline away.
func TestFeederFarFuture(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	q, _ := member(t, d, "q", cq.Options{}, s)
	unbind := shmtest.Got(q.Bind(&feeder{again: math.MaxInt64}, true)).Or(t)
	t.Cleanup(unbind)
	_, err := setWait(s, make([]cq.Waitable, 1), 5*time.Millisecond)
	wantErr(t, "set", err, cq.ErrTimedOut)
	_, err = sread(q, make([]cq.Msg, 1), 5*time.Millisecond)
	wantErr(t, "read", err, cq.ErrTimedOut)
	before := q.Stats().Sleeps
	_, _ = sread(q, make([]cq.Msg, 1), 30*time.Millisecond)
	if n := q.Stats().Sleeps - before; n > 20 {
		t.Errorf("%d sleeps: each was over at once", n)
	}
}

// TestSetsOfHandles: two handles of one counter are two members, also in one process.
func TestSetsOfHandles(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	name := queueName(t)
	a := shmtest.Have(cq.CreateCounter(cq.Named(d, name), cq.CounterOptions{})).In(t)
	b := shmtest.Have(cq.AttachCounter(cq.Named(d, name), cq.CounterOptions{})).In(t)
	for _, s := range []interface {
		Add(cq.Waitable) error
		Remove(cq.Waitable) error
	}{
		shmtest.Have(cq.NewWaitSet(d, cq.WaitSetOptions{})).In(t),
		shmtest.Have(cq.NewPollSet(d, 0)).In(t)} {
		must(t, s.Add(a))
		wantErr(t, "remove what is no member", s.Remove(b), fs.ErrNotExist)
		must(t, s.Add(b))
		wantErr(t, "add a member", s.Add(b), fs.ErrExist)
		must(t, errors.Join(s.Remove(a), s.Remove(b)))
	}
}
