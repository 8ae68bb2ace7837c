package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
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
		done := whenAsleep(t, r.q, func() { r.post(t, 2, 3) })
		if n, err := sread(r.q, dst, tooLong); n != 1 || err != nil || dst[0].Context != 2 {
			t.Errorf("while it sleeps: %d, %v, %v", n, err, dst)
		}
		done()
		defer whenAsleep(t, r.q, func() { r.post(t, 3, 4) })()
		if es, err := r.q.PeekContext(t.Context(), 4); len(es) != 1 || es[0].Context != 3 {
			t.Fatalf("in place: %v, %v", es, err)
		}
		_, err := r.q.PeekContext(t.Context(), 4)
		wantErr(t, "with entries out it does not wait", err, cq.ErrWouldBlock)
		must(t, r.q.Release(1))
	})
	conform(t, "with-source", o, func(t *testing.T, r *rig) {
		defer whenAsleep(t, r.q, func() {
			shmtest.Got(r.w.PostBatch([]cq.Entry{{Context: 1, Src: cq.From(5)}, {Context: 2}})).Or(t)
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
	for _, spin := range []time.Duration{-1, time.Hour} { // looking ends in time too
		name := "timeout"
		conform(t, fmt.Sprint(name, "/", spin), cq.Options{Size: 8, Spin: spin}, sreadTimeout)
	}
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

func sreadTimeout(t *testing.T, r *rig) {
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

// onEachWait runs a case with each wait object with which a queue can block.
func onEachWait(t *testing.T, name string, o cq.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	for _, o.Wait = range blocking {
		conform(t, name+"/"+o.Wait.String(), o, f)
	}
}

// TestConformanceCQSignal is fi_cq_signal.
func TestConformanceCQSignal(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Spin: -1}
	onEachWait(t, "ends-a-wait", o, cqSignalEndsAWait)
	lone := o
	lone.MaxLanes = 1
	conform(t, "from-outside", lone, func(t *testing.T, r *rig) {
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
		if s := show(t, r.d, r.q.Name()); len(s.Lanes) != 2 || s.Bell.SignalPending {
			t.Errorf("a lane or the signal stayed: %+v", s)
		}
	})
	onEachWait(t, "before-the-wait", o, func(t *testing.T, r *rig) {
		for range 5 {
			must(t, r.q.Signal())
		}
		wantErr(t, "no time", wait(r.q, 0), cq.ErrTimedOut)
		r.post(t, 1, 2)
		if n, err := sread(r.q, make([]cq.Msg, 1), -1); n != 1 || err != nil {
			t.Errorf("an entry beats a signal: %d, %v", n, err)
		}
		r.postError(t, 2)
		wantErr(t, "so does a failure", wait(r.q, -1), cq.ErrAvail)
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		wantErr(t, "one for all", wait(r.q, tooLong), cq.ErrSignaled)
		wantErr(t, "a second", wait(r.q, time.Millisecond), cq.ErrTimedOut)
		must(t, r.q.Signal())
		_, err := r.q.PeekContext(t.Context(), 1)
		wantErr(t, "peek", err, cq.ErrSignaled)
	})
	shared := cq.Options{Size: 8, Spin: -1, Shared: true}
	conform(t, "one-of-many-waiters", shared, func(t *testing.T, r *rig) {
		const n = 5
		signaled, all := sleepers(t, r.q, n)
		for i := int64(1); i <= n; i++ {
			must(t, r.q.Signal())
			eventually(t, "one is told", func() bool { return signaled.Load() >= i })
			time.Sleep(2 * time.Millisecond) // room for a second one to be wrong
			if got := signaled.Load(); got != i {
				t.Fatalf("%d signals ended %d waits", i, got)
			}
		}
		all.Wait()
	})
	conform(t, "all", shared, func(t *testing.T, r *rig) {
		must(t, r.q.SignalAll()) // nobody waits
		signaled, all := sleepers(t, r.q, 6)
		if n := signaled.Load(); n != 0 {
			t.Errorf("%d were told before", n)
		}
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
		for _, threshold := range []int{0, 3} {
			done := whenAsleep(t, r.q, func() { must(t, r.q.Signal()) })
			n, err := sread(r.q, make([]cq.Msg, 4), timeout, threshold)
			if n != 0 {
				t.Errorf("%d entries", n)
			}
			wantErr(t, "sread", err, cq.ErrSignaled, syscall.EAGAIN)
			done()
		}
	}
	r.post(t, 1, 2)
	wantContexts(t, "then", read(t, r.q, 4), 1)
}

// sleepers has n goroutines sleep in a read of one entry and counts those that a signal ends. The
// queue's count of sleeps cannot say that all of them sleep: one sleeper may count twice.
func sleepers(t *testing.T, q *cq.Queue, n int) (signaled *atomic.Int64, all *sync.WaitGroup) {
	signaled, all = new(atomic.Int64), new(sync.WaitGroup)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	var asleep sync.WaitGroup
	asleep.Add(n)
	before := q.Stats().Sleeps
	for range n {
		all.Go(func() {
			told := sync.OnceFunc(asleep.Done)
			defer told()
			_, err := cq.ReadContext(sleeping{ctx, told}, q, make([]cq.Msg, 1), cq.ReadOptions{})
			switch err {
			case nil:
			case cq.ErrSignaled:
				signaled.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	asleep.Wait()
	eventually(t, "one sleeps", func() bool { return q.Stats().Sleeps > before })
	return signaled, all
}

// TestConformanceCQThreshold is wait_cond of fi_cq_attr and cond of fi_cq_sread.
func TestConformanceCQThreshold(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 16, Spin: -1}
	onEachWait(t, "none", o, func(t *testing.T, r *rig) {
		for _, least := range []int{0, 1, -4} {
			done := whenAsleep(t, r.q, func() { r.post(t, 0, 1) })
			if n, err := sread(r.q, make([]cq.Msg, 8), tooLong, least); n != 1 || err != nil {
				t.Errorf("%d: %d, %v", least, n, err)
			}
			done()
		}
	})
	onEachWait(t, "waits-for-the-number", o, thresholdWaits)
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
	onEachWait(t, "error-ends-it", o, func(t *testing.T, r *rig) {
		for _, asleep := range [][2]uint64{{1, 1}, {0, 1}, {0, 0}} { // what comes before the error
			r.post(t, 0, asleep[0])
			done := whenAsleep(t, r.q, func() { r.post(t, asleep[0], asleep[1]); r.postError(t, 1) })
			n, err := atLeast(r.q, 5, tooLong)
			if n != int(asleep[1]) || n > 0 && err != nil {
				t.Errorf("%d, %v; want what is ahead of the error", n, err)
			}
			for range 2 {
				_, err = atLeast(r.q, 5, tooLong)
				wantErr(t, "then", err, cq.ErrAvail)
			}
			must(t, r.q.ReadErr(&cq.ErrorEntry{}))
			done()
		}
	})
	onEachWait(t, "full-lane-ends-it", cq.Options{Size: 8, Spin: -1}, func(t *testing.T, r *rig) {
		other := r.attach(t)
		r.post(t, 0, 8)
		if n, err := atLeast(r.q, 12, -1); n != 8 || err != nil {
			t.Errorf("full before: %d, %v; want 8", n, err)
		}
		r.post(t, 0, 7)
		done := whenAsleep(t, r.q, func() { r.post(t, 7, 8) })
		if n, err := atLeast(r.q, 12, -1); n != 8 || err != nil {
			t.Errorf("full while it sleeps: %d, %v; want 8", n, err)
		}
		done()
		r.post(t, 0, 7)
		postTo(t, other, 0, 7)
		if n, err := atLeast(r.q, 16, time.Millisecond); n != 14 || err != nil {
			t.Errorf("there is room for more: %d, %v; want 14", n, err)
		}
	})
	few := cq.Options{Size: 4, MaxLanes: 2, Spin: -1}
	conform(t, "more-than-it-holds", few, func(t *testing.T, r *rig) {
		for _, least := range []int{12, 13, math.MaxInt} { // two lanes and the reader's own
			_, err := atLeast(r.q, least, 0)
			wantErr(t, "nothing", err, cq.ErrTimedOut)
			r.post(t, 0, 3)
			if n, err := atLeast(r.q, least, time.Millisecond); n != 3 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			done := whenAsleep(t, r.q, func() { r.post(t, 3, 7) })
			if n, err := atLeast(r.q, least, -1); n != 4 || err != nil {
				t.Errorf("a full lane: %d, %v", n, err)
			}
			done()
		}
	})
}

// thresholdWaits: entries that are there count, and those that come by one, of every lane.
func thresholdWaits(t *testing.T, r *rig) {
	for _, c := range []struct {
		least   int
		timeout time.Duration
		posts   uint64
	}{{3, -1, 3}, {3, -1, 5}, {3, 0, 2}, {3, time.Millisecond, 2}} {
		r.post(t, 0, c.posts)
		if n, err := atLeast(r.q, c.least, c.timeout); n != int(c.posts) || err != nil {
			t.Errorf("%+v: %d, %v", c, n, err)
		}
	}
	other := r.attach(t)
	for _, there := range []uint64{2, 5} { // of six: it sleeps also when it misses but one
		r.post(t, 0, there)
		done := whenAsleep(t, r.q, func() {
			ws := []sink{other, r.w}
			if there == 2 {
				ws = append(ws, r.attach(t)) // since the reader has armed
			}
			for i := range 6 - there {
				time.Sleep(time.Millisecond)
				postTo(t, ws[i%uint64(len(ws))], i, i+1)
			}
		})
		if n, err := atLeast(r.q, 6, tooLong); n != 6 || err != nil {
			t.Errorf("%d, %v; want 6", n, err)
		}
		done()
	}
}

// TestConformanceCQOverrun is what becomes of entries for which there is no room.
func TestConformanceCQOverrun(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 4, Overrun: cq.OverrunQueue}
	conform(t, "state", o, overrunState)
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
			wantErr(t, "batch", errOf(r.w.PostBatch(make([]cq.Entry, 2))), cq.ErrFull)
			wantErr(t, "error", r.w.PostError(&cq.ErrorEntry{}), cq.ErrFull)
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

// overrunState: what every lane published is read, then nothing works any more for anybody.
func overrunState(t *testing.T, r *rig) {
	other := r.attach(t)
	must(t, other.Credit(1))
	r.post(t, 0, 4)
	postTo(t, other, 100, 102)
	wantErr(t, "one too many", r.w.Post(&cq.Entry{Context: 4}), cq.ErrOverrun, cq.EOverrun)
	got := overrun(t, r.q)
	slices.Sort(got)
	wantContexts(t, "what is valid", got, 0, 1, 2, 3, 100, 101)
	dst := make([]cq.Msg, 1)
	for range 3 {
		for name, err := range map[string]error{
			"read":      errOf(cq.Read(r.q, dst)),
			"sread":     errOf(sread(r.q, dst, -1)),
			"threshold": errOf(sread(r.q, dst, -1, 3)),
			"peek":      errOf(r.q.Peek(1)),
			"wait":      errOf(r.q.PeekContext(t.Context(), 1)),
			"credited":  other.PostCredited(&cq.Entry{}),
		} {
			wantErr(t, name, err, cq.ErrOverrun, cq.EOverrun, syscall.EOVERFLOW)
		}
		wantErr(t, "readerr", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrWouldBlock)
		for _, w := range []sink{r.w, other} {
			wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrOverrun)
			wantErr(t, "error", w.PostError(&cq.ErrorEntry{}), cq.ErrOverrun)
			wantErr(t, "batch", errOf(w.PostBatch(make([]cq.Entry, 2))), cq.ErrOverrun)
			wantErr(t, "credit", w.Credit(1), cq.ErrOverrun)
		}
	}
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
	q := shmtest.Got(cq.Open(cq.Named(r.d, r.q.Name()), cq.Options{Existing: true})).Or(t)
	wantErr(t, "trywait: do not sleep", q.TryWait(), cq.ErrWouldBlock)
	_, err := sread(q, make([]cq.Msg, 1), -1)
	wantErr(t, "in the reader's place", err, cq.ErrOverrun)
	must(t, q.Close())
}
