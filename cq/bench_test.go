package cq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// One goroutine posts and reads: what the calls themselves cost, without another CPU's cache.
func BenchmarkPostRead(b *testing.B) {
	for _, shared := range []bool{false, true} {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("shared=%v/batch=%d", shared, batch), func(b *testing.B) {
				q, w := pair(b, cq.Options{Size: 1024, Shared: shared})
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

func BenchmarkPeekRelease(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			q, w := pair(b, cq.Options{Size: 1024})
			es := make([]cq.Entry, batch)
			for b.Loop() {
				if _, err := w.PostBatch(es); err != nil {
					b.Fatal(err)
				}
				got, err := q.Peek(batch)
				if err != nil || q.Release(len(got)) != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// An empty queue, with many lanes that were written once.
func BenchmarkReadEmpty(b *testing.B) {
	for _, shared := range []bool{false, true} {
		for _, lanes := range []int{1, 16} {
			b.Run(fmt.Sprintf("shared=%v/lanes=%d", shared, lanes), func(b *testing.B) {
				d, q := create(b, cq.Options{Size: 8, Shared: shared})
				for range lanes {
					post(b, attach(b, d, q.Name()), 0, 1)
				}
				dst := make([]cq.Msg, 32)
				for b.Loop() {
					_, _ = cq.Read(q, dst)
				}
			})
		}
	}
}

// A reader that sleeps is woken and answers: two wakes, in one process.
func BenchmarkWakeRoundTrip(b *testing.B) {
	d, q := create(b, cq.Options{Size: 8, Spin: -1})
	w := attach(b, d, q.Name())
	back, err := cq.Create(d, "back", cq.Options{Size: 8, Spin: -1})
	must(b, err)
	answer := attach(b, d, "back")
	done := make(chan struct{})
	go func() {
		defer close(done)
		dst := make([]cq.Msg, 1)
		for {
			if _, err := sread(q, dst, -1); err != nil {
				return
			}
			_ = answer.Post(&cq.Entry{})
		}
	}()
	dst := make([]cq.Msg, 1)
	for b.Loop() {
		_ = w.Post(&cq.Entry{})
		if _, err := sread(back, dst, time.Minute); err != nil {
			b.Fatal(err)
		}
	}
	must(b, q.Close())
	<-done
	must(b, answer.Close())
	must(b, back.Close())
}
