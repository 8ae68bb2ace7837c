package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// another is one more queue with a writer at the rig's site; its user context is n.
func (r *rig) another(t *testing.T, n int, o cq.Options) *rig {
	t.Helper()
	o.UserContext = n
	out := *r
	out.q = r.createAs(t, fmt.Sprint("another-", n), o)
	out.w = out.attach(t)
	return &out
}

// group is a poll set or a wait set.
type group interface {
	Add(cq.Waitable) error
	Remove(cq.Waitable) error
	Close() error
}

// addTo makes members of a set until the test ends.
func addTo(t *testing.T, s group, ms ...cq.Waitable) {
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

func pollSet(t *testing.T, r *rig, ms ...cq.Waitable) *cq.PollSet {
	t.Helper()
	s := shmtest.Have(cq.NewPollSet(r.d, 0)).In(t)
	addTo(t, s, ms...)
	return s
}

// polled returns the contexts of the members that a poll with room for n returned.
func polled(t *testing.T, s *cq.PollSet, n int) []int {
	t.Helper()
	dst := make([]cq.Waitable, n)
	k := shmtest.Got(s.Poll(dst)).Or(t)
	var out []int
	for _, m := range dst[:k] {
		out = append(out, m.UserContext().(int))
	}
	slices.Sort(out)
	return out
}

func wantReady(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: ready are %v, want %v", what, got, want)
	}
}

// TestConformancePollSet is fi_poll and what belongs to it.
func TestConformancePollSet(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, UserContext: 0, Wait: cq.WaitNone}
	conformOnce(t, "flags", func(t *testing.T) {
		_, err := cq.NewPollSet(openDir(t), 1)
		wantErr(t, "flags", err, cq.ErrInvalid, syscall.EINVAL)
	})
	conform(t, "close", o, pollSetClose)
	conform(t, "close-busy", o, pollSetCloseBusy)
	conform(t, "add-and-delete", o, func(t *testing.T, r *rig) {
		s := pollSet(t, r)
		other := r.another(t, 1, o)
		r.post(t, 1, 2) // before it is a member
		addTo(t, s, r.q, other.q)
		wantErr(t, "twice", s.Add(r.q), fs.ErrExist, syscall.EEXIST)
		wantReady(t, "what was there", polled(t, s, 4), 0)
		other.post(t, 1, 2)
		wantReady(t, "both", polled(t, s, 4), 0, 1)
		must(t, s.Remove(r.q))
		wantReady(t, "one is out", polled(t, s, 4), 1)
		wantErr(t, "remove twice", s.Remove(r.q), fs.ErrNotExist)
		must(t, s.Add(r.q))
		wantReady(t, "in again", polled(t, s, 4), 0, 1)
	})
	conform(t, "progress", o, pollSetProgress)
	conform(t, "contexts", o, func(t *testing.T, r *rig) {
		qs := []*rig{r, r.another(t, 1, o), r.another(t, 2, o)}
		s := pollSet(t, r)
		wantReady(t, "an empty set", polled(t, s, 4))
		addTo(t, s, qs[0].q, qs[1].q, qs[2].q)
		if n, err := s.Poll(nil); n != 0 || err != nil {
			t.Errorf("without room: %d, %v", n, err)
		}
		wantReady(t, "all empty", polled(t, s, 4))
		qs[2].post(t, 1, 2)
		for range 2 { // it is ready until it was read
			wantReady(t, "one", polled(t, s, 4), 2)
		}
		qs[0].postError(t, 9)
		wantReady(t, "with a failure", polled(t, s, 4), 0, 2)
		_ = takeAll(t, qs[0].q)
		_ = takeAll(t, qs[2].q)
		wantReady(t, "read", polled(t, s, 4))
	})
	conform(t, "short-array-of-queues", o, func(t *testing.T, r *rig) {
		qs := []*rig{r, r.another(t, 1, o), r.another(t, 2, o)}
		s := pollSet(t, r, qs[0].q, qs[1].q, qs[2].q)
		for _, q := range qs {
			q.post(t, 1, 2)
		}
		seen := map[int]bool{}
		for range 3 {
			for _, n := range polled(t, s, 1) {
				seen[n] = true
				_ = takeAll(t, qs[n].q)
			}
		}
		if len(seen) != 3 {
			t.Errorf("only %v had a turn", seen)
		}
		wantReady(t, "then", polled(t, s, 4))
	})
}

