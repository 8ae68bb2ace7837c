package cq_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// armed calls TryWait until it is safe to sleep. take reads what there is before that.
func armed(t testing.TB, take func(), objects ...cq.TryWaiter) {
	t.Helper()
	for range 1000 {
		err := cq.TryWait(objects...)
		if err == nil {
			return
		}
		wantErr(t, "trywait", err, cq.ErrWouldBlock)
		take()
	}
	t.Fatal("it never becomes safe to sleep")
}

// TestConformanceWaitSetFD is a wait set that the caller sleeps on by itself.
func TestConformanceWaitSetFD(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, UserContext: 0}
	for _, wait := range []cq.WaitObject{cq.WaitFD, cq.WaitPollFD} {
		name := "one-descriptor"
		conform(t, name+"/"+wait.String(), o, func(t *testing.T, r *rig) {
			other := r.another(t, 1, o)
			s := waitSet(t, r.d, cq.WaitSetOptions{Wait: wait})
			addTo(t, s, r.q, other.q)
			native := shmtest.Got(s.GetWait()).Or(t)
			fd := native.FD
			if wait == cq.WaitPollFD {
				fd = native.PollFDs[0]
			}
			for i := range uint64(6) {
				q := []*rig{r, other}[i%2]
				armed(t, func() { _ = drain(t, r.q); _ = drain(t, other.q) }, s)
				if readable(t, fd, 0) {
					t.Error("readable with nothing there")
				}
				done := later(func() { q.post(t, i, i+1) })
				if !readable(t, fd, 20_000) {
					t.Error("not readable with an entry")
				}
				done()
				wantErr(t, "trywait with an entry", s.TryWait(), cq.ErrWouldBlock)
				dst := make([]cq.Waitable, 2)
				if n, err := setWait(s, dst, 0); n != 1 || err != nil || dst[0] != q.q {
					t.Errorf("%d, %v, %v", n, err, dst[0])
				}
				wantContexts(t, "entry", drain(t, q.q), i)
			}
		})
	}
	conform(t, "mutex-cond", o, func(t *testing.T, r *rig) {
		s := waitSet(t, r.d, cq.WaitSetOptions{Wait: cq.WaitMutexCond})
		addTo(t, s, r.q)
		native, err := s.GetWait()
		if err != nil || native.Cond == nil {
			t.Fatalf("%+v, %v", native, err)
		}
		for i := range uint64(5) {
			done := later(func() { r.post(t, i, i+1) })
			var got []uint64
			for len(got) == 0 {
				native.Cond.L.Lock()
				for s.TryWait() == nil {
					native.Cond.Wait()
				}
				native.Cond.L.Unlock()
				got = drain(t, r.q)
			}
			wantContexts(t, "entry", got, i)
			done()
		}
	})
}

// TestConformanceTryWait is fi_trywait. It is alone: select(2) takes descriptors below 1024 only.
func TestConformanceTryWait(t *testing.T) {
	o := cq.Options{Size: 8, UserContext: 0, Wait: cq.WaitFD}
	conform(t, "something-queued", o, tryWaitSomethingQueued)
	conform(t, "blocking-could-hang", o, tryWaitBlockingCouldHang)
	conform(t, "a-signal-once", o, tryWaitSignalOnce)
	conform(t, "last-look", o, tryWaitLastLook)
	conform(t, "select-loop", o, selectLoop)
	conform(t, "several", o, func(t *testing.T, r *rig) {
		other := r.another(t, 1, o)
		both := func() { _ = drain(t, r.q); _ = drain(t, other.q) }
		armed(t, both, r.q, other.q)
		if readable(t, waitFD(r.q), 0) || readable(t, waitFD(other.q), 0) {
			t.Error("readable with nothing there")
		}
		other.post(t, 1, 2)
		wantErr(t, "one of two", cq.TryWait(r.q, other.q), cq.ErrWouldBlock)
		both()
		armed(t, both, r.q, other.q)
		r.post(t, 1, 2)
		if !readable(t, waitFD(r.q), 20_000) || readable(t, waitFD(other.q), 0) {
			t.Error("the wrong one is readable")
		}
	})
	conform(t, "mixed-kinds", o, tryWaitMixedKinds)
	conform(t, "every-kind", o, tryWaitEveryKind)
	conform(t, "with-a-poll-set", o, func(t *testing.T, r *rig) {
		other := r.another(t, 1, o)
		s := pollSet(t, r.d, r.q, other.q)
		for i := range uint64(4) {
			q := []*rig{r, other}[i%2]
			armed(t, func() {}, r.q, other.q)
			q.post(t, i, i+1)
			wantErr(t, "trywait", cq.TryWait(r.q, other.q), cq.ErrWouldBlock)
			wantReady(t, "poll", polled(t, s, 2), int(i%2))
			wantContexts(t, "entry", drain(t, q.q), i)
		}
	})
	conform(t, "epoll-right-queue", o, func(t *testing.T, r *rig) {
		qs := []*rig{r, r.another(t, 1, o), r.another(t, 2, o)}
		ep := newEpoll(t, unix.EPOLLIN, qs[0].q, qs[1].q, qs[2].q)
		for i := range uint64(12) {
			at := int(i*7) % 3
			for _, q := range qs {
				armed(t, func() { _ = drain(t, q.q) }, q.q)
			}
			done := later(func() { qs[at].post(t, i, i+1) })
			if got := ep.wait(20_000); len(got) != 1 || got[0] != at {
				t.Errorf("%d: woken for %v, want %d", i, got, at)
			}
			done()
			wantContexts(t, "entry", drain(t, qs[at].q), i)
		}
	})
}

