package cq_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// eachCounterWait runs f with every wait object with which a counter can block, by name and by
// descriptor: c waits, other is a second handle.
func eachCounterWait(t *testing.T, f func(t *testing.T, c, other *cq.Counter)) {
	for _, wait := range blocking {
		o := cq.CounterOptions{Wait: wait, Spin: -1}
		t.Run(wait.String()+" named", func(t *testing.T) {
			d, c := counter(t, o)
			f(t, c, again(t, d, c.Name(), o))
		})
		t.Run(wait.String()+" memfd", func(t *testing.T) {
			c, err := cq.CreateAnonymousCounter("c", o)
			must(t, err)
			other, err := cq.OpenCounterFD(c.ObjectFD(), o)
			must(t, err)
			f(t, c, other)
			must(t, c.Close())
			must(t, other.Close())
		})
	}
}

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

func TestCounterWait(t *testing.T) {
	t.Parallel()
	eachCounterWait(t, func(t *testing.T, c, other *cq.Counter) {
		must(t, c.Add(5))
		must(t, c.Wait(t.Context(), 0, cq.WaitOptions{}))
		must(t, c.Wait(t.Context(), 5, cq.WaitOptions{}))
		must(t, cntrWait(c, 5, 0))
		for _, timeout := range []time.Duration{-1, time.Hour, 1<<63 - 1} {
			v, _ := c.Read()
			wait := later(func() { noError(t, other.Add(2)) })
			must(t, cntrWait(c, v+2, timeout))
			wait()
		}
		wait := later(func() { noError(t, other.Set(1<<63)) })
		must(t, c.Wait(t.Context(), 1<<62, cq.WaitOptions{}))
		wait()
		wait = later(func() { noError(t, other.Set(cq.MaxCounterValue)) })
		must(t, c.Wait(t.Context(), cq.MaxCounterValue, cq.WaitOptions{}))
		wait()
	})
}

func TestCounterWaitTimeout(t *testing.T) {
	t.Parallel()
	eachCounterWait(t, func(t *testing.T, c, _ *cq.Counter) {
		must(t, c.Add(1))
		for _, timeout := range []time.Duration{0, 1, 20 * time.Millisecond} {
			begin := time.Now()
			err := cntrWait(c, 2, timeout)
			wantOnly(t, timeout.String(), err, cq.ErrTimedOut, syscall.ETIMEDOUT,
				cq.Errno(syscall.ETIMEDOUT), os.ErrDeadlineExceeded)
			if took := time.Since(begin); took < timeout {
				t.Errorf("%v was over after %v", timeout, took)
			}
		}
	})
}

// TestCounterWaitError: only an error value that changed while it waits ends a wait, and a value
// that was reached comes first.
func TestCounterWaitError(t *testing.T) {
	t.Parallel()
	eachCounterWait(t, func(t *testing.T, c, other *cq.Counter) {
		must(t, c.AddErr(3))
		err := cntrWait(c, 1, 10*time.Millisecond)
		wantOnly(t, "an old error", err, cq.ErrTimedOut)
		stop := repeatedly(func(uint64) { noError(t, other.AddErr(1)) })
		wantOnly(t, "a new error", c.Wait(t.Context(), 1, cq.WaitOptions{}), cq.ErrAvail, cq.EAvail)
		stop()
		stop = repeatedly(func(n uint64) { noError(t, other.SetErr(1<<40-n)) })
		wantOnly(t, "an error was taken back", c.Wait(t.Context(), 1, cq.WaitOptions{}), cq.ErrAvail)
		stop()
		wait := later(func() {
			other.AddSilently(1)
			noError(t, other.AddErr(1))
		})
		must(t, c.Wait(t.Context(), 1, cq.WaitOptions{}))
		wait()
		must(t, cntrWait(c, 1, 0))
	})
}

func TestCounterWaitContext(t *testing.T) {
	t.Parallel()
	why := errors.New("no more interest")
	eachCounterWait(t, func(t *testing.T, c, other *cq.Counter) {
		ctx, cancel := context.WithCancelCause(t.Context())
		wait := later(func() { cancel(why) })
		wantOnly(t, "cancelled", c.Wait(ctx, 1, cq.WaitOptions{}), context.Canceled, why)
		wait()
		wantOnly(t, "cancelled before", c.Wait(ctx, 1, cq.WaitOptions{}), context.Canceled, why)
		must(t, other.Add(1))
		must(t, c.Wait(ctx, 1, cq.WaitOptions{})) // what was reached comes first
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer stop()
		err := c.Wait(ctx, 9, cq.WaitOptions{})
		wantOnly(t, "deadline", err, context.DeadlineExceeded)
		if errors.Is(err, cq.ErrTimedOut) {
			t.Error("a context's deadline is not a timeout of ours")
		}
	})
}

func TestCounterWaitNone(t *testing.T) {
	_, c := counter(t, cq.CounterOptions{Wait: cq.WaitNone})
	must(t, c.Add(1))
	for _, threshold := range []uint64{0, 1, 2} {
		wantErr(t, "wait", c.Wait(t.Context(), threshold, cq.WaitOptions{}), cq.ErrNoWait, syscall.ENOSYS)
		wantErr(t, "wait", cntrWait(c, threshold, 0), cq.ErrNoWait)
	}
	wantErr(t, "trywait", c.TryWait(), cq.ErrNoWait, syscall.ENOSYS)
	if waitFD(c) != -1 {
		t.Error(waitFD(c))
	}
}

func TestCounterCloseEndsWaits(t *testing.T) {
	eachCounterWait(t, func(t *testing.T, c, other *cq.Counter) {
		done := make(chan error, 5)
		for i := range cap(done) {
			go func() { done <- c.Wait(context.Background(), uint64(1+i), cq.WaitOptions{}) }()
		}
		time.Sleep(5 * time.Millisecond)
		must(t, c.Close())
		for range cap(done) {
			wantOnly(t, "closed", <-done, cq.ErrClosed, os.ErrClosed)
		}
		must(t, other.Add(1)) // it goes on
		must(t, other.Wait(t.Context(), 1, cq.WaitOptions{}))
	})
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
