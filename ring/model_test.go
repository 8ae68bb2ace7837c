package ring_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// queue is what a ring must behave like: a slice, appended to and cut at the front.
type queue struct {
	*pair
	capacity int
	entries  []uint64
	next     uint64 // index of the next entry
}

func newQueue(capacity int, start uint64, order ring.Order) *queue {
	return &queue{pair: newPair(capacity, start, order), capacity: capacity, next: start}
}

func (q *queue) publish(n, k int) error {
	room := q.capacity - len(q.entries)
	a, b := q.prod.Reserve(n)
	if len(a)+len(b) != min(n, room) {
		return fmt.Errorf("reserve %d gives %d+%d, %d are free", n, len(a), len(b), room)
	}
	k = min(k, len(a)+len(b))
	for i := range k {
		v := stamp(q.next + uint64(i))
		if i < len(a) {
			a[i] = v
		} else {
			b[i-len(a)] = v
		}
		q.entries = append(q.entries, v)
	}
	q.prod.Commit(k)
	q.next += uint64(k)
	return q.same()
}

func (q *queue) peek(skip, n int) error {
	skip = min(skip, len(q.entries))
	want := q.entries[skip:]
	want = want[:min(n, len(want))]
	a, b := q.cons.PeekFrom(q.cons.Tail()-uint64(len(q.entries)-skip), n)
	if skip == 0 {
		a, b = q.cons.Peek(n)
	}
	if len(a)+len(b) != len(want) {
		return fmt.Errorf("peek %d gives %d+%d, want %d", n, len(a), len(b), len(want))
	}
	for i, v := range want {
		got := append(a, b...)[i]
		if got != v {
			return fmt.Errorf("entry %d is %#x, want %#x", i, got, v)
		}
	}
	return nil
}

func (q *queue) release(k int) error {
	k = min(k, q.cons.Len())
	q.cons.Release(k)
	q.entries = q.entries[k:]
	return q.same()
}

func (q *queue) same() error {
	if err := q.prod.Err(); err != nil {
		return err
	}
	if err := q.cons.Err(); err != nil {
		return err
	}
	head := q.next - uint64(len(q.entries))
	if q.tail.Load() != q.next || q.head.Load() != head || q.prod.Tail() != q.next ||
		q.cons.Head() != head || q.cons.Tail() != q.next {
		return fmt.Errorf("indices %#x %#x, want %#x %#x", q.head.Load(), q.tail.Load(), head, q.next)
	}
	if q.cons.Len() != len(q.entries) || q.prod.Free() != q.capacity-len(q.entries) {
		return fmt.Errorf("%d used, %d free, want %d of %d", q.cons.Len(), q.prod.Free(),
			len(q.entries), q.capacity)
	}
	return nil
}

func TestRingIsAQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := 1 << rapid.IntRange(0, 6).Draw(t, "log2 capacity")
		q := newQueue(capacity, rapid.Uint64().Draw(t, "start"),
			rapid.SampledFrom(orders).Draw(t, "order"))
		some := rapid.IntRange(0, capacity+2)
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) { must(q.publish(some.Draw(t, "n"), some.Draw(t, "k"))) },
			"peek":    func(t *rapid.T) { must(q.peek(some.Draw(t, "skip"), some.Draw(t, "n"))) },
			"release": func(t *rapid.T) { must(q.release(some.Draw(t, "k"))) },
			"":        func(*rapid.T) { must(q.same()) },
		})
	})
}

// FuzzRing drives a ring beside a slice. Each step of the script is two bytes: what, and how many.
// Steps 0 to 4 are honest; 5 and 6 forge an index, after which nothing may be wild.
func FuzzRing(f *testing.F) {
	f.Add(uint64(0), uint8(0), []byte{0, 1, 1, 1, 2, 1})
	f.Add(uint64(1<<64-3), uint8(2), []byte{0, 3, 2, 2, 0, 4, 1, 9, 3, 2, 4, 4, 2, 3})
	f.Add(uint64(1<<32-1), uint8(6), []byte{0, 64, 2, 63, 0, 70, 1, 64, 2, 64})
	f.Add(uint64(1<<63), uint8(3), []byte{0, 4, 1, 2, 5, 200, 1, 8, 2, 8, 0, 8})
	f.Add(uint64(7), uint8(1), []byte{0, 2, 2, 1, 6, 129, 0, 2, 0, 2, 1, 2, 2, 2})
	f.Fuzz(func(t *testing.T, start uint64, size uint8, script []byte) {
		q := newQueue(1<<(size%11), start, orders[size>>7])
		for ; len(script) >= 2; script = script[2:] {
			n := int(script[1])
			var err error
			switch script[0] % 7 {
			case 0:
				err = q.publish(n, n)
			case 1:
				err = q.peek(0, n)
			case 2:
				err = q.release(n)
			case 3:
				err = q.publish(n, n/2)
			case 4:
				err = q.peek(n/2, n)
			case 5:
				forged(t, q, q.tail, int8(n))
				return
			case 6:
				forged(t, q, q.head, int8(n))
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}

// forged moves one index to wherever the fuzzer likes and uses both sides: whatever they say, they
// stay within the ring and come to an end.
func forged(t *testing.T, q *queue, index *ring.Index, by int8) {
	index.Add(uint64(int64(by)) << (uint(uint8(by)) % 60))
	moved := 0
	for range 4 {
		a, b := q.prod.Reserve(q.capacity)
		for _, span := range [][]uint64{a, b} {
			for i := range span {
				span[i] = 0
			}
		}
		q.prod.Commit(len(a) + len(b))
		moved += len(a) + len(b)
		a, b = q.cons.Peek(q.capacity)
		if len(a)+len(b) > q.capacity {
			t.Fatalf("%d entries in %d slots", len(a)+len(b), q.capacity)
		}
		q.cons.Release(len(a) + len(b))
	}
	if q.prod.Err() != nil && moved > 2*q.capacity {
		t.Fatalf("a poisoned producer published %d entries", moved)
	}
}

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
