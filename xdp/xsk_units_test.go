package xdp

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// TestRingUnits: each of the four rings, alone, against its other end: no more can be taken than
// there is, nothing comes that was not put, and every address comes back as it was.
func TestRingUnits(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, start := range []uint32{0, ^uint32(5)} {
		r := newSimRing[uint64](8, start)
		p := newProducer(r.words(), r.slots)
		c := newConsumer(r.words(), r.slots)
		if c.available(8) != 0 || p.room(100) != 8 || p.pending() != 0 || p.publish() {
			t.Fatal("a new ring is not empty")
		}
		next, want := uint64(0), uint64(0)
		for round := range uint64(50) {
			n := p.room(8)
			for range min(uint64(n), round%9) {
				p.put(next << 11)
				next++
			}
			if c.available(8) != uint32(next-want) && p.publish() && c.available(8) != uint32(next-want) {
				t.Fatalf("round %d: %d can be taken of %d", round, c.available(8), next-want)
			}
			for range min(c.available(3), 3) {
				if e := c.take(); e != want<<11 {
					t.Fatalf("%d came, want %d", e, want<<11)
				}
				want++
			}
			before := p.pending()
			c.release()
			if now := p.pending(); now != uint32(next-want) || now > before {
				t.Fatalf("round %d: %d pending, want %d", round, now, next-want)
			}
			if p.faults+c.faults != 0 {
				t.Fatal("faults of an honest ring")
			}
		}
		if want < 50 {
			t.Fatalf("only %d entries passed", want)
		}
	}
}
