package ring_test

import (
	"testing"

	"github.com/shmring/shmring/ring"
)

// TestOneEntry: Slot and Front are Reserve and Peek for one.
func TestOneEntry(t *testing.T) {
	for _, at := range []uint64{0, 3, 1<<32 - 1, 1<<64 - 3} {
		var tail, head ring.Index
		tail.Store(at)
		head.Store(at)
		slots := make([]uint64, 4)
		p := ring.NewProducer(&tail, &head, slots, at, ring.SeqCst)
		c := ring.NewConsumer(&tail, &head, slots, at)
		if c.Front() != nil {
			t.Fatal("an entry in an empty ring")
		}
		for lap := range uint64(3) {
			for i := range uint64(4) {
				s := p.Slot()
				if a, _ := p.Reserve(1); s == nil || s != &a[0] {
					t.Fatalf("slot %d of lap %d from %#x", i, lap, at)
				}
				*s = lap<<8 | i
				p.Commit(1)
			}
			if p.Slot() != nil {
				t.Fatal("a slot in a full ring")
			}
			for i := range uint64(4) {
				f := c.Front()
				if a, _ := c.Peek(1); f == nil || f != &a[0] || *f != lap<<8|i {
					t.Fatalf("entry %d of lap %d from %#x", i, lap, at)
				}
				c.Release(1)
			}
		}
		if n := testing.AllocsPerRun(100, func() {
			*p.Slot() = 1
			p.Commit(1)
			_ = *c.Front()
			c.Release(1)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		head.Store(at - 9) // forged
		for p.Slot() != nil {
			p.Commit(1)
		}
		if p.Err() == nil {
			t.Error("a forged head goes unnoticed")
		}
	}
}