func tryWaitEveryKind(t *testing.T, r *rig) {
	e := shmtest.Have(cq.CreateEvents(cq.Named(r.d, "events"),
		cq.EventOptions{Wait: cq.WaitFD, Write: true})).In(t)
	s := waitSet(t, r.d, cq.WaitSetOptions{Wait: cq.WaitFD})
	member := r.another(t, 1, cq.Options{})
	addTo(t, s, member.q)
	take := func() {
		_ = drain(t, r.q)
		_ = drain(t, member.q)
		_ = drainEvents(t, e)
	}
	co := cq.CounterOptions{UserContext: 2, Wait: cq.WaitFD}
	count := newCountRig(t, r.site, r.p, "counter", co)
	take = func(queues func()) func() {
		return func() { queues(); _, _ = count.c.Read(); _, _ = count.c.ReadErr() }
	}(take)
	armed(t, take, r.q, e, s, count.c)
	must(t, count.w.Add(1))
	if !readable(t, waitFD(count.c), 20_000) {
		t.Error("the counter is not readable")
	}
	wantErr(t, "a count", cq.TryWait(r.q, e, s, count.c), cq.ErrWouldBlock)
	take()
	armed(t, take, r.q, e, s, count.c)
	writeEvents(t, e, 1, 2)
	wantErr(t, "an event", cq.TryWait(r.q, e, s, count.c), cq.ErrWouldBlock)
	if !readable(t, waitFD(e), 20_000) {
		t.Error("the event queue is not readable")
	}
	take()
	armed(t, take, r.q, e, s)
	member.post(t, 1, 2)
	if !readable(t, waitFD(s), 20_000) || readable(t, waitFD(r.q), 0) {
		t.Error("the set is not readable, or the queue is")
	}
}

func tryWaitSomethingQueued(t *testing.T, r *rig) {
	r.post(t, 1, 3)
	for range 3 {
		wantErr(t, "trywait", cq.TryWait(r.q), cq.ErrWouldBlock, syscall.EAGAIN)
	}
	_ = read(t, r.q, 1)
	wantErr(t, "one is left", cq.TryWait(r.q), cq.ErrWouldBlock)
	armed(t, func() { _ = drain(t, r.q) }, r.q)
}

func tryWaitBlockingCouldHang(t *testing.T, r *rig) {
	r.postError(t, 1)
	_, err := cq.Read(r.q, make([]cq.Msg, 1))
	wantErr(t, "read", err, cq.ErrAvail)
	wantErr(t, "a failure nobody took", cq.TryWait(r.q), cq.ErrWouldBlock)
	must(t, r.q.ReadErr(&cq.ErrorEntry{}))
	must(t, r.q.Signal())
	wantErr(t, "a signal", cq.TryWait(r.q), syscall.EAGAIN)
}

