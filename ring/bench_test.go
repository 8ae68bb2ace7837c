package ring_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/ring"
)

// slot is as large as a completion.
type slot [8]uint64

func eachKind(b *testing.B, f func(b *testing.B, o ring.Order, batch int)) {
	for _, o := range orders {
		for _, batch := range []int{1, 32} {
			b.Run(fmt.Sprintf("%v/batch=%d", o, batch), func(b *testing.B) {
				b.ReportAllocs()
				f(b, o, batch)
			})
		}
	}
}

func newBig(o ring.Order) (*ring.Producer[slot], *ring.Consumer[slot]) {
	const capacity = 4096
	var words struct {
		tail ring.Index
		_    [120]byte
		head ring.Index
		_    [120]byte
	}
	slots := make([]slot, capacity)
	return ring.NewProducer(&words.tail, &words.head, slots, 0, o),
		ring.NewConsumer(&words.tail, &words.head, slots, 0)
}

func publish(p *ring.Producer[slot], n int, v uint64) int {
	x, y := p.Reserve(n)
	for i := range x {
		x[i][0], x[i][7] = v, v
	}
	for i := range y {
		y[i][0], y[i][7] = v, v
	}
	p.Commit(len(x) + len(y))
	return len(x) + len(y)
}

func take(c *ring.Consumer[slot], n int) (k int, sum uint64) {
	x, y := c.Peek(n)
	for i := range x {
		sum += x[i][0] + x[i][7]
	}
	for i := range y {
		sum += y[i][0] + y[i][7]
	}
	c.Release(len(x) + len(y))
	return len(x) + len(y), sum
}

// One goroutine does both, so that the cost is that of the code and not of moving cache lines.
func BenchmarkRingOneThread(b *testing.B) {
	eachKind(b, func(b *testing.B, o ring.Order, batch int) {
		p, c := newBig(o)
		var sum uint64
		for b.Loop() {
			publish(p, batch, 1)
			_, s := take(c, batch)
			sum += s
		}
		if sum == 0 {
			b.Fatal("nothing was read")
		}
		b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds()/1e6, "Mops/s")
	})
}

func TestNoAllocations(t *testing.T) {
	for _, o := range orders {
		p := newPair(64, 1<<32-1, o)
		var sum int
		for name, f := range map[string]func(){
			"publish and read": func() {
				a, b := p.prod.Reserve(5)
				p.prod.Commit(len(a) + len(b))
				a, b = p.cons.Peek(5)
				p.cons.Release(len(a) + len(b))
			},
			"look": func() {
				sum += p.prod.Free() + p.prod.Cap() + int(p.prod.Tail())
				sum += p.cons.Len() + p.cons.Cap() + int(p.cons.Head()) + int(p.cons.Tail())
				a, _ := p.cons.PeekFrom(p.cons.Head(), 1)
				sum += len(a)
			},
			"errors":    func() { _, _ = p.prod.Err(), p.cons.Err() },
			"republish": func() { p.prod.Republish() },
			"release store": func() {
				ring.StoreRelease(p.head, p.cons.Head())
			},
		} {
			if n := testing.AllocsPerRun(1000, f); n != 0 {
				t.Errorf("%v, %s: %v allocations", o, name, n)
			}
		}
	}
}
