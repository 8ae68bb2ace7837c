package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
)

// TestConformanceCQSread is fi_cq_sread and fi_cq_sreadfrom.
func TestConformanceCQSread(t *testing.T) {
	o := cq.Options{Size: 8, Spin: -1}
	conform(t, "completion", o, func(t *testing.T, r *rig) {
		r.post(t, 1, 2)
		dst := make([]cq.Context, 4)
		if n, err := sread(r.q, dst, tooLong); n != 1 || err != nil || dst[0].Context != 1 {
			t.Errorf("there before: %d, %v, %v", n, err, dst)
		}
		defer whenAsleep(t, r.q, func() { r.post(t, 2, 3) })()
		if n, err := sread(r.q, dst, tooLong); n != 1 || err != nil || dst[0].Context != 2 {
			t.Errorf("while it sleeps: %d, %v, %v", n, err, dst)
		}
	})
	conform(t, "with-source", o, func(t *testing.T, r *rig) {
		defer whenAsleep(t, r.q, func() {
			_, err := r.w.PostBatch([]cq.Entry{{Context: 1, Src: cq.From(5)}, {Context: 2}})
			must(t, err)
		})()
		dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
		n, err := sreadFrom(r.q, dst, src, tooLong)
		if n != 2 || err != nil || src[0] != 5 || src[1] != cq.AddrNotAvail {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conform(t, "error", o, func(t *testing.T, r *rig) {
		for what, wait := range map[string]func() (int, error){
			"sread":     func() (int, error) { return sread(r.q, make([]cq.Msg, 4), tooLong) },
			"threshold": func() (int, error) { return sread(r.q, make([]cq.Msg, 4), -1, 4) },
			"peek": func() (int, error) {
				es, err := r.q.PeekContext(t.Context(), 1)
				return len(es), err
			},
		} {
			done := whenAsleep(t, r.q, func() { r.postError(t, 9) })
			n, err := wait()
			if n != 0 {
				t.Errorf("%s: %d entries", what, n)
			}
			wantErr(t, what, err, cq.ErrAvail)
			must(t, r.q.ReadErr(&cq.ErrorEntry{}))
			done()
		}
	})
	conform(t, "timeout", o, func(t *testing.T, r *rig) {
		for _, timeout := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond} {
			begin := time.Now()
			n, err := sread(r.q, make([]cq.Msg, 4), timeout)
			wantErr(t, timeout.String(), err, cq.ErrTimedOut, syscall.EAGAIN, os.ErrDeadlineExceeded)
			if took := time.Since(begin); n != 0 || took < timeout {
				t.Errorf("%v: %d entries after %v", timeout, n, took)
			}
		}
		for _, timeout := range []time.Duration{0, -1, math.MaxInt64, math.MinInt64} {
			r.post(t, 1, 2)
			if n, err := sread(r.q, make([]cq.Msg, 4), timeout); n != 1 || err != nil {
				t.Errorf("%v, and an entry: %d, %v", timeout, n, err)
			}
		}
	})
	conform(t, "negative-timeout", o, func(t *testing.T, r *rig) {
		for _, timeout := range []time.Duration{-1, math.MaxInt64} {
			done := whenAsleep(t, r.q, func() { r.post(t, 1, 2) })
			if n, err := sread(r.q, make([]cq.Msg, 4), timeout); n != 1 || err != nil {
				t.Errorf("%v: %d, %v", timeout, n, err)
			}
			done()
		}
	})
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield, cq.WaitNone} {
		name := "every-wait-object"
		conform(t, name+"/"+wait.String(), cq.Options{Size: 8, Wait: wait}, everyWaitObject)
	}
	conform(t, "why-it-ended", o, whySreadEnded)
	lossy := o
	lossy.Size, lossy.Overrun = 4, cq.OverrunQueue
	conform(t, "why-overrun", lossy, func(t *testing.T, r *rig) {
		r.post(t, 0, 4)
		wantErr(t, "one too many", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
		wantReason(t, "overrun", sreadsUntilError(t, r), cq.ErrOverrun)
		wantReason(t, "for ever", sreadsUntilError(t, r), cq.ErrOverrun)
	})
	conform(t, "why-corrupt", o, cqSreadWhyCorrupt)
}

func cqSreadWhyCorrupt(t *testing.T, r *rig) {
	if r.others {
		return // nobody can write to a lane but its writer: see TestOthersHostile
	}
	r.post(t, 0, 2)
	lane := r.laneObject(t)
	words := lane.section(t, cq.SectLane, 1)
	poke(words, 0, peek64(words, 0)+9) // a tail further away than the lane is long
	err := sreadsUntilError(t, r)
	wantReason(t, "corrupt", err, cq.ErrCorrupt)
	if bad := new(cq.LaneError); !errors.As(err, &bad) || bad.Lane != 1 {
		t.Errorf("it does not name the lane: %v", err)
	}
	other := r.attach(t)
	done := whenAsleep(t, r.q, func() { postTo(t, other, 7, 8) })
	if n, err := sread(r.q, make([]cq.Msg, 1), tooLong); n != 1 || err != nil {
		t.Errorf("another writer's: %d, %v", n, err)
	}
	done()
}

// everyWaitObject reads as fabtests does: by polling until the time is over where the queue cannot
// block, else blocking.
func everyWaitObject(t *testing.T, r *rig) {
	next := func(timeout time.Duration) (int, error) {
		dst := make([]cq.Msg, 4)
		if r.q.Options().Wait != cq.WaitNone {
			return sread(r.q, dst, timeout)
		}
		for end := time.Now().Add(timeout); ; {
			if n, err := cq.Read(r.q, dst); err != cq.ErrWouldBlock || time.Now().After(end) {
				return n, err
			}
			runtime.Gosched()
		}
	}
	for i := range uint64(6) {
		done := later(func() { r.post(t, i, i+1) })
		if n, err := next(tooLong); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		done()
	}
	_, err := next(time.Millisecond)
	wantErr(t, "nothing", err, syscall.EAGAIN)
}

// wantReason: every reason has an error of its own.
func wantReason(t *testing.T, what string, err, want error) {
	t.Helper()
	for _, e := range []error{cq.ErrTimedOut, cq.ErrSignaled, cq.ErrClosed, cq.ErrAvail, cq.ErrOverrun,
		cq.ErrCorrupt, cq.ErrPeerGone, context.Canceled, context.DeadlineExceeded} {
		same := e == want || want == cq.ErrTimedOut && e == context.DeadlineExceeded
		if errors.Is(err, e) != same {
			t.Errorf("%s: %v matches %v: %v", what, err, e, errors.Is(err, e))
		}
	}
}

// sreadsUntilError returns why a blocking read ended that had nothing to return.
func sreadsUntilError(t *testing.T, r *rig) error {
	t.Helper()
	for range 100 {
		if _, err := sread(r.q, make([]cq.Msg, 4), tooLong); err != nil {
			return err
		}
	}
	t.Fatal("it never ends")
	return nil
}

// laneObject opens the memory of the rig's writer, as only that could.
func (r *rig) laneObject(t *testing.T) scribbler {
	t.Helper()
	if r.memfd {
		return laneObject(t, 1)
	}
	return scribble(t, r.d, r.q.Name(), "lane-0001")
}

func whySreadEnded(t *testing.T, r *rig) {
	only := func(what string, err, want error) {
		t.Helper()
		wantReason(t, what, err, want)
	}
	dst := make([]cq.Msg, 4)
	_, err := sread(r.q, dst, time.Millisecond)
	only("time", err, cq.ErrTimedOut)
	must(t, r.q.Signal())
	_, err = sread(r.q, dst, -1)
	only("signal", err, cq.ErrSignaled)
	ctx, cancel := context.WithCancel(t.Context())
	done := whenAsleep(t, r.q, cancel)
	_, err = cq.ReadContext(ctx, r.q, dst, cq.ReadOptions{})
	only("cancelled", err, context.Canceled)
	done()
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	_, err = cq.ReadContext(ctx, r.q, dst, cq.ReadOptions{})
	only("deadline", err, context.DeadlineExceeded)
	cancel()
	r.postError(t, 1)
	_, err = sread(r.q, dst, -1)
	only("failure", err, cq.ErrAvail)
	must(t, r.q.ReadErr(&cq.ErrorEntry{}))
	done = whenAsleep(t, r.q, func() { must(t, r.q.Close()) })
	_, err = sread(r.q, dst, -1)
	only("closed", err, cq.ErrClosed)
	done()
}

// TestConformanceCQSignal is fi_cq_signal.
func TestConformanceCQSignal(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Spin: -1}
	conform(t, "ends-a-wait", o, cqSignalEndsAWait)
	conform(t, "before-the-wait", cq.Options{Size: 1}, func(t *testing.T, r *rig) {
		must(t, r.q.Signal())
		_, err := sread(r.q, make([]cq.Msg, 1), tooLong)
		wantErr(t, "sread", err, cq.ErrSignaled)
	})
	conform(t, "from-outside", o, func(t *testing.T, r *rig) {
		if r.memfd {
			wantErr(t, "without a name", cq.SignalQueue(cq.Named(r.d, r.q.Name())), fs.ErrNotExist)
			return
		}
		done := whenAsleep(t, r.q, func() { must(t, r.signalOutside(t)) })
		_, err := sread(r.q, make([]cq.Msg, 1), tooLong)
		wantErr(t, "sread", err, cq.ErrSignaled)
		done()
		must(t, r.signalOutside(t)) // before the wait
		_, err = sread(r.q, make([]cq.Msg, 1), tooLong)
		wantErr(t, "sread", err, cq.ErrSignaled)
	})
	conform(t, "coalesce", o, func(t *testing.T, r *rig) {
		for range 5 {
			must(t, r.q.Signal())
		}
		_, err := sread(r.q, make([]cq.Msg, 1), tooLong)
		wantErr(t, "first", err, cq.ErrSignaled)
		_, err = sread(r.q, make([]cq.Msg, 1), time.Millisecond)
		wantErr(t, "second", err, cq.ErrTimedOut)
	})
	conform(t, "zero-timeout-leaves-it", o, func(t *testing.T, r *rig) {
		must(t, r.q.Signal())
		_, err := sread(r.q, make([]cq.Msg, 1), 0)
		wantErr(t, "no time", err, cq.ErrTimedOut)
		r.post(t, 1, 2)
		if n, err := sread(r.q, make([]cq.Msg, 1), -1); n != 1 || err != nil {
			t.Errorf("an entry beats a signal: %d, %v", n, err)
		}
		_, err = sread(r.q, make([]cq.Msg, 1), -1)
		wantErr(t, "afterwards", err, cq.ErrSignaled)
	})
	conform(t, "without-wait-object", cq.Options{Wait: cq.WaitNone}, func(t *testing.T, r *rig) {
		wantErr(t, "signal", r.q.Signal(), cq.ErrNoWait, syscall.ENOSYS)
		wantErr(t, "signal all", r.q.SignalAll(), cq.ErrNoWait)
	})
	shared := cq.Options{Size: 8, Spin: -1, Shared: true}
	conform(t, "one-of-many-waiters", shared, func(t *testing.T, r *rig) {
		signaled, all := sleepers(t, r.q, 6)
		must(t, r.q.Signal())
		eventually(t, "one is told", func() bool { return signaled.Load() == 1 })
		time.Sleep(20 * time.Millisecond)
		if n := signaled.Load(); n != 1 {
			t.Errorf("one signal ended %d waits", n)
		}
		r.post(t, 0, 5) // one for each of the others
		all.Wait()
	})
	conform(t, "all", shared, func(t *testing.T, r *rig) {
		signaled, all := sleepers(t, r.q, 6)
		must(t, r.q.SignalAll())
		all.Wait()
		if n := signaled.Load(); n != 6 {
			t.Errorf("%d of 6 were told", n)
		}
		_, err := sread(r.q, make([]cq.Msg, 1), time.Millisecond)
		wantErr(t, "afterwards", err, cq.ErrTimedOut)
	})
}

func cqSignalEndsAWait(t *testing.T, r *rig) {
	for _, timeout := range []time.Duration{-1, tooLong} {
		done := whenAsleep(t, r.q, func() { must(t, r.q.Signal()) })
		n, err := sread(r.q, make([]cq.Msg, 4), timeout)
		if n != 0 {
			t.Errorf("%d entries", n)
		}
		wantErr(t, "sread", err, cq.ErrSignaled, syscall.EAGAIN)
		done()
	}
	r.post(t, 1, 2)
	wantContexts(t, "then", read(t, r.q, 4), 1)
}

// TestConformanceCQThreshold is wait_cond of fi_cq_attr and cond of fi_cq_sread.
func TestConformanceCQThreshold(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 16, Spin: -1}
	conform(t, "none", o, func(t *testing.T, r *rig) {
		defer whenAsleep(t, r.q, func() { r.post(t, 0, 1) })()
		n, err := sread(r.q, make([]cq.Msg, 8), tooLong, 0)
		if n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	})
	conform(t, "waits-for-the-number", o, func(t *testing.T, r *rig) {
		r.post(t, 0, 2)
		defer whenAsleep(t, r.q, func() {
			r.post(t, 2, 3)
			time.Sleep(5 * time.Millisecond)
			r.post(t, 3, 5)
		})()
		if n, err := atLeast(r.q, 5, tooLong); n != 5 || err != nil {
			t.Errorf("%d, %v; want 5", n, err)
		}
	})
	conform(t, "partial-at-the-deadline", cq.Options{Size: 64, Spin: -1}, func(t *testing.T, r *rig) {
		const timeout = 40 * time.Millisecond
		r.post(t, 0, 1)
		var stop atomic.Bool
		done := later(func() { // none of these may begin the time anew
			for i := uint64(1); i < 60 && !stop.Load(); i++ {
				r.post(t, i, i+1)
				time.Sleep(timeout / 2)
			}
		})
		begin := time.Now()
		n, err := atLeast(r.q, 64, timeout)
		if took := time.Since(begin); took < timeout {
			t.Errorf("over after %v", took)
		}
		if n < 1 || n >= 32 || err != nil {
			t.Errorf("%d, %v; want those that were there at the deadline", n, err)
		}
		stop.Store(true)
		done()
		_ = drain(t, r.q)
		_, err = atLeast(r.q, 5, time.Millisecond)
		wantErr(t, "nothing at the deadline", err, cq.ErrTimedOut)
	})
	conform(t, "error-ends-it", o, func(t *testing.T, r *rig) {
		r.post(t, 0, 1)
		defer whenAsleep(t, r.q, func() { r.postError(t, 1) })()
		if n, err := atLeast(r.q, 5, tooLong); n != 1 || err != nil {
			t.Errorf("%d, %v; want the one ahead of the error", n, err)
		}
		_, err := atLeast(r.q, 5, tooLong)
		wantErr(t, "then", err, cq.ErrAvail)
	})
	conform(t, "full-lane-ends-it", cq.Options{Size: 8, Spin: -1}, func(t *testing.T, r *rig) {
		_ = r.attach(t) // with room enough, in which nothing ever is
		r.post(t, 0, 8)
		if n, err := atLeast(r.q, 12, -1); n != 8 || err != nil {
			t.Errorf("full before: %d, %v; want 8", n, err)
		}
		r.post(t, 0, 7)
		defer whenAsleep(t, r.q, func() { r.post(t, 7, 8) })()
		if n, err := atLeast(r.q, 12, -1); n != 8 || err != nil {
			t.Errorf("full while it sleeps: %d, %v; want 8", n, err)
		}
	})
	none := cq.Options{Wait: cq.WaitNone}
	conform(t, "more-than-it-holds", cq.Options{Size: 4, Spin: -1}, func(t *testing.T, r *rig) {
		r.post(t, 0, 3)
		if n, err := atLeast(r.q, 1000, time.Millisecond); n != 3 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		done := whenAsleep(t, r.q, func() { r.post(t, 3, 7) })
		if n, err := atLeast(r.q, 1000, tooLong); n != 4 || err != nil {
			t.Errorf("a full lane: %d, %v", n, err)
		}
		done()
	})
	conform(t, "ignored-without-wait-object", none, func(t *testing.T, r *rig) {
		r.post(t, 0, 1)
		wantContexts(t, "a read", read(t, r.q, 4), 0)
		_, err := atLeast(r.q, 5, tooLong)
		wantErr(t, "a blocking read", err, cq.ErrNoWait)
	})
}

