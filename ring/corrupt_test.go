package ring_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/ring"
)

// checkCorrupt verifies the error that poisons a handle.
func checkCorrupt(t *testing.T, err error, field string, found uint64) {
	t.Helper()
	var c *ring.CorruptError
	if !errors.As(err, &c) {
		t.Fatalf("error is %v, want a CorruptError", err)
	}
	if c.Field != field || c.Found != found {
		t.Errorf("error names %s %#x, want %s %#x", c.Field, c.Found, field, found)
	}
	if found-c.Low <= c.High-c.Low {
		t.Errorf("%#x lies in what the error calls possible, %#x to %#x", found, c.Low, c.High)
	}
	if !errors.Is(err, ring.ErrCorrupt) || !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("%v is neither ErrCorrupt nor EBADMSG", err)
	}
	if errors.Is(err, syscall.EINVAL) || !strings.HasPrefix(err.Error(), "ring: "+field) {
		t.Errorf("odd error %v", err)
	}
}

func TestForgedTail(t *testing.T) {
	for _, capacity := range []int{2, 4, 4096} {
		for _, start := range starts(capacity) {
			end := start + uint64(capacity)
			for name, forged := range map[string]uint64{
				"one too many":           end + 1,
				"one back":               start,
				"behind the head":        start - 1,
				"half the numbers ahead": start + 1<<63,
				"half the numbers back":  start - 1<<63,
				"far ahead":              end + 1<<32,
				"a whole round ahead":    end + uint64(capacity),
				"all ones":               start + ^uint64(0) - 1,
			} {
				t.Run(fmt.Sprintf("cap=%d/start=%#x/%s", capacity, start, name), func(t *testing.T) {
					forgeTail(t, capacity, start, forged)
				})
			}
		}
	}
}

func forgeTail(t *testing.T, capacity int, start, forged uint64) {
	p := newPair(capacity, start, ring.SeqCst)
	p.put(1)
	if p.cons.Len() != 1 {
		t.Fatal("the entry is not there")
	}
	p.tail.Store(forged)
	for range 2 {
		if n := p.cons.Len(); n != 1 {
			t.Fatalf("%d entries are claimed, want the one that was seen", n)
		}
		checkCorrupt(t, p.cons.Err(), "tail", forged)
	}
	p.tail.Store(start + 2) // an honest index does not heal a handle
	for _, peek := range []func() (a, b []uint64){
		func() (a, b []uint64) { return p.cons.Peek(capacity + 1) },
		func() (a, b []uint64) { return p.cons.PeekFrom(start, capacity+1) },
	} {
		a, b := peek()
		if len(a)+len(b) != 1 {
			t.Fatalf("%d entries, want the one that was seen before", len(a)+len(b))
		}
		checkEntries(t, start, a, b)
	}
	if p.cons.Tail() != start+1 {
		t.Fatalf("tail is %#x", p.cons.Tail())
	}
	p.cons.Release(1)
	if a, b := p.cons.Peek(1); len(a)+len(b) != 0 {
		t.Fatal("a poisoned consumer goes on")
	}
	if p.head.Load() != start+1 {
		t.Fatal("what was seen cannot be given back")
	}
}

func TestForgedHead(t *testing.T) {
	for _, capacity := range []int{2, 4, 4096} {
		for _, start := range starts(capacity) {
			for name, forged := range map[string]uint64{
				"before the tail's publish": start + 3,
				"one back":                  start,
				"a round back":              start - uint64(capacity),
				"half the numbers ahead":    start + 1<<63,
				"far back":                  start - 1<<32,
			} {
				t.Run(fmt.Sprintf("cap=%d/start=%#x/%s", capacity, start, name), func(t *testing.T) {
					forgeHead(t, capacity, start, forged)
				})
			}
		}
	}
}

func forgeHead(t *testing.T, capacity int, start, forged uint64) {
	p := newPair(capacity, start, ring.SeqCst)
	p.put(2)
	p.head.Store(start + 1)
	room := capacity - 1
	if p.prod.Free() != room {
		t.Fatalf("%d free, want %d", p.prod.Free(), room)
	}
	reserved, _ := p.prod.Reserve(1)
	reserved[0] = stamp(start + 2)
	p.head.Store(forged)
	for range 2 {
		if n := p.prod.Free(); n > room {
			t.Fatalf("%d slots are free after a forged head, %d were before", n, room)
		}
		checkCorrupt(t, p.prod.Err(), "head", forged)
	}
	p.head.Store(start + 2)
	// What was reserved before may be committed after: the peer must not be able to make this
	// side panic.
	p.prod.Commit(1)
	if p.tail.Load() != start+3 {
		t.Fatalf("tail is %#x, want %#x", p.tail.Load(), start+3)
	}
	for range 2 * capacity {
		a, b := p.prod.Reserve(1)
		p.prod.Commit(len(a) + len(b))
	}
	if got := p.prod.Tail() - start - 1; got > uint64(capacity) {
		t.Fatalf("a poisoned producer wrote %d slots of %d", got, capacity)
	}
	if a, b := p.prod.Reserve(1); len(a)+len(b) != 0 || p.prod.Err() == nil {
		t.Fatal("a poisoned producer goes on for ever")
	}
}

// The index that a handle starts with is judged like every later one.
func TestForgedFromTheStart(t *testing.T) {
	var tail, head ring.Index
	slots := make([]uint64, 4)
	for _, forged := range []uint64{11, 5, 1 << 63} {
		tail.Store(10)
		head.Store(forged)
		p := ring.NewProducer(&tail, &head, slots, 10, ring.SeqCst)
		checkCorrupt(t, p.Err(), "head", forged)
		if a, b := p.Reserve(4); len(a)+len(b) != 0 || p.Free() != 0 {
			t.Fatal("slots that may be unread are handed out")
		}
		p.Commit(0)
		tail.Store(forged)
		head.Store(6)
		c := ring.NewConsumer(&tail, &head, slots, 6)
		if a, b := c.Peek(4); forged != 5 && len(a)+len(b) != 0 {
			t.Fatal("entries of a forged tail are handed out")
		}
		checkCorrupt(t, c.Err(), "tail", forged)
	}
}
