package ring_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// roles are what child processes of these tests do; files for one system add to them.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }

// pair is a ring over heap memory.
type pair struct {
	tail, head *ring.Index
	slots      []uint64
	prod       *ring.Producer[uint64]
	cons       *ring.Consumer[uint64]
}

// newPair returns a ring whose indices stand at start, as after a long life.
func newPair(capacity int, start uint64, order ring.Order) *pair {
	p := &pair{tail: new(ring.Index), head: new(ring.Index), slots: make([]uint64, capacity)}
	p.tail.Store(start)
	p.head.Store(start)
	p.prod = ring.NewProducer(p.tail, p.head, p.slots, start, order)
	p.cons = ring.NewConsumer(p.tail, p.head, p.slots, start)
	return p
}

// put publishes n entries that hold their own index, and returns how many fitted.
func (p *pair) put(n int) int {
	a, b := p.prod.Reserve(n)
	at := p.prod.Tail()
	for _, span := range [][]uint64{a, b} {
		for i := range span {
			span[i] = stamp(at)
			at++
		}
	}
	p.prod.Commit(len(a) + len(b))
	return len(a) + len(b)
}

// stamp makes the content of entry i differ from that of every other entry of its slot.
func stamp(i uint64) uint64 { return i*0x9e3779b97f4a7c15 + 1 }

var (
	orders     = []ring.Order{ring.SeqCst, ring.Release}
	capacities = []int{1, 2, 4, 4096}
)

// starts are indices whose neighbourhood is easy to get wrong: the ring's own end, the end of 32
// bits, of the signed numbers and of 64 bits.
func starts(capacity int) []uint64 {
	return []uint64{0, uint64(capacity) - 1, 1<<32 - 1, 1<<32 + 1, 1 << 63, 1<<64 - 3}
}
