package cq_test

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestConformanceCQWaitObject is wait_obj of fi_cq_attr.
func TestConformanceCQWaitObject(t *testing.T) {
	conform(t, "none", cq.Options{Wait: cq.WaitNone}, func(t *testing.T, r *rig) {
		_, err := sread(r.q, make([]cq.Msg, 1), -1)
		wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
		_, err = sreadFrom(r.q, make([]cq.Msg, 1), make([]cq.Addr, 1), -1)
		wantErr(t, "sreadfrom", err, cq.ErrNoWait)
		wantErr(t, "trywait", r.q.TryWait(), cq.ErrNoWait)
		r.post(t, 1, 2)
		wantContexts(t, "polled", read(t, r.q, 4), 1)
	})
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
		_, err = cq.Create(cq.Named(openDir(t), "beyond"), cq.Options{Wait: cq.WaitCritSecCond + 1})
		wantErr(t, "no object", err, cq.ErrInvalid)
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
	quiet := func() {
		t.Helper()
		for err := r.q.TryWait(); err != nil; err = r.q.TryWait() {
			wantErr(t, "trywait", err, cq.ErrWouldBlock)
			_ = drain(t, r.q)
		}
	}
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