func pollSetProgress(t *testing.T, r *rig) {
	f := &fed{}
	unbind := shmtest.Got(r.q.Bind(f, true)).Or(t)
	defer unbind()
	s := pollSet(t, r, r.q)
	before := f.progressed.Load()
	_ = polled(t, s, 1)
	if f.progressed.Load() == before {
		t.Error("the member's feeder was not driven")
	}
}

func pollSetCloseBusy(t *testing.T, r *rig) {
	s := pollSet(t, r, r.q)
	wantErr(t, "close", s.Close(), cq.ErrBusy, syscall.EBUSY)
	wantErr(t, "close of a member", r.q.Close(), cq.ErrBusy, syscall.EBUSY)
	r.post(t, 1, 2)
	wantReady(t, "it goes on", polled(t, s, 4), 0)
	must(t, s.Remove(r.q))
	must(t, s.Close())
}

func pollSetClose(t *testing.T, r *rig) {
	s := shmtest.Got(cq.NewPollSet(r.d, 0)).Or(t)
	must(t, s.Close())
	_, err := s.Poll(make([]cq.Waitable, 1))
	wantErr(t, "poll", err, cq.ErrClosed)
	wantErr(t, "add", s.Add(r.q), cq.ErrClosed)
}

// TestConformanceWaitSet is fi_wait_open and fi_wait.
func TestConformanceWaitSet(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, UserContext: 0}
	conformOnce(t, "wait-objects", waitSetWaitObjects)
	conformOnce(t, "flags", func(t *testing.T) {
		_, err := cq.NewWaitSet(openDir(t), cq.WaitSetOptions{Flags: 1})
		wantErr(t, "flags", err, cq.ErrInvalid, syscall.EINVAL)
	})
	conform(t, "several-queues", o, func(t *testing.T, r *rig) {
		qs := []*rig{r, r.another(t, 1, o), r.another(t, 2, o)}
		s := waitSet(t, r.d, cq.WaitSetOptions{})
		addTo(t, s, qs[0].q, qs[1].q, qs[2].q)
		for i := range uint64(12) {
			q := qs[i%3]
			done := later(func() { q.post(t, i, i+1) })
			dst := make([]cq.Waitable, 3)
			for range 2 { // it stays ready until it was found empty
				if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != q.q {
					t.Errorf("%d: %d, %v, %v", i, n, err, dst[0])
				}
			}
			done()
			wantContexts(t, "entry", drain(t, q.q), i)
		}
	})
	conform(t, "who-is-ready", o, func(t *testing.T, r *rig) {
		qs := []*rig{r, r.another(t, 1, o), r.another(t, 2, o)}
		s := waitSet(t, r.d, cq.WaitSetOptions{})
		addTo(t, s, qs[0].q, qs[1].q, qs[2].q)
		qs[0].post(t, 1, 2)
		qs[2].post(t, 1, 2)
		dst := make([]cq.Waitable, 3)
		n := shmtest.Got(setWait(s, dst, tooLong)).Or(t)
		var got []int
		for _, m := range dst[:n] {
			got = append(got, m.UserContext().(int))
		}
		slices.Sort(got)
		wantReady(t, "two of three", got, 0, 2)
	})
	conform(t, "mixed-members", o, mixedMembers)
	conform(t, "timeout", o, waitSetTimeout)
	conform(t, "close", o, func(t *testing.T, r *rig) {
		s := shmtest.Got(cq.NewWaitSet(r.d, cq.WaitSetOptions{})).Or(t)
		done := later(func() { must(t, s.Close()) })
		_, err := setWait(s, make([]cq.Waitable, 1), -1)
		wantErr(t, "a wait that it ends", err, cq.ErrClosed)
		done()
		_, err = setWait(s, make([]cq.Waitable, 1), -1)
		wantErr(t, "a later one", err, cq.ErrClosed, os.ErrClosed)
		wantErr(t, "add", s.Add(r.q), cq.ErrClosed)
	})
	conform(t, "close-busy", o, func(t *testing.T, r *rig) {
		s := waitSet(t, r.d, cq.WaitSetOptions{})
		addTo(t, s, r.q)
		wantErr(t, "a member", s.Add(r.q), fs.ErrExist)
		wantErr(t, "close", s.Close(), cq.ErrBusy, syscall.EBUSY)
		wantErr(t, "close of a member", r.q.Close(), cq.ErrBusy, syscall.EBUSY)
		must(t, s.Remove(r.q))
		none := r.another(t, 1, cq.Options{Wait: cq.WaitNone})
		wantErr(t, "a queue that cannot wait", s.Add(none.q), cq.ErrNoWait)
	})
}

