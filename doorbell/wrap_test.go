package doorbell

import (
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// TestWrapRungAnew: the number that was rung last comes again after 2^32 armings that nobody rang.
// A producer would take that arming for answered.
func TestWrapRungAnew(t *testing.T) {
	shmtest.Conforms(t)
	for name, last := range map[string]uint32{"last": 1<<32 - 1, "first": 0, "between": 77} {
		t.Run(name, func(t *testing.T) {
			q := heapQueue(t, 1)
			r := newReader(q, readerOptions{})
			w := q.writer(0, ring.SeqCst)
			if n := r.read(1); n != 0 {
				t.Fatal(n)
			}
			if more, err := r.Park(); more || err != nil {
				t.Fatal(more, err)
			}
			r.hints.rung.Store(uint64(last))
			r.seq = last - 1 // as 2^32 armings later, each of which ended by itself
			epoch := r.hints.epoch.Load()
			r.Sleep(Wait{DeadlineNs: spin.Now() + int64(10*time.Millisecond), Stop: func() bool {
				w.put(1) // between the arming and the sleep
				return false
			}})
			if r.hints.epoch.Load() == epoch {
				t.Error("the producer rang nobody")
			}
		})
	}
}
