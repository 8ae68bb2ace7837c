package cq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

func BenchmarkCounter(b *testing.B) {
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		_, c := counter(b, cq.CounterOptions{Wait: wait})
		must(b, c.Set(1)) // what Wait waits for
		for name, call := range map[string]func(){
			"Read":    func() { _, _ = c.Read() },
			"ReadErr": func() { _, _ = c.ReadErr() },
			"Add":     func() { _ = c.Add(1) },
			"AddErr":  func() { _ = c.AddErr(1) },
			"Set":     func() { _ = c.Set(1) },
			"Wait":    func() { _ = cntrWait(c, 1, time.Hour) },
		} {
			b.Run(fmt.Sprintf("%s/%v", name, wait), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					call()
				}
			})
		}
		must(b, c.Close())
	}
}

// What a user writes, without a call through a function value.
func BenchmarkCounterRead(b *testing.B) {
	_, c := counter(b, cq.CounterOptions{})
	var sum uint64
	for b.Loop() {
		v, err := c.Read()
		if err != nil {
			b.Fatal(err)
		}
		sum += v
	}
}

func BenchmarkCounterReadErr(b *testing.B) {
	_, c := counter(b, cq.CounterOptions{})
	for b.Loop() {
		if _, err := c.ReadErr(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCounterAdd(b *testing.B) {
	_, c := counter(b, cq.CounterOptions{})
	for b.Loop() {
		if err := c.Add(1); err != nil {
			b.Fatal(err)
		}
	}
}

// An add while somebody sleeps for a value that is far away.
func BenchmarkCounterAddBelowThreshold(b *testing.B) {
	_, c := counter(b, cq.CounterOptions{Spin: -1})
	done := make(chan error)
	go func() { done <- c.Wait(b.Context(), 1<<62, cq.WaitOptions{}) }()
	eventually(b, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	for b.Loop() {
		_ = c.Add(1)
	}
	_ = c.Set(1 << 62)
	must(b, <-done)
}

// Two goroutines that sleep on two counters.
func BenchmarkCounterWakeRoundTrip(b *testing.B) {
	d, ping := counter(b, cq.CounterOptions{Spin: -1})
	pong, err := cq.CreateCounter(d, "pong", cq.CounterOptions{Spin: -1})
	must(b, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); cntrWait(ping, i, -1) == nil; i++ {
			_ = pong.Add(1)
		}
	}()
	var i uint64
	for b.Loop() {
		i++
		_ = ping.Add(1)
		must(b, cntrWait(pong, i, time.Minute))
	}
	must(b, ping.Close())
	<-done
	must(b, pong.Close())
}

func TestCounterNoAllocation(t *testing.T) {
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield} {
		_, c := counter(t, cq.CounterOptions{Wait: wait})
		ctx := t.Context()
		must(t, c.Set(1)) // what Wait waits for
		for name, call := range map[string]func(){
			"Read":          func() { _, _ = c.Read() },
			"ReadErr":       func() { _, _ = c.ReadErr() },
			"Add":           func() { _ = c.Add(1) },
			"AddErr":        func() { _ = c.AddErr(1) },
			"Set":           func() { _ = c.Set(1) },
			"SetErr":        func() { _ = c.SetErr(1) },
			"AddCompletion": func() { _ = c.AddCompletion(64) },
			"AddError":      func() { _ = c.AddError() },
			"Wait":          func() { _ = c.Wait(ctx, 1, cq.WaitOptions{}) },
			"Wait in time":  func() { _ = c.Wait(ctx, 1, cq.WaitOptions{Timeout: time.Hour}) },
		} {
			if n := testing.AllocsPerRun(200, call); n != 0 {
				t.Errorf("%v: %s: %v allocations", wait, name, n)
			}
		}
		must(t, c.Close())
	}
}
