package cq_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

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
	pong, err := cq.CreateCounter(cq.Named(d, "pong"), cq.CounterOptions{Spin: -1})
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
			"Read":         func() { _, _ = c.Read() },
			"ReadErr":      func() { _, _ = c.ReadErr() },
			"Add":          func() { _ = c.Add(1) },
			"AddErr":       func() { _ = c.AddErr(1) },
			"Set":          func() { _ = c.Set(1) },
			"SetErr":       func() { _ = c.SetErr(1) },
			"Wait":         func() { _ = c.Wait(ctx, 1, cq.WaitOptions{}) },
			"Wait in time": func() { _ = c.Wait(ctx, 1, cq.WaitOptions{Timeout: time.Hour}) },
		} {
			if n := testing.AllocsPerRun(200, call); n != 0 {
				t.Errorf("%v: %s: %v allocations", wait, name, n)
			}
		}
		must(t, c.Close())
	}
}

func init() { roles["echo"] = childEcho }

// childEcho answers each entry of a queue of its own with one in its parent's, as the same user
// over a socket that it got, or as another one.
func childEcho() {
	p := &Peer{user: number("OTHERS", 0) == 1}
	var err error
	if p.user {
		p.conn = dialParent()
	} else {
		p.conn, err = socket(3)
		need(err)
	}
	ctx, o := context.Background(), cq.Options{Size: 8, Spin: -1, Trust: p.options().Trust,
		Allow: p.options().Allow}
	w, err := cq.Attach(ctx, cq.Over(p.conn), p.options())
	need(err)
	q, err := cq.Create(cq.Unnamed("echo"), o)
	need(err)
	need(q.Accept(ctx, p.conn))
	dst := make([]cq.Context, 1)
	for {
		if _, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{}); err != nil || dst[0].Context == 0 {
			break
		}
		need(w.Post(&cq.Entry{Context: dst[0].Context}))
	}
	need(w.Close())
	need(q.Close())
}

// BenchmarkOthersRoundTrip is an entry to another process and one back, both sides asleep in
// between: of one user, and of two.
func BenchmarkOthersRoundTrip(b *testing.B) {
	for _, at := range []site{{memfd: true}, {memfd: true, others: true}} {
		b.Run(fmt.Sprint(at), func(b *testing.B) {
			q, err := cq.Create(cq.Unnamed("q"), at.queue(cq.Options{Size: 8, Spin: -1}))
			must(b, err)
			defer q.Close()
			p := &peer{user: at.others}
			var c *child
			if at.others {
				o := startOther(b, "echo", "OTHERS=1")
				c, p.conn = o.child, o.conn
			} else {
				c, p.conn = startIn(b, "echo", nil)
			}
			defer c.Kill()
			must(b, q.Accept(soon(b), p.conn))
			o := at.writer()
			o.Allow = bothUsers()
			w, err := cq.Attach(soon(b), cq.Over(p.conn), o)
			must(b, err)
			defer w.Close()
			dst := make([]cq.Context, 1)
			for b.Loop() {
				must(b, w.Post(&cq.Entry{Context: 1}))
				if _, err := cq.ReadContext(b.Context(), q, dst, cq.ReadOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			must(b, w.Post(&cq.Entry{}))
			_, _ = c.Out.ReadByte() // until it has ended
		})
	}
}
