package cq_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// wantOnly checks that err is every one of targets, and not EAGAIN.
func wantOnly(t *testing.T, what string, err error, targets ...error) {
	t.Helper()
	wantErr(t, what, err, targets...)
	if errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%s: %v is EAGAIN", what, err)
	}
}

// noError is must for goroutines that are not the test's.
func noError(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// TestCounterCloseWakesOthers: what an add of this process has not done yet when its handle is
// closed beside it, Close does.
func TestCounterCloseWakesOthers(t *testing.T) {
	_, c := counter(t, cq.CounterOptions{Spin: -1})
	other, err := cq.OpenCounterFD(c.ObjectFD(), cq.CounterOptions{})
	must(t, err)
	done := make(chan error)
	go func() { done <- cntrWait(c, 1, time.Minute) }()
	eventually(t, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	other.AddSilently(1)
	must(t, other.Close())
	must(t, <-done)
}

// TestCounterManyWaiters: one add wakes all whose threshold it reaches, in any number of goroutines
// and handles, and nobody else; no thread or goroutine is left.
func TestCounterManyWaiters(t *testing.T) {
	d, c := counter(t, cq.CounterOptions{Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{Spin: -1})
	before := runtime.NumGoroutine()
	const waiters = 500
	var low, high sync.WaitGroup
	for i := range waiters {
		at := []*cq.Counter{c, other}[i%2]
		low.Go(func() { noError(t, at.Wait(t.Context(), 10, cq.WaitOptions{})) })
		high.Go(func() { noError(t, at.Wait(t.Context(), uint64(11+i%3), cq.WaitOptions{})) })
	}
	eventually(t, "all wait", func() bool {
		return c.Stats().Waiters+other.Stats().Waiters == 2*waiters && c.Stats().Sleeps > 0 &&
			other.Stats().Sleeps > 0
	})
	for range 9 {
		must(t, c.Add(1))
	}
	if n := c.Stats().Rings; n != 0 {
		t.Errorf("%d adds that reach nobody's threshold wake", n)
	}
	must(t, c.Add(1))
	low.Wait()
	if n := c.Stats().Waiters + other.Stats().Waiters; n != waiters {
		t.Errorf("%d wait for more, want %d", n, waiters)
	}
	must(t, other.Set(100))
	high.Wait()
	eventually(t, "all are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestCounterWaitersComeAndGo has waiters that give up beside such that must be woken: a leader
// that leaves hands on.
func TestCounterWaitersComeAndGo(t *testing.T) {
	t.Parallel()
	d, c := counter(t, cq.CounterOptions{Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{Spin: -1})
	const last = 2000
	var all sync.WaitGroup
	for i := range 4 {
		at := []*cq.Counter{c, other}[i%2]
		all.Go(func() {
			for want := uint64(1); want <= last; want += uint64(1 + i) {
				noError(t, at.Wait(t.Context(), want, cq.WaitOptions{}))
			}
		})
		all.Go(func() {
			for v := uint64(0); v < last; v, _ = at.Read() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
				_ = at.Wait(ctx, v+10, cq.WaitOptions{})
				_ = cntrWait(at, v+1000, time.Duration(i)*50*time.Microsecond)
				cancel()
			}
		})
	}
	for i := range last {
		must(t, []*cq.Counter{c, other}[i%2].Add(1))
		if i%16 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		s := showCounter(t, d, c.Name())
		t.Fatalf("somebody was left asleep: %+v, %+v, %+v", s, c.Stats(), other.Stats())
	}
}
