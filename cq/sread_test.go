package cq_test

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// blocking are the wait objects with which a queue can block.
var blocking = []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield}

func eachWait(t *testing.T, f func(t *testing.T, o cq.Options)) {
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) { f(t, cq.Options{Size: 8, Wait: wait, Spin: -1}) })
	}
}

func TestPeekContext(t *testing.T) {
	eachWait(t, func(t *testing.T, o cq.Options) {
		q, w := pair(t, o)
		defer later(func() { post(t, w, 7, 8) })()
		es, err := q.PeekContext(t.Context(), 4)
		if err != nil || len(es) != 1 || es[0].Context != 7 {
			t.Fatalf("%v, %v", es, err)
		}
		if _, err := q.PeekContext(t.Context(), 4); err != cq.ErrWouldBlock {
			t.Errorf("with entries out it does not wait: %v", err)
		}
		must(t, q.Release(1))
	})
}

// TestReadTimeoutUnderLoad blocks all the time while a writer posts in bursts of every length.
func TestReadTimeoutUnderLoad(t *testing.T) {
	shmtest.Long(t)
	const total = 8000
	for _, spin := range []time.Duration{-1, 0, time.Millisecond} {
		eachWait(t, func(t *testing.T, o cq.Options) {
			o.Spin = spin
			q, w := pair(t, o)
			var writers sync.WaitGroup
			writers.Go(func() {
				for i := uint64(0); i < total; {
					switch err := w.Post(&cq.Entry{Context: i}); err {
					case nil:
						i++
						if i%997 == 0 {
							time.Sleep(200 * time.Microsecond)
						}
					case cq.ErrFull:
						runtime.Gosched()
					default:
						t.Error(err)
						return
					}
				}
			})
			dst := make([]cq.Context, 5)
			for next := uint64(0); next < total; {
				n, err := sread(q, dst, time.Minute)
				must(t, err)
				if got := contexts(dst[:n]); !slices.Equal(got, upTo(next, next+uint64(n))) {
					t.Fatalf("got %v, want from %d", got, next)
				}
				next += uint64(n)
			}
			writers.Wait()
		})
	}
}

// atLeast waits for min entries into a buffer for 32.
func atLeast(q *cq.Queue, min int, timeout time.Duration) (int, error) {
	return sread(q, make([]cq.Context, 32), timeout, min)
}

// TestThresholdPart: whatever ends the wait, what is there is the result.
func TestThresholdPart(t *testing.T) {
	for name, end := range map[string]func(q *cq.Queue, cancel func()){
		"context":    func(_ *cq.Queue, cancel func()) { cancel() },
		"signal":     func(q *cq.Queue, _ func()) { _ = q.Signal() },
		"signal all": func(q *cq.Queue, _ func()) { _ = q.SignalAll() },
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 8, Spin: -1})
			post(t, w, 0, 2)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer repeatedly(func(uint64) { end(q, cancel) })()
			n, err := cq.ReadContext(ctx, q, make([]cq.Msg, 4), cq.ReadOptions{Threshold: 3})
			if n != 2 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

const short = 5 * time.Millisecond

func wait(q *cq.Queue, timeout time.Duration) error {
	_, err := sread(q, make([]cq.Context, 4), timeout)
	return err
}
