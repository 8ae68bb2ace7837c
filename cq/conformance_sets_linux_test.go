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

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
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

func pollSet(t *testing.T, d *shm.Dir, ms ...cq.Waitable) *cq.PollSet {
	t.Helper()
	s := shmtest.Have(cq.NewPollSet(d, 0)).In(t)
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
		s := pollSet(t, r.d)
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
		s := pollSet(t, r.d)
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
		s := pollSet(t, r.d, qs[0].q, qs[1].q, qs[2].q)
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
	f := &feeder{again: -1}
	unbind := shmtest.Got(r.q.Bind(f, true)).Or(t)
	defer unbind()
	s := pollSet(t, r.d, r.q)
	before := f.calls.Load()
	_ = polled(t, s, 1)
	if f.calls.Load() == before {
		t.Error("the member's feeder was not driven")
	}
}

func pollSetCloseBusy(t *testing.T, r *rig) {
	s := pollSet(t, r.d, r.q)
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
		qs[1].post(t, 1, 2)
		seen := map[any]bool{}
		for range 6 { // those that do not fit come the next time
			if n, err := setWait(s, dst[:1], tooLong); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			seen[dst[0].UserContext()] = true
		}
		if len(seen) != 3 {
			t.Errorf("only %v had a turn", seen)
		}
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

// TestConformanceCQWaitObject is wait_obj of fi_cq_attr.
func TestConformanceCQWaitObject(t *testing.T) {
	conform(t, "yield", cq.Options{Wait: cq.WaitYield}, func(t *testing.T, r *rig) {
		defer later(func() { r.post(t, 1, 2) })()
		if n, err := sread(r.q, make([]cq.Msg, 1), -1); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if n := r.q.Stats().Sleeps; n != 0 {
			t.Errorf("it slept %d times", n)
		}
		defer later(func() { must(t, r.q.Signal()) })()
		_, err := sread(r.q, make([]cq.Msg, 1), -1)
		wantErr(t, "signal", err, cq.ErrSignaled)
	})
	conform(t, "mutex-cond", cq.Options{Wait: cq.WaitMutexCond}, mutexCond)
	conformOnce(t, "critsec", func(t *testing.T) {
		_, err := cq.Create(cq.Named(openDir(t), "windows"), cq.Options{Wait: cq.WaitCritSecCond})
		wantErr(t, "create", err, errors.ErrUnsupported)
	})
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		name := "set-ignored"
		conformOnce(t, name+"/"+wait.String(), func(t *testing.T) {
			s := waitSet(t, openDir(t), cq.WaitSetOptions{})
			q, w := pair(t, cq.Options{Wait: wait, WaitSet: s})
			wantErr(t, "it is no member", s.Remove(q), fs.ErrNotExist)
			post(t, w, 1, 2)
			if n, err := sread(q, make([]cq.Msg, 1), -1); n != 1 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
	eachSite(t, "set", queueSites, queueInSet)
	conformOnce(t, "no-set", func(t *testing.T) {
		_, err := cq.Create(cq.Named(openDir(t), "none"), cq.Options{Wait: cq.WaitInSet})
		wantErr(t, "without a set", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "WaitSet")
	})
	conformOnce(t, "misuse", waitObjectMisuse)
	conformOnce(t, "cannot-block", cannotBlock)
	conform(t, "fd", cq.Options{Wait: cq.WaitFD}, cqWaitObjectFD)
}

func cqWaitObjectFD(t *testing.T, r *rig) {
	ep := newEpoll(t, unix.EPOLLIN, r.q)
	quiet := func() { t.Helper(); armed(t, func() { _ = drain(t, r.q) }, r.q) }
	ready := func(ms int) (polled, selected, epolled bool) {
		err := error(unix.EINTR)
		for err == unix.EINTR { // nothing is there yet, and a signal came
			var set unix.FdSet
			set.Set(waitFD(r.q))
			tv := unix.NsecToTimeval(int64(ms) * 1e6)
			var n int
			n, err = unix.Select(waitFD(r.q)+1, &set, nil, &set, &tv)
			selected = n == 1
		}
		must(t, err)
		return readable(t, waitFD(r.q), ms), selected, len(ep.wait(ms)) == 1
	}
	for i := range uint64(3) {
		quiet()
		if a, b, c := ready(0); a || b || c {
			t.Errorf("readable with nothing there: %v %v %v", a, b, c)
		}
		r.post(t, i, i+1)
		if a, b, c := ready(20_000); !a || !b || !c {
			t.Errorf("not readable with an entry: %v %v %v", a, b, c)
		}
		if a, b, c := ready(20_000); !a || !b || !c {
			t.Errorf("not readable any more: %v %v %v", a, b, c)
		}
		wantContexts(t, "entry", read(t, r.q, 4), i)
	}
	quiet()
	r.postError(t, 9)
	if a, b, c := ready(20_000); !a || !b || !c {
		t.Errorf("not readable with a failure: %v %v %v", a, b, c)
	}
	must(t, r.q.ReadErr(&cq.ErrorEntry{}))
	quiet()
	must(t, r.q.SignalAll())
	if a, b, c := ready(20_000); !a || !b || !c {
		t.Errorf("not readable with a broadcast: %v %v %v", a, b, c)
	}
}

// mutexCond waits as C does on a mutex and a condition variable.
func mutexCond(t *testing.T, r *rig) {
	n, err := r.q.GetWait()
	if err != nil || n.Cond == nil {
		t.Fatalf("%+v, %v", n, err)
	}
	got := make(chan uint64)
	go func() {
		defer close(got)
		dst := make([]cq.Context, 4)
		for range 5 {
			n.Cond.L.Lock()
			for r.q.TryWait() == nil {
				n.Cond.Wait()
			}
			n.Cond.L.Unlock()
			k, err := cq.Read(r.q, dst)
			if err != nil && err != cq.ErrWouldBlock {
				t.Error(err)
				return
			}
			for _, e := range dst[:k] {
				got <- e.Context
				if e.Context == 4 {
					return
				}
			}
		}
	}()
	for i := range uint64(5) {
		r.post(t, i, i+1)
		select {
		case c := <-got:
			if c != i {
				t.Errorf("got %d, want %d", c, i)
			}
		case <-time.After(tooLong):
			t.Fatal("nobody was woken")
		}
	}
	<-got
	ended := make(chan error, 1) // Close takes the mutex, which is held here
	n.Cond.L.Lock()
	go func() {
		defer n.Cond.L.Unlock()
		for err = r.q.TryWait(); err == nil || errors.Is(err, cq.ErrWouldBlock); err = r.q.TryWait() {
			if err == nil {
				n.Cond.Wait()
			} else {
				_, _ = cq.Read(r.q, make([]cq.Msg, 4))
			}
		}
		ended <- err
	}()
	must(t, r.q.Close())
	wantErr(t, "closed", <-ended, cq.ErrClosed)
}

// queueInSet is a queue that was opened with a wait set.
func queueInSet(t *testing.T, at site, p *peer) {
	s := waitSet(t, openDir(t), cq.WaitSetOptions{})
	r := newRig(t, at, p, cq.Options{Wait: cq.WaitInSet, WaitSet: s})
	r.w = r.attach(t)
	_, err := sread(r.q, make([]cq.Msg, 1), -1)
	wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
	done := later(func() { r.post(t, 1, 2) })
	dst := make([]cq.Waitable, 2)
	for got := false; !got; { // the attaching of a lane may wake it too
		if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != r.q {
			t.Fatalf("%d, %v", n, err)
		}
		got = len(read(t, r.q, 2)) == 1
	}
	done()
	wantErr(t, "close of its set", s.Close(), cq.ErrBusy)
	r.post(t, 2, 3)
	if es, err := r.q.Peek(1); len(es) != 1 {
		t.Fatal(err)
	}
	wantErr(t, "close with a loan", r.q.Close(), cq.ErrBusy)
	wantErr(t, "a close that failed leaves it in", s.Add(r.q), fs.ErrExist)
	must(t, r.q.Release(1))
	must(t, r.q.Close())
	wantErr(t, "in its set", s.Remove(r.q), fs.ErrNotExist)

	second, other := r.another(t, 1, cq.Options{Wait: cq.WaitInSet, WaitSet: s}).q, waitSet(t, r.d,
		cq.WaitSetOptions{})
	must(t, other.Add(second))
	wantErr(t, "close in both sets", second.Close(), cq.ErrBusy)
	must(t, s.Remove(second))
	if err := second.Close(); !errors.Is(err, cq.ErrBusy) {
		t.Fatalf("the other set has a queue without memory: %v", err)
	}
	must(t, other.Remove(second))
}

// waitObjectMisuse: with every wait object, the calls that it has nothing for are ENOSYS, ENODATA
// where there is no wait object at all, and the others are not.
func waitObjectMisuse(t *testing.T) {
	d := openDir(t)
	set := waitSet(t, d, cq.WaitSetOptions{})
	for _, c := range []struct {
		wait                       cq.WaitObject
		sread, tryWait, fd, signal bool
		control                    error
	}{
		{wait: cq.WaitNone, control: syscall.ENODATA},
		{wait: cq.WaitUnspec, sread: true, signal: true, control: syscall.ENOSYS},
		{wait: cq.WaitYield, sread: true, signal: true, control: syscall.ENOSYS},
		{wait: cq.WaitFD, sread: true, tryWait: true, fd: true, signal: true},
		{wait: cq.WaitPollFD, sread: true, tryWait: true, fd: true, signal: true},
		{wait: cq.WaitMutexCond, sread: true, tryWait: true, signal: true},
		{wait: cq.WaitInSet, signal: true, control: syscall.ENOSYS},
	} {
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: c.wait, WaitSet: set})
		must(t, err)
		check := func(call string, err error, can bool, want, cannot error) {
			t.Helper()
			if can {
				cannot = want
			}
			if !errors.Is(err, cannot) || !can && cannot == nil {
				t.Errorf("%v: %s: %v, want %v", c.wait, call, err, cannot)
			}
		}
		_, err = sread(q, make([]cq.Msg, 1), time.Millisecond)
		check("sread", err, c.sread, cq.ErrTimedOut, syscall.ENOSYS)
		check("trywait", q.TryWait(), c.tryWait, nil, syscall.ENOSYS)
		_, err = q.GetWait()
		check("getwait", err, c.control == nil, nil, c.control)
		check("signal", q.Signal(), c.signal, nil, syscall.ENOSYS)
		check("signal all", q.SignalAll(), c.signal, nil, syscall.ENOSYS)
		if n, err := q.GetWait(); err != nil && n.FD != -1 {
			t.Errorf("%v: %+v, %v", c.wait, n, err)
		}
		if (waitFD(q) >= 0) != c.fd {
			t.Errorf("%v: descriptor %d", c.wait, waitFD(q))
		}
		must(t, q.Close())
	}
}

// cannotBlock: whatever is there, a blocking read of a queue that cannot block is refused, and
// takes nothing.
func cannotBlock(t *testing.T) {
	d := openDir(t)
	set := waitSet(t, d, cq.WaitSetOptions{})
	for _, wait := range []cq.WaitObject{cq.WaitNone, cq.WaitInSet} {
		q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8, Wait: wait, WaitSet: set})).Or(t)
		w := attach(t, d, q.Name())
		e := shmtest.Got(cq.CreateEvents(cq.Named(d, "e"), cq.EventOptions{Wait: wait, WaitSet: set,
			Write: true})).Or(t)
		dst, src, ctx, ev := make([]cq.Msg, 2), make([]cq.Addr, 2), t.Context(), &cq.Event{}
		calls := map[string]func(d time.Duration) (int, error){
			"sread":     func(d time.Duration) (int, error) { return sread(q, dst, d) },
			"sreadfrom": func(d time.Duration) (int, error) { return sreadFrom(q, dst, src, d) },
			"threshold": func(d time.Duration) (int, error) {
				return sread(q, dst, d, 2)
			},
			"context": func(time.Duration) (int, error) {
				return cq.ReadContext(ctx, q, dst,
					cq.ReadOptions{})
			},
			"context from": func(time.Duration) (int, error) {
				return cq.ReadContext(ctx, q, dst, cq.ReadOptions{Source: src})
			},
			"peek": func(time.Duration) (int, error) {
				es, err := q.PeekContext(ctx, 1)
				return len(es), err
			},
			"no room": func(d time.Duration) (int, error) {
				return sread[cq.Msg](q, nil, d)
			},
			"event":            func(d time.Duration) (int, error) { return eqSread(e, ev, d) },
			"peek at an event": func(d time.Duration) (int, error) { return eqSread(e, ev, d, cq.FlagPeek) },
			"event, context": func(time.Duration) (int,
				error) {
				return e.ReadContext(ctx, ev, cq.ReadOptions{})
			},
			"peek at an event, context": func(time.Duration) (int, error) {
				return e.ReadContext(ctx, ev, cq.ReadOptions{Flags: cq.FlagPeek})
			},
		}
		refused := func(state string) {
			for name, call := range calls {
				for _, timeout := range []time.Duration{-1, 0, time.Millisecond} {
					n, err := call(timeout)
					wantErr(t, name+" "+state, err, cq.ErrNoWait, syscall.ENOSYS)
					if n != 0 {
						t.Errorf("%v: %s %s: %d", wait, name, state, n)
					}
				}
			}
		}
		refused("without entries")
		post(t, w, 0, 2)
		writeEvents(t, e, 0, 2)
		refused("with entries")
		wantContexts(t, "entries", read(t, q, 4), 0, 1)
		wantContexts(t, "events", drainEvents(t, e), 0, 1)
		postError(t, w, 1)
		shmtest.Got(e.WriteErr(&cq.EventError{Err: cq.EOther})).Or(t)
		refused("with an error")
		must(t, q.ReadErr(&cq.ErrorEntry{}))
		shmtest.Got(e.ReadErr(&cq.EventError{}, 0)).Or(t)
		must(t, w.Close())
		must(t, errors.Join(q.Close(), e.Close()))
	}
}