// TestConformanceCQOverrun is what becomes of entries for which there is no room.
func TestConformanceCQOverrun(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 4, Overrun: cq.OverrunQueue}
	conform(t, "state", o, func(t *testing.T, r *rig) {
		other := r.attach(t)
		r.post(t, 0, 4)
		postTo(t, other, 100, 102)
		wantErr(t, "one too many", r.w.Post(&cq.Entry{Context: 4}), cq.ErrOverrun, cq.EOverrun)
		got := overrun(t, r.q)
		slices.Sort(got)
		wantContexts(t, "what is valid", got, 0, 1, 2, 3, 100, 101)
		for range 3 {
			_, err := cq.Read(r.q, make([]cq.Msg, 1))
			wantErr(t, "read", err, cq.ErrOverrun, cq.EOverrun, syscall.EOVERFLOW)
			_, err = sread(r.q, make([]cq.Msg, 1), -1)
			wantErr(t, "sread", err, cq.ErrOverrun)
		}
	})
	published := o
	published.MaxLanes, published.Wait = 1, cq.WaitFD
	conform(t, "published", published, overrunPublished)
	conform(t, "final", o, func(t *testing.T, r *rig) {
		other := r.attach(t)
		r.post(t, 0, 4)
		wantErr(t, "one too many", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
		_ = overrun(t, r.q)
		wantErr(t, "the same writer", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
		wantErr(t, "another", other.Post(&cq.Entry{}), cq.ErrOverrun)
		late := r.attach(t)
		wantErr(t, "a new one", late.Post(&cq.Entry{}), cq.ErrOverrun)
		_, err := cq.Read(r.q, make([]cq.Msg, 1))
		wantErr(t, "read", err, cq.ErrOverrun)
	})
	conform(t, "back-pressure", cq.Options{Size: 4}, func(t *testing.T, r *rig) {
		r.post(t, 0, 4)
		for range 3 {
			wantErr(t, "no room", r.w.Post(&cq.Entry{}), cq.ErrFull, syscall.EAGAIN)
		}
		wantContexts(t, "two", read(t, r.q, 2), 0, 1)
		r.post(t, 4, 6)
		wantContexts(t, "nothing was lost", drain(t, r.q), 2, 3, 4, 5)
	})
	conform(t, "credits", cq.Options{Size: 4}, func(t *testing.T, r *rig) {
		must(t, r.w.Credit(2))
		r.post(t, 0, 2)
		wantErr(t, "room is promised", r.w.Post(&cq.Entry{}), cq.ErrFull)
		wantErr(t, "no more to promise", r.w.Credit(1), cq.ErrFull)
		must(t, r.w.PostCredited(&cq.Entry{Context: 2}))
		must(t, r.w.PostErrorCredited(&cq.ErrorEntry{Context: 3, Err: cq.ETrunc}))
		wantErr(t, "used up", r.w.PostCredited(&cq.Entry{}), cq.ErrNoCredit)
		if got := takeAll(t, r.q); !slices.Equal(got, []string{"0", "1", "2", "E3"}) {
			t.Errorf("got %v", got)
		}
	})
}

// overrunPublished: who comes after an overrun was read learns of it too: in the lane that was
// another writer's, in the reader's place, and from outside.
func overrunPublished(t *testing.T, r *rig) {
	r.post(t, 0, 4)
	wantErr(t, "one too many", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
	_ = overrun(t, r.q)
	must(t, r.w.Close())
	if !r.others { // else a lane ends with its writer
		late := r.attach(t)
		wantErr(t, "the next writer of the lane", late.Post(&cq.Entry{}), cq.ErrOverrun)
	}
	if r.memfd { // nobody else finds it
		return
	}
	if s := show(t, r.d, r.q.Name()); *s.State != ctl.StateOverrun {
		t.Errorf("from outside: %v", *s.State)
	}
	must(t, r.q.Detach())
	q, err := cq.Open(cq.Named(r.d, r.q.Name()), cq.Options{Existing: true})
	must(t, err)
	wantErr(t, "trywait: do not sleep", q.TryWait(), cq.ErrWouldBlock)
	_, err = sread(q, make([]cq.Msg, 1), -1)
	wantErr(t, "in the reader's place", err, cq.ErrOverrun)
	must(t, q.Close())
}
