package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
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
		defer whenAsleep(t, r.q, func() { r.postError(t, 9) })()
		n, err := sread(r.q, make([]cq.Msg, 4), tooLong)
		if n != 0 {
			t.Errorf("%d entries", n)
		}
		wantErr(t, "sread", err, cq.ErrAvail)
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
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
		r.post(t, 1, 2)
		if n, err := sread(r.q, make([]cq.Msg, 4), 0); n != 1 || err != nil {
			t.Errorf("no time, but an entry: %d, %v", n, err)
		}
	})
	conform(t, "negative-timeout", o, func(t *testing.T, r *rig) {
		defer whenAsleep(t, r.q, func() { r.post(t, 1, 2) })()
		if n, err := sread(r.q, make([]cq.Msg, 4), -1); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
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
			wantErr(t, "without a name", cq.SignalQueue(r.d, r.q.Name()), fs.ErrNotExist)
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
