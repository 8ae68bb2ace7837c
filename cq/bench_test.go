package cq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// One goroutine posts and reads: what the calls themselves cost, without another CPU's cache; what
// several goroutines at once cost (Options.Shared), and what the queue's own lane does.
func BenchmarkPostRead(b *testing.B) {
	for _, shared := range []bool{false, true} {
		for _, own := range []bool{false, true} {
			for _, batch := range []int{1, 32} {
				b.Run(fmt.Sprintf("shared=%v/own=%v/batch=%d", shared, own, batch), func(b *testing.B) {
					q, w := pair(b, cq.Options{Size: 1024, Shared: shared})
					if own {
						w = shmtest.Got(q.Writer()).Or(b)
						defer w.Close()
					}
					es, dst := make([]cq.Entry, batch), make([]cq.Msg, batch)
					for b.Loop() {
						if _, err := w.PostBatch(es); err != nil {
							b.Fatal(err)
						}
						if n, err := cq.Read(q, dst); n != batch {
							b.Fatal(n, err)
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/entry")
				})
			}
		}
	}
}

// A read that finds nothing in lanes which all had something just before; and one lane that is used
// while the others are not.
func BenchmarkLanes(b *testing.B) {
	for _, lanes := range []int{1, 16, 127, 256} {
		b.Run(fmt.Sprint("lanes=", lanes), func(b *testing.B) {
			d, q := create(b, cq.Options{Size: 2, MaxLanes: lanes})
			ws := make([]*cq.Writer, lanes)
			for i := range ws {
				ws[i] = attach(b, d, q.Name())
			}
			dst := make([]cq.Msg, 32)
			b.Run("empty", func(b *testing.B) { sweeps(b, q, ws, dst) })
			for range 10_000 { // until the others have cooled
				_, _ = cq.Read(q, dst)
			}
			b.Run("one", func(b *testing.B) {
				for b.Loop() {
					_ = ws[0].Post(&cq.Entry{})
					_, _ = cq.Read(q, dst)
				}
			})
		})
	}
}

func sweeps(b *testing.B, q *cq.Queue, ws []*cq.Writer, dst []cq.Msg) {
	const reads = 16
	var took time.Duration
	for b.Loop() {
		for _, w := range ws {
			_ = w.Post(&cq.Entry{})
		}
		for left := len(ws); left > 0; {
			n, _ := cq.Read(q, dst)
			left -= n
		}
		start := time.Now()
		for range reads {
			_, _ = cq.Read(q, dst)
		}
		took += time.Since(start)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*reads), "ns/read")
}

// TestNoAllocation: what runs once an entry does not allocate.
func TestNoAllocation(t *testing.T) {
	shmtest.Conforms(t)
	allocatesNothing(t)
}

func allocatesNothing(t *testing.T) {
	for _, format := range []cq.Format{cq.FormatMsg, cq.FormatTagged} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v shared %v", format, shared), func(t *testing.T) {
				d, q := create(t, cq.Options{Size: 64, Format: format, Shared: shared})
				w := attach(t, d, q.Name())
				own := shmtest.Got(q.Writer()).Or(t)
				for name, call := range hotCalls(t, q, w, own) {
					if n := testing.AllocsPerRun(200, call); n != 0 {
						t.Errorf("%s: %v allocations", name, n)
					}
				}
				must(t, own.Close())
			})
		}
	}
}

// TestEventAllocations: nor do events, with payloads, errors and peeks.
func TestEventAllocations(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	in := cq.Event{Event: cq.EventUser, Payload: make([]byte, 100)}
	out := cq.Event{Payload: make([]byte, 0, 100)}
	bad := cq.EventError{Err: cq.ETrunc, ErrData: make([]byte, 60)}
	got := cq.EventError{ErrData: make([]byte, 0, 60)}
	w := attachEvents(t, openDir(t), e.Name())
	for _, by := range []eventWriter{e, w} {
		n := testing.AllocsPerRun(1000, func() {
			_, _ = by.Write(&in)
			_, _ = e.Read(&out, cq.FlagPeek)
			_, _ = e.ReadContext(t.Context(), &out, cq.ReadOptions{})
			_, _ = by.WriteErr(&bad)
			_, _ = e.Read(&out, 0)
			_, _ = e.ReadErr(&got, 0)
			_, _ = e.Read(&out, 0)
			_, _ = e.ReadErr(&got, 0)
		})
		if n != 0 || len(got.ErrData) != 60 || len(out.Payload) != 100 {
			t.Errorf("%v allocations, %d and %d bytes", n, len(got.ErrData), len(out.Payload))
		}
	}
}

// hotCalls are the calls that a busy reader and writer make.
func hotCalls(t *testing.T, q *cq.Queue, w, own *cq.Writer) map[string]func() {
	entry, batch := &cq.Entry{Context: 1}, make([]cq.Entry, 8)
	dst, src, ctx := make([]cq.Msg, 16), make([]cq.Addr, 16), t.Context()
	fail, failed := &cq.ErrorEntry{Err: cq.ETrunc}, cq.ErrorEntry{ErrData: make([]byte, 8)}
	return map[string]func(){
		"Post and Read": func() {
			_ = w.Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"own lane": func() {
			_ = own.Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"PostBatch and ReadFrom": func() {
			_, _ = w.PostBatch(batch)
			_, _ = cq.ReadFrom(q, dst, src)
		},
		"Reserve, Commit, Peek, Release": func() {
			a, _, _ := w.Reserve(1)
			a[0] = *entry
			_ = w.Commit(1)
			es, _ := q.Peek(4)
			_ = q.Release(len(es))
		},
		"ReadContext in time": func() {
			_ = w.Post(entry)
			_, _ = cq.ReadContext(ctx, q, dst, cq.ReadOptions{Timeout: time.Second})
		},
		"ReadContext": func() {
			_ = w.Post(entry)
			_, _ = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		},
		"errors": func() {
			_ = w.PostError(fail)
			_, _ = cq.Read(q, dst)
			_ = q.ReadErr(&failed)
		},
		"credits": func() {
			_ = w.Credits().Add(1)
			_ = w.Credits().Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"nothing there": func() { _, _ = cq.Read(q, dst) },
		"full": func() {
			for w.Post(entry) == nil {
			}
			for n := 1; n > 0; {
				n, _ = cq.Read(q, dst)
			}
		},
	}
}

// TestCounterNoAllocation: nor do counters.
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
