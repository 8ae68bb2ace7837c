package doorbell

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/internal/spin"
)

// What a producer pays for the bell while the reader is awake: a publish alone, and with the look.
func BenchmarkPublished(b *testing.B) {
	for _, o := range orders {
		for _, batch := range []int{1, 32} {
			for _, bell := range []bool{false, true} {
				b.Run(fmt.Sprintf("%v/batch=%d/bell=%v", o, batch, bell), func(b *testing.B) {
					b.ReportAllocs()
					q := heapQueue(b, 1)
					r := newReader(q, readerOptions{order: o})
					w := q.writer(0, o)
					w.put(1)
					r.read(1)
					for b.Loop() {
						n := w.publish(batch)
						if bell && w.Published(w.prod.Tail(), 0) != 0 {
							b.Fatal("parked")
						}
						a, c := r.cons[0].Peek(n)
						r.cons[0].Release(len(a) + len(c))
					}
				})
			}
		}
	}
}

// What a reader pays to park a lane that was hot and find it empty.
func BenchmarkPark(b *testing.B) {
	for _, o := range orders {
		b.Run(o.String(), func(b *testing.B) {
			registered(b, o)
			b.ReportAllocs()
			q := heapQueue(b, 1)
			r := newReader(q, readerOptions{order: o})
			w := q.writer(0, o)
			for b.Loop() {
				w.put(1) // only a lane with something gets hot
				r.read(1)
				if more, err := r.Park(); more || err != nil {
					b.Fatal(more, err)
				}
			}
		})
	}
}

// A round trip between two readers that sleep: two wakes.
func BenchmarkWakeRoundTrip(b *testing.B) {
	for _, o := range orders {
		b.Run(o.String(), func(b *testing.B) {
			registered(b, o)
			b.ReportAllocs()
			there, back := heapQueue(b, 1), heapQueue(b, 1)
			done := make(chan struct{})
			go func() {
				defer close(done)
				r, w := newReader(there, readerOptions{order: o}), back.writer(0, o)
				for {
					if _, why := r.sread(1, Wait{}); why == gotSignal {
						return
					}
					w.put(1)
				}
			}()
			r, w := newReader(back, readerOptions{order: o}), there.writer(0, o)
			for b.Loop() {
				w.put(1)
				r.sread(1, Wait{})
			}
			Signal(there.arm, there.hints, nil, nil)
			<-done
		})
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		spin.Now()
	}
}
