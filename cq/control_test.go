package cq_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestGetWait asks for the wait object of queues of every kind.
func TestGetWait(t *testing.T) {
	for _, c := range []struct {
		wait cq.WaitObject
		get  error
	}{
		{cq.WaitNone, cq.ErrNoData},
		{cq.WaitUnspec, syscall.ENOSYS},
		{cq.WaitYield, syscall.ENOSYS},
		{cq.WaitInSet, syscall.ENOSYS},
		{cq.WaitFD, nil},
		{cq.WaitPollFD, nil},
		{cq.WaitMutexCond, nil},
	} {
		t.Run(c.wait.String(), func(t *testing.T) {
			o := cq.Options{Wait: c.wait}
			if c.wait == cq.WaitInSet {
				o.WaitSet = waitSet(t, openDir(t), cq.WaitSetOptions{})
			}
			_, q := create(t, o)
			if kind := q.Options().Wait; kind != c.wait {
				t.Errorf("kind: %v", kind)
			}
			n, err := q.GetWait()
			if !errors.Is(err, c.get) || n.Object != c.wait {
				t.Errorf("object: %+v, %v", n, err)
			}
			if err != nil {
				if n.FD != -1 {
					t.Errorf("descriptor %d", n.FD)
				}
				return
			}
			fd := c.wait == cq.WaitFD && n.FD == waitFD(q) && n.FD >= 0
			list := c.wait == cq.WaitPollFD && len(n.PollFDs) == 1 && n.PollFDs[0] == waitFD(q)
			cond := c.wait == cq.WaitMutexCond && n.Cond != nil && waitFD(q) == -1
			if !fd && !list && !cond {
				t.Errorf("object %+v, descriptor %d", n, waitFD(q))
			}
		})
	}
	d := openDir(t)
	_, err := cq.Create(d, "windows", cq.Options{Wait: cq.WaitCritSecCond})
	wantErr(t, "a Windows object", err, errors.ErrUnsupported)
	_, err = cq.Create(d, "beyond", cq.Options{Wait: cq.WaitCritSecCond + 1})
	wantErr(t, "no object", err, cq.ErrInvalid)
}

// TestAffinity: a hint that is read back, ignored unless it is valid.
func TestAffinity(t *testing.T) {
	_, q := create(t, cq.Options{Affinity: cq.Affinity{Valid: true, CPU: 1}})
	if a := q.Options().Affinity; !a.Valid || a.CPU != 1 {
		t.Errorf("%+v", a)
	}
	d := openDir(t)
	_, err := cq.Create(d, "negative", cq.Options{Affinity: cq.Affinity{Valid: true, CPU: -1}})
	wantErr(t, "no processor", err, cq.ErrInvalid)
	q, err = cq.Create(d, "ignored", cq.Options{Affinity: cq.Affinity{CPU: -1}})
	must(t, err)
	must(t, q.Close())
}

// TestMutexCond waits on a queue's and on a set's condition variable, and is woken by completions
// and by Close.
func TestMutexCond(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	q, w := member(t, d, "q", cq.Options{Wait: cq.WaitMutexCond})
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitMutexCond})
	inSet, v := member(t, d, "in set", cq.Options{}, s)
	for what, c := range map[string]struct {
		object interface {
			TryWait() error
			GetWait() (cq.Native, error)
		}
		q *cq.Queue
		w *cq.Writer
	}{"queue": {q, q, w}, "set": {s, inSet, v}} {
		n, err := c.object.GetWait()
		must(t, err)
		var got atomic.Uint64
		done := make(chan error)
		go func() {
			dst := make([]cq.Context, 4)
			for got.Load() < 100 {
				n.Cond.Lock()
				for c.object.TryWait() == nil {
					n.Cond.Wait()
				}
				n.Cond.Unlock()
				for k := 1; k > 0; {
					k, _ = cq.Read(c.q, dst)
					got.Add(uint64(k))
				}
			}
			done <- nil
		}()
		for i := range uint64(100) {
			eventually(t, fmt.Sprint(what, " reads ", i), func() bool { return got.Load() >= i })
			post(t, c.w, i, i+1)
		}
		<-done
	}
	q, err := cq.Create(d, "closing", cq.Options{Wait: cq.WaitMutexCond})
	must(t, err)
	n, err := q.GetWait()
	must(t, err)
	ended := make(chan error, 1) // Close takes the mutex, which is held here
	go func() {
		n.Cond.Lock()
		defer n.Cond.Unlock()
		for {
			if err := q.TryWait(); err != nil {
				ended <- err
				return
			}
			n.Cond.Wait()
		}
	}()
	time.Sleep(5 * time.Millisecond)
	must(t, q.Close())
	wantErr(t, "closed", <-ended, cq.ErrClosed)
}

// TestTryWaitMany: all of one kind, each armed; what cannot be slept on says so.
func TestTryWaitMany(t *testing.T) {
	d := openDir(t)
	a, wa := member(t, d, "a", cq.Options{Wait: cq.WaitFD})
	b, _ := member(t, d, "b", cq.Options{Wait: cq.WaitFD})
	plain, _ := member(t, d, "plain", cq.Options{})
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	in, wi := member(t, d, "in", cq.Options{}, s)
	must(t, cq.TryWait())
	must(t, cq.TryWait(a, b, s))
	wantErr(t, "mixed", cq.TryWait(a, plain), cq.ErrInvalid)
	wantErr(t, "nothing to sleep on", cq.TryWait(plain), cq.ErrNoWait)
	post(t, wa, 0, 1)
	wantErr(t, "something there", cq.TryWait(b, a, s), cq.ErrWouldBlock)
	drain(t, a)
	must(t, cq.TryWait(b, a, s))
	post(t, wi, 0, 1)
	wantErr(t, "something in the set", cq.TryWait(b, a, s), cq.ErrWouldBlock)
	drain(t, in)
	must(t, cq.TryWait(b, a, s))
}
