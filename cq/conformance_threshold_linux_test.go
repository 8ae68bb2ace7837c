package cq_test

import (
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
)

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
	published.MaxLanes = 1
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
	q, err := cq.Adopt(r.d, r.q.Name(), cq.Options{})
	must(t, err)
	_, err = cq.Read(q, make([]cq.Msg, 1))
	wantErr(t, "in the reader's place", err, cq.ErrOverrun)
	must(t, q.Close())
}
