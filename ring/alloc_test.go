package ring_test

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

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
