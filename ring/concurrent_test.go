package ring_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// fill makes a slot whose words depend on each other and on the index, so that a slot which is
// read before it is whole, or after it was written again, is recognised.
func fill(s *slot, i uint64) {
	sum := stamp(i)
	for k := range 7 {
		s[k] = sum
		sum = sum*6364136223846793005 + uint64(k)
	}
	s[7] = sum
}

func verify(s *slot, i uint64) error {
	var want slot
	fill(&want, i)
	if *s != want {
		return fmt.Errorf("entry %d is %#x, want %#x", i, *s, want)
	}
	return nil
}

// patience counts fruitless looks. A side that has looked often lets the other processes of a busy
// machine run, or each turn costs a time slice.
type patience int

func (p *patience) wait() {
	if *p++; *p%256 == 0 {
		time.Sleep(time.Microsecond)
		return
	}
	runtime.Gosched()
}

// produce publishes entries until n of them stand in the ring's history, in batches of all sizes.
func produce(p *ring.Producer[slot], n uint64, before func(i uint64)) error {
	rnd := rand.New(rand.NewPCG(n, 1))
	var idle patience
	for at := p.Tail(); at < n; {
		a, b := p.Reserve(int(min(n-at, 1+rnd.Uint64N(uint64(p.Cap())))))
		for _, span := range [][]slot{a, b} {
			for i := range span {
				before(at)
				fill(&span[i], at)
				at++
			}
		}
		if len(a) == 0 {
			if p.Err() != nil {
				return p.Err()
			}
			idle.wait()
			continue
		}
		idle = 0
		p.Commit(len(a) + len(b))
	}
	return nil
}

func consume(c *ring.Consumer[slot], n uint64, after func(i uint64) error) error {
	rnd := rand.New(rand.NewPCG(n, 2))
	var idle patience
	for at := c.Head(); at < n; {
		a, b := c.Peek(1 + rnd.IntN(c.Cap()))
		for _, span := range [][]slot{a, b} {
			for i := range span {
				if err := verify(&span[i], at); err != nil {
					return err
				}
				if err := after(at); err != nil {
					return err
				}
				at++
			}
		}
		if len(a) == 0 {
			if c.Err() != nil {
				return c.Err()
			}
			idle.wait()
			continue
		}
		idle = 0
		c.Release(len(a) + len(b))
	}
	return nil
}

// handOver runs both sides in one process. What an entry stands for lies on the heap beside it:
// the race detector sees whether publishing and releasing order it.
func handOver(t *testing.T, tail, head *ring.Index, slots []slot, o ring.Order) {
	n := uint64(100_000)
	if testing.Short() || shmtest.Race {
		n /= 5
	}
	p := ring.NewProducer(tail, head, slots, 0, o)
	c := ring.NewConsumer(tail, head, slots, 0)
	beside := make([]uint64, len(slots))
	mask := uint64(len(slots) - 1)
	done := make(chan error)
	go func() { done <- produce(p, n, func(i uint64) { beside[i&mask] = i }) }()
	err := consume(c, n, func(i uint64) error {
		if v := beside[i&mask]; v != i {
			return fmt.Errorf("beside entry %d lies %d", i, v)
		}
		return nil
	})
	if err != nil {
		head.Store(1 << 63) // which ends the producer: its memory goes away with the test
		<-done
		t.Fatal(err)
	}
	shmtest.Must(t, <-done)
	if tail.Load() != n || head.Load() != n {
		t.Fatalf("ends at tail %d head %d, want %d", tail.Load(), head.Load(), n)
	}
}

func TestHandOverOnHeap(t *testing.T) {
	for _, o := range orders {
		for _, capacity := range []int{1, 2, 64, 1024} {
			t.Run(fmt.Sprintf("%v/cap=%d", o, capacity), func(t *testing.T) {
				handOver(t, new(ring.Index), new(ring.Index), make([]slot, capacity), o)
			})
		}
	}
}
