package cq_test

import (
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
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

func TestReadTimeout(t *testing.T) {
	eachWait(t, func(t *testing.T, o cq.Options) {
		q, w := pair(t, o)
		dst := make([]cq.Context, 4)
		for _, timeout := range []time.Duration{0, 1, 20 * time.Millisecond} {
			begin := time.Now()
			n, err := sread(q, dst, timeout)
			if n != 0 || !errors.Is(err, cq.ErrTimedOut) {
				t.Fatalf("%v: %d, %v", timeout, n, err)
			}
			wantErr(t, timeout.String(), err, syscall.EAGAIN, os.ErrDeadlineExceeded)
			if took := time.Since(begin); took < timeout {
				t.Errorf("%v was over after %v", timeout, took)
			}
		}
		for _, timeout := range []time.Duration{0, -1, math.MaxInt64, math.MinInt64} {
			post(t, w, 0, 3)
			if n, err := sread(q, dst, timeout); n != 3 || err != nil {
				t.Errorf("%v with entries: %d, %v", timeout, n, err)
			}
		}
		for _, timeout := range []time.Duration{-1, math.MaxInt64, time.Hour} {
			wait := later(func() { post(t, w, 7, 8) })
			if n, err := sread(q, dst, timeout); n != 1 || err != nil || dst[0].Context != 7 {
				t.Errorf("%v with an entry later: %d, %v", timeout, n, err)
			}
			wait()
		}
	})
}

func TestReadContext(t *testing.T) {
	why := errors.New("no more interest")
	eachWait(t, func(t *testing.T, o cq.Options) {
		q, w := pair(t, o)
		dst := make([]cq.Context, 4)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer later(func() { cancel(why) })()
		_, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		wantErr(t, "cancelled", err, context.Canceled, why)
		_, err = q.PeekContext(ctx, 1)
		wantErr(t, "peek", err, context.Canceled, why)

		// What is there is returned although the context is over.
		post(t, w, 0, 2)
		if n, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{}); n != 2 || err != nil {
			t.Errorf("entries and a cancelled context: %d, %v", n, err)
		}
		post(t, w, 2, 3)
		es, err := q.PeekContext(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		must(t, q.Release(len(es)))

		ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer stop()
		_, err = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		wantErr(t, "deadline", err, context.DeadlineExceeded)
		if errors.Is(err, cq.ErrTimedOut) {
			t.Error("a context's deadline is not a timeout of ours")
		}
		ctx, stop2 := context.WithCancel(t.Context())
		stop2()
		_, err = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		wantErr(t, "cancelled before", err, context.Canceled)
	})
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

func TestWaitNone(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4, Wait: cq.WaitNone})
	dst := make([]cq.Msg, 1)
	_, err := sread(q, dst, time.Second)
	wantErr(t, "timeout", err, cq.ErrNoWait, syscall.ENOSYS)
	_, err = cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{})
	wantErr(t, "context", err, cq.ErrNoWait)
	_, err = q.PeekContext(t.Context(), 1)
	wantErr(t, "peek", err, cq.ErrNoWait)
	wantErr(t, "signal", q.Signal(), cq.ErrNoWait)
	wantErr(t, "signal all", q.SignalAll(), cq.ErrNoWait)
	wantErr(t, "trywait", q.TryWait(), cq.ErrNoWait)
	if waitFD(q) != -1 {
		t.Errorf("descriptor %d", waitFD(q))
	}
	post(t, w, 0, 1)
	_, err = sread(q, dst, time.Second)
	wantErr(t, "with an entry", err, cq.ErrNoWait)
	read(t, q, 1)
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
