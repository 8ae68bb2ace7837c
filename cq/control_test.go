package cq_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

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
