package cq_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// signalWaiter waits so long, for ever if that is negative, and reports whether a signal ended it.
type signalWaiter struct {
	name string
	wait func(d time.Duration) bool
}

// descriptorWaiter is trywait, then poll. again is what trywait says of a signal.
func descriptorWaiter(t *testing.T, name string, m interface {
	cq.TryWaiter
	GetWait() (cq.Native, error)
}, again error) signalWaiter {
	return signalWaiter{name, func(d time.Duration) bool {
		for {
			err := cq.TryWait(m)
			if errors.Is(err, again) {
				return true
			}
			if err == cq.ErrWouldBlock { // the signal came while it was arming: it is there now
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ms := -1
			if d >= 0 {
				ms = int(d.Milliseconds())
			}
			if !readable(t, waitFD(m), ms) {
				return false
			}
		}
	}}
}

// setWaiters wait on sets that have m.
func setWaiters(t *testing.T, d *shm.Dir, m cq.Waitable) []signalWaiter {
	set := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	addTo(t, set, m)
	wait := func(room int) func(time.Duration) bool {
		return func(d time.Duration) bool {
			dst := make([]cq.Waitable, room)
			n, err := setWait(set, dst, d)
			if err != nil {
				wantErr(t, "wait", err, cq.ErrTimedOut)
				return false
			}
			if n != min(1, room) || room > 0 && dst[0] != m {
				t.Errorf("the set returned %d, %v", n, dst)
			}
			return true
		}
	}
	return []signalWaiter{{"set", wait(2)}, {"set without room", wait(0)},
		descriptorWaiter(t, "descriptor of a set", set, cq.ErrWouldBlock)}
}

// readWaiter is a blocking read.
func readWaiter(t *testing.T, sread func(time.Duration) error) signalWaiter {
	return signalWaiter{"read", func(d time.Duration) bool {
		err := sread(d)
		if err != cq.ErrSignaled {
			wantErr(t, "sread", err, cq.ErrTimedOut)
		}
		return err == cq.ErrSignaled
	}}
}

// oneWaitOfOneWaiter: whoever takes the signal, it is gone for everybody.
func oneWaitOfOneWaiter(t *testing.T, signal func() error, waiters []signalWaiter) {
	for _, w := range waiters {
		for _, begin := range []string{"before", "during"} {
			done := func() {}
			if begin == "before" {
				must(t, signal())
			} else {
				done = later(func() { _ = signal() })
			}
			if !w.wait(-1) {
				t.Fatalf("%s the wait of %s: it was not the signal", begin, w.name)
			}
			done()
			for _, other := range waiters {
				if other.wait(time.Millisecond) {
					t.Errorf("%s the wait of %s: it ended one of %s too", begin, w.name, other.name)
				}
			}
		}
	}
}

// TestConformanceSignal is a signal and all that one can wait with.
func TestConformanceSignal(t *testing.T) {
	t.Parallel()
	fd := cq.Options{Size: 8, Spin: -1, Wait: cq.WaitFD}
	dst := make([]cq.Msg, 1)
	sread := func(q *cq.Queue) func(time.Duration) error {
		return func(d time.Duration) error { _, err := sread(q, dst, d); return err }
	}
	conform(t, "one-wait-of-one-waiter", fd, func(t *testing.T, r *rig) {
		waiters := append(setWaiters(t, r.d, r.q), readWaiter(t, sread(r.q)),
			descriptorWaiter(t, "descriptor", r.q, cq.ErrSignaled))
		oneWaitOfOneWaiter(t, r.q.Signal, waiters)
		if !r.memfd {
			oneWaitOfOneWaiter(t, func() error { return r.signalOutside(t) }, waiters)
		}
	})
	conformEQ(t, "event-queue", cq.EventOptions{Wait: cq.WaitFD, Spin: -1},
		func(t *testing.T, r *eqRig) {
			read := func(d time.Duration) error { _, err := eqSread(r.e, &cq.Event{}, d); return err }
			oneWaitOfOneWaiter(t, r.e.Signal, append(setWaiters(t, r.d, r.e), readWaiter(t, read),
				descriptorWaiter(t, "descriptor", r.e, cq.ErrSignaled)))
		})
	set := waitSet(t, openDir(t), cq.WaitSetOptions{})
	own := cq.Options{Size: 8, Wait: cq.WaitInSet, WaitSet: set}
	conform(t, "queue-of-a-set", own, func(t *testing.T, r *rig) {
		oneWaitOfOneWaiter(t, r.q.Signal, setWaiters(t, r.d, r.q))
	})
	conform(t, "entries-first", fd, func(t *testing.T, r *rig) {
		for _, w := range setWaiters(t, r.d, r.q) {
			must(t, r.q.Signal())
			r.post(t, 1, 2)
			if !w.wait(0) {
				t.Errorf("%s: it does not see the entry", w.name)
			}
			wantContexts(t, "entry", read(t, r.q, 2), 1)
			if !w.wait(-1) || w.wait(time.Millisecond) {
				t.Errorf("%s: the signal is not what is left", w.name)
			}
		}
	})
	conform(t, "not-for-who-does-not-wait", fd, func(t *testing.T, r *rig) {
		polls := pollSet(t, r.d, r.q)
		must(t, r.q.Signal())
		for range 3 {
			if got := polled(t, polls, 2); len(got) != 0 {
				t.Errorf("a poll returned %v", got)
			}
			_, err := cq.Read(r.q, dst)
			wantErr(t, "read", err, cq.ErrWouldBlock)
		}
		if !setWaiters(t, r.d, r.q)[0].wait(-1) {
			t.Error("it is gone")
		}
	})
	conform(t, "of-a-set", fd, func(t *testing.T, r *rig) {
		s := waitSet(t, r.d, cq.WaitSetOptions{Wait: cq.WaitFD})
		addTo(t, s, r.q)
		wait := func(d time.Duration) error { _, err := setWait(s, nil, d); return err }
		oneWaitOfOneWaiter(t, s.Signal, []signalWaiter{readWaiter(t, wait),
			descriptorWaiter(t, "descriptor", s, cq.ErrSignaled)})
	})
	onChannel(t, "of-a-channel", channelSignalDescriptor)
	fd.Shared = true
	conform(t, "several-at-once", fd, signalSeveral)
}

// channelSignalDescriptor: the descriptor of a channel, with a get for each edge.
func channelSignalDescriptor(t *testing.T, r *rig, c *cq.Channel) {
	must(t, c.Signal()) // before anybody asks for a descriptor
	fd := shmtest.Got(c.FD()).Or(t)
	waiter := signalWaiter{"descriptor", func(d time.Duration) bool {
		for {
			_, err := c.TryGetEvent()
			if errors.Is(err, cq.ErrSignaled) {
				return true
			}
			wantErr(t, "get", err, cq.ErrWouldBlock)
			ms := -1
			if d >= 0 {
				ms = int(d.Milliseconds())
			}
			if !readable(t, fd, ms) {
				return false
			}
		}
	}}
	if !readable(t, fd, 20_000) || !waiter.wait(0) {
		t.Error("the first signal is not there")
	}
	get := func(d time.Duration) error { _, err := getEvent(c, d); return err }
	oneWaitOfOneWaiter(t, c.Signal, []signalWaiter{waiter, readWaiter(t, get)})
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	r.post(t, 1, 2)
	must(t, c.Signal())
	shmtest.Got(c.TryGetEvent()).Or(t)
	must(t, c.Ack(r.q, 1))
	if !readable(t, fd, 20_000) || !waiter.wait(0) {
		t.Error("the event before the signal took it along")
	}
}

// signalSeveral: as many signals as there are waiters end all of them, and none is left.
func signalSeveral(t *testing.T, r *rig) {
	waiters := []signalWaiter{setWaiters(t, r.d, r.q)[0], setWaiters(t, r.d, r.q)[2],
		readWaiter(t, func(d time.Duration) error {
			_, err := sread(r.q, make([]cq.Msg, 1), d)
			return err
		})}
	var ended atomic.Int64
	done := make(chan bool, len(waiters))
	for _, w := range waiters {
		go func() {
			ok := w.wait(-1)
			ended.Add(1)
			done <- ok
		}()
	}
	for i := range waiters {
		must(t, r.q.Signal())
		eventually(t, "one took it", func() bool { return ended.Load() > int64(i) })
	}
	for range waiters {
		if !<-done {
			t.Error("one ended for another reason")
		}
	}
	for _, w := range waiters {
		if w.wait(time.Millisecond) {
			t.Errorf("%s: one signal ended more than one", w.name)
		}
	}
}

// crowded is how many entries a busy writer has waiting, many times what a lane gives in its turn.
const crowded = 250

// TestConformanceLanes is what reads owe where a queue has several writers.
func TestConformanceLanes(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 256}
	for name, take := range map[string]func(*testing.T, *cq.Queue) []uint64{
		"reads": func(t *testing.T, q *cq.Queue) []uint64 { return read(t, q, 2*crowded) },
		"small-reads": func(t *testing.T, q *cq.Queue) (got []uint64) {
			for range crowded + 1 {
				got = append(got, read(t, q, 1)...)
			}
			return got
		},
		"peeks": peekCrowd,
	} {
		each := "no-writer-starves"
		conform(t, each+"/"+name, o, func(t *testing.T, r *rig) {
			ws := []sink{r.w, r.attach(t)}
			for busy, w := range ws {
				postMany(t, w, crowded)
				postTo(t, ws[1-busy], crowded, crowded+1)
				got := take(t, r.q)
				if at := slices.Index(got, crowded); at < 0 || at > 64 {
					t.Errorf("writer %d is busy: what the other one has comes at %d", busy, at)
				}
				_ = drain(t, r.q)
			}
		})
	}
	conform(t, "nothing-behind-an-error", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		other := r.attach(t)
		for i := range uint64(80) { // wherever the ring ends
			if i >= 40 { // and where reads have two lanes to go round
				postTo(t, other, 100, 101)
				wantContexts(t, "another writer", drain(t, r.q), 100)
			}
			ahead := i % 5
			r.post(t, 0, ahead)
			r.postError(t, ahead)
			r.post(t, ahead+1, ahead+3)
			if ahead > 0 {
				wantContexts(t, "ahead of the error", read(t, r.q, 8), upTo(0, ahead)...)
			}
			n, err := cq.Read(r.q, make([]cq.Context, 8))
			wantErr(t, "at the error", err, cq.ErrAvail)
			var e cq.ErrorEntry
			must(t, r.q.ReadErr(&e))
			if n != 0 || e.Context != ahead {
				t.Fatalf("%d entries, and the error is of %d; want %d", n, e.Context, ahead)
			}
			wantContexts(t, "behind it", read(t, r.q, 8), ahead+1, ahead+2)
			if i%2 == 0 { // twice nothing: a read of one lane takes the short cut then
				_ = drain(t, r.q)
				_ = drain(t, r.q)
			}
		}
	})
	conform(t, "no-error-among-the-peeked", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		other := r.attach(t)
		r.post(t, 0, 2)
		es, err := r.q.Peek(2)
		if len(es) != 2 || err != nil {
			t.Fatalf("%d, %v", len(es), err)
		}
		must(t, other.PostError(&cq.ErrorEntry{Context: 7, Err: cq.EOther}))
		for left := 2; left > 0; left-- {
			wantErr(t, "while entries are handed out", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrBusy)
			must(t, r.q.Release(1))
		}
		var e cq.ErrorEntry
		if err := r.q.ReadErr(&e); err != nil || e.Context != 7 {
			t.Errorf("then %+v, %v", e, err)
		}
	})
	eo := cq.EventOptions{Size: 256, MaxLanes: 4}
	conformEQ(t, "no-event-writer-starves", eo, func(t *testing.T, r *eqRig) {
		ws := []eventWriter{r.w, r.near(t)}
		for busy, w := range ws {
			writeEvents(t, w, 0, crowded)
			writeEvents(t, ws[1-busy], crowded, crowded+1)
			got := drainEvents(t, r.e)
			if at := slices.Index(got, crowded); at < 0 || at > 64 {
				t.Errorf("writer %d is busy: the event of the other one comes at %d", busy, at)
			}
		}
	})
}

func postMany(t *testing.T, w sink, n uint64) {
	t.Helper()
	es := make([]cq.Entry, n)
	for i := range es {
		es[i] = cq.Entry{Context: uint64(i)}
	}
	if k, err := w.PostBatch(es); k != len(es) || err != nil {
		t.Fatalf("%d of %d, %v", k, n, err)
	}
}

func peekCrowd(t *testing.T, q *cq.Queue) (got []uint64) {
	t.Helper()
	for len(got) <= crowded {
		got = append(got, peekSome(t, q)...)
	}
	return got
}

func peekSome(t *testing.T, q *cq.Queue) (got []uint64) {
	t.Helper()
	es := shmtest.Got(q.Peek(8)).Or(t)
	for i := range es {
		got = append(got, es[i].Context)
	}
	must(t, q.Release(len(es)))
	return got
}