// tryWaitSignalOnce: a signal ends one wait, and the next one is safe again.
func tryWaitSignalOnce(t *testing.T, r *rig) {
	for range 3 {
		armed(t, func() { _ = drain(t, r.q) }, r.q)
		must(t, r.q.Signal())
		if !readable(t, waitFD(r.q), 20_000) {
			t.Error("not readable with a signal")
		}
		wantErr(t, "trywait", cq.TryWait(r.q), cq.ErrSignaled, syscall.EAGAIN)
		must(t, cq.TryWait(r.q))
		if readable(t, waitFD(r.q), 0) {
			t.Error("readable with nothing there")
		}
	}
}

// tryWaitLastLook posts at all moments around a TryWait: whatever comes while it arms is something
// that it says, or that makes the descriptor readable.
func tryWaitLastLook(t *testing.T, r *rig) {
	if r.far {
		return // who posts does it by a call, which is never over in time
	}
	const rounds, over = 1000, 1 << 32
	var turn atomic.Uint64
	done := later(func() {
		for i := uint64(1); i <= rounds; i++ {
			for turn.Load() < i {
				runtime.Gosched()
			}
			if turn.Load() == over {
				return
			}
			for range i * 7 % 1000 { // nanoseconds later, up to the length of a call
				_ = turn.Load()
			}
			postTo(t, r.w, i, i+1)
		}
	})
	defer func() { turn.Store(over); done() }()
	for i := uint64(1); i <= rounds; i++ {
		turn.Store(i)
		for got := []uint64(nil); len(got) == 0; got = drain(t, r.q) {
			if cq.TryWait(r.q) == nil && !readable(t, waitFD(r.q), 20_000) {
				t.Fatalf("round %d: asleep, with %v there", i, drain(t, r.q))
			}
		}
	}
}

// selectLoop is the loop of the page: trywait, select, read until nothing is there. Now and then
// the writer waits until the reader is about to select with nothing to read.
func selectLoop(t *testing.T, r *rig) {
	const total = 400
	done, asleep := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(done)
		postAll(t, r.w, 0, total, func(i uint64) {
			if i%37 == 0 {
				<-asleep
			}
		})
	}()
	var next uint64
	dst := make([]cq.Context, 3)
	for next < total {
		if cq.TryWait(r.q) == nil {
			var set unix.FdSet
			set.Set(waitFD(r.q))
			tv := unix.Timeval{Sec: 20}
			select {
			case asleep <- struct{}{}:
			default:
			}
			n, err := unix.Select(waitFD(r.q)+1, &set, nil, &set, &tv)
			if n == 0 && err == nil {
				t.Fatalf("asleep after %d of %d", next, total)
			}
		}
		for {
			n, err := cq.Read(r.q, dst)
			if err == cq.ErrWouldBlock {
				break
			}
			must(t, err)
			for _, e := range dst[:n] {
				if e.Context != next {
					t.Fatalf("entry %d, want %d", e.Context, next)
				}
				next++
			}
		}
	}
	<-done
}

// tryWaitMixedKinds passes objects with different wait objects, and a counter among them.
func tryWaitMixedKinds(t *testing.T, r *rig) {
	other := r.another(t, 1, cq.Options{Size: 8, Wait: cq.WaitUnspec})
	wantErr(t, "trywait", cq.TryWait(r.q, other.q), cq.ErrInvalid, syscall.EINVAL)
	wantErr(t, "no descriptor", cq.TryWait(other.q), cq.ErrNoWait)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitYield, cq.WaitFD} {
		co := cq.CounterOptions{UserContext: 1, Wait: wait}
		count := newCountRig(t, r.site, r.p, fmt.Sprint("counter-", int(wait)), co)
		armed(t, func() { _ = drain(t, r.q) }, r.q)
		if wait != cq.WaitFD {
			for _, objects := range [][]cq.TryWaiter{{r.q, count.c}, {count.c, r.q}} {
				wantErr(t, wait.String(), cq.TryWait(objects...), cq.ErrInvalid, syscall.EINVAL)
			}
			continue
		}
		both := func() { _ = drain(t, r.q); _, _ = count.c.Read(); _, _ = count.c.ReadErr() }
		armed(t, both, r.q, count.c)
		must(t, count.w.Add(1))
		if !readable(t, waitFD(count.c), 20_000) || readable(t, waitFD(r.q), 0) {
			t.Error("the counter is not readable, or the queue is")
		}
		wantErr(t, "a counter", cq.TryWait(r.q, count.c), cq.ErrWouldBlock)
	}
}