func waitSetWaitObjects(t *testing.T) {
	d := openDir(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitPollFD, cq.WaitMutexCond} {
		s := waitSet(t, d, cq.WaitSetOptions{Wait: wait})
		if n, err := s.GetWait(); n.Object != wait || (err == nil) != (wait != cq.WaitUnspec) {
			t.Errorf("%v: %+v, %v", wait, n, err)
		}
		if wait == cq.WaitUnspec {
			wantErr(t, "getwait", errOf(s.GetWait()), syscall.ENOSYS)
			wantErr(t, "trywait", s.TryWait(), cq.ErrNoWait)
			if waitFD(s) != -1 {
				t.Error("a set without a descriptor has one")
			}
		}
	}
	for _, wait := range []cq.WaitObject{cq.WaitNone, cq.WaitYield, cq.WaitInSet, 99} {
		_, err := cq.NewWaitSet(d, cq.WaitSetOptions{Wait: wait})
		wantErr(t, wait.String(), err, cq.ErrInvalid)
	}
	_, err := cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitCritSecCond})
	wantErr(t, "a Windows object", err, errors.ErrUnsupported)
}

func waitSetTimeout(t *testing.T, r *rig) {
	s := waitSet(t, r.d, cq.WaitSetOptions{})
	addTo(t, s, r.q)
	for _, timeout := range []time.Duration{0, 20 * time.Millisecond} {
		begin := time.Now()
		n, err := setWait(s, make([]cq.Waitable, 1), timeout)
		wantErr(t, "wait", err, cq.ErrTimedOut, syscall.ETIMEDOUT, os.ErrDeadlineExceeded)
		if took := time.Since(begin); n != 0 || took < timeout {
			t.Errorf("%d members after %v of %v", n, took, timeout)
		}
	}
}

// mixedMembers has a completion queue and an event queue in one set.
func mixedMembers(t *testing.T, r *rig) {
	e := shmtest.Have(cq.CreateEvents(cq.Named(r.d, "events"),
		cq.EventOptions{Size: 4, Write: true, UserContext: 7})).In(t)
	s := waitSet(t, r.d, cq.WaitSetOptions{})
	addTo(t, s, r.q, e)
	dst := make([]cq.Waitable, 2)
	for i := range uint64(6) {
		want, write := cq.Waitable(r.q), func() { r.post(t, i, i+1) }
		if i%2 == 0 {
			want, write = e, func() { writeEvents(t, e, i, i+1) }
		}
		done := later(write)
		if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != want {
			t.Errorf("%d: %d, %v, %v", i, n, err, dst[0])
		}
		done()
		if i%2 == 0 {
			wantContexts(t, "event", drainEvents(t, e), i)
		} else {
			wantContexts(t, "entry", drain(t, r.q), i)
		}
	}
}
