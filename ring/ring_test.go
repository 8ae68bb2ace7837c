package ring_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// everywhere runs f for each capacity, start index and order.
func everywhere(t *testing.T, f func(t *testing.T, capacity int, start uint64, o ring.Order)) {
	for _, capacity := range capacities {
		for _, start := range starts(capacity) {
			for _, o := range orders {
				t.Run(fmt.Sprintf("cap=%d/start=%#x/%v", capacity, start, o), func(t *testing.T) {
					f(t, capacity, start, o)
				})
			}
		}
	}
}

// batches are the batch sizes worth trying in a ring of that capacity.
func batches(capacity int) []int {
	all := []int{1, 2, 3, capacity/2 + 1, capacity - 1, capacity}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(n int) bool { return n < 1 || n > capacity })
}

// checkSpans verifies that a and b are the n slots from index at, that they break only at the end
// of the ring, and that appending to them cannot reach a slot behind them.
func checkSpans(t *testing.T, p *pair, at uint64, n int, a, b []uint64) {
	t.Helper()
	if len(a)+len(b) != n {
		t.Fatalf("at %#x: spans of %d+%d slots, want %d", at, len(a), len(b), n)
	}
	if cap(a) != len(a) || cap(b) != len(b) {
		t.Fatalf("at %#x: spans have room behind them: %d/%d %d/%d",
			at, len(a), cap(a), len(b), cap(b))
	}
	first := int(at % uint64(len(p.slots)))
	if want := min(n, len(p.slots)-first); len(a) != want {
		t.Fatalf("at %#x: first span has %d slots, want %d", at, len(a), want)
	}
	if n > 0 && &a[0] != &p.slots[first] {
		t.Fatalf("at %#x: first span starts at the wrong slot", at)
	}
	if len(b) > 0 && &b[0] != &p.slots[0] {
		t.Fatalf("at %#x: second span does not start at slot 0", at)
	}
}

func checkEntries(t *testing.T, at uint64, a, b []uint64) {
	t.Helper()
	for _, span := range [][]uint64{a, b} {
		for _, v := range span {
			if v != stamp(at) {
				t.Fatalf("entry %#x holds %#x, want %#x", at, v, stamp(at))
			}
			at++
		}
	}
}

func TestBatchesAroundTheEnd(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		for _, n := range batches(capacity) {
			p := newPair(capacity, start, o)
			for at := start; at-start < uint64(2*capacity+n); at += uint64(n) {
				a, b := p.prod.Reserve(n)
				checkSpans(t, p, at, n, a, b)
				if got := p.put(n); got != n {
					t.Fatalf("published %d of %d", got, n)
				}
				if p.tail.Load() != at+uint64(n) || p.prod.Tail() != at+uint64(n) {
					t.Fatalf("tail is %#x", p.tail.Load())
				}
				a, b = p.cons.Peek(n)
				checkSpans(t, p, at, n, a, b)
				checkEntries(t, at, a, b)
				p.cons.Release(n)
				if p.head.Load() != at+uint64(n) || p.cons.Head() != at+uint64(n) {
					t.Fatalf("head is %#x", p.head.Load())
				}
			}
		}
	})
}

func TestFullAndEmpty(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		p := newPair(capacity, start, o)
		if a, b := p.cons.Peek(1); len(a)+len(b) != 0 || p.cons.Len() != 0 {
			t.Fatal("a new ring is not empty")
		}
		if p.prod.Free() != capacity || p.prod.Cap() != capacity || p.cons.Cap() != capacity {
			t.Fatalf("a new ring has %d free slots of %d", p.prod.Free(), p.prod.Cap())
		}
		if n := p.put(capacity + 1); n != capacity {
			t.Fatalf("%d entries fitted into %d slots", n, capacity)
		}
		if a, b := p.prod.Reserve(1); len(a)+len(b) != 0 || p.prod.Free() != 0 {
			t.Fatal("a full ring has room")
		}
		a, b := p.cons.Peek(2 * capacity)
		checkSpans(t, p, start, capacity, a, b)
		checkEntries(t, start, a, b)
		p.cons.Release(1)
		if n := p.put(2); n != 1 {
			t.Fatalf("%d entries fitted into one released slot", n)
		}
		a, b = p.cons.Peek(capacity)
		checkSpans(t, p, start+1, capacity, a, b)
		checkEntries(t, start+1, a, b)
		p.cons.Release(capacity)
		if p.cons.Len() != 0 || p.prod.Free() != capacity {
			t.Fatal("a drained ring is not empty")
		}
		if p.prod.Err() != nil || p.cons.Err() != nil {
			t.Fatal(p.prod.Err(), p.cons.Err())
		}
	})
}

// TestAsFarAsKnown: the calls that are inlined go by the index that a side saw last.
func TestAsFarAsKnown(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		p := newPair(capacity, start, o)
		for at := start; at-start < uint64(2*capacity); at++ {
			for used := range capacity {
				free := uint64(capacity - used)
				if p.prod.Next(free) != nil ||
					p.prod.Next(free-1) != &p.slots[(at+uint64(used))%uint64(capacity)] {
					t.Fatalf("%d of %d slots are free: Next says something else", free, capacity)
				}
				p.put(1)
			}
			if p.prod.Next(0) != nil || p.prod.Head() != at {
				t.Fatalf("a full ring has a next slot, or its head %#x is not %#x", p.prod.Head(), at)
			}
			if p.cons.Waiting() != 0 || p.cons.Front() != nil || len(p.cons.Span(1)) != 0 ||
				!p.cons.Moved() {
				t.Fatal("what was not looked at is known")
			}
			p.cons.Len()
			first := &p.slots[at%uint64(capacity)]
			if p.cons.Waiting() != uint64(capacity) || p.cons.Front() != first || p.cons.Moved() {
				t.Fatalf("%d entries wait, want %d", p.cons.Waiting(), capacity)
			}
			for _, n := range []int{0, 1, capacity, capacity + 1} {
				want := min(n, capacity-int(at%uint64(capacity)))
				if span := p.cons.Span(n); len(span) != want || want > 0 && &span[0] != first {
					t.Fatalf("%d entries of %d in one span, want %d", len(span), n, want)
				}
			}
			p.cons.Release(capacity)
			if p.prod.Head() != at+uint64(capacity) {
				t.Fatalf("head %#x, want %#x", p.prod.Head(), at+uint64(capacity))
			}
			p.put(1) // the next round begins one slot further
			p.cons.Len()
			p.cons.Release(1)
			_ = p.prod.Head()
			at += uint64(capacity)
		}
	})
}

func TestPeekFrom(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		p := newPair(capacity, start, o)
		p.put(capacity)
		for skip := range uint64(min(capacity, 5)) {
			a, b := p.cons.PeekFrom(start+skip, capacity)
			checkSpans(t, p, start+skip, capacity-int(skip), a, b)
			checkEntries(t, start+skip, a, b)
		}
		if a, b := p.cons.PeekFrom(start+uint64(capacity), 1); len(a)+len(b) != 0 {
			t.Fatal("an entry behind the last one")
		}
		p.cons.Release(1)
		for _, at := range []uint64{start, start + uint64(capacity) + 1} {
			q := newPair(capacity, start, o)
			if a, b := q.cons.PeekFrom(at+1, 1); len(a)+len(b) != 0 ||
				q.cons.Err() != ring.ErrMisuse {
				t.Fatalf("PeekFrom outside: %v %v, %v", a, b, q.cons.Err())
			}
		}
	})
}

// What was reserved and not committed is not seen; reserving again gives the same slots.
func TestCommitPart(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		p := newPair(capacity, start, o)
		a, _ := p.prod.Reserve(capacity)
		a[0] = stamp(start)
		p.prod.Commit(0)
		if p.cons.Len() != 0 {
			t.Fatal("an entry that was not committed is seen")
		}
		again, _ := p.prod.Reserve(1)
		if &again[0] != &a[0] {
			t.Fatal("a second Reserve gives other slots")
		}
		p.prod.Commit(1)
		x, y := p.cons.Peek(capacity)
		checkSpans(t, p, start, 1, x, y)
		checkEntries(t, start, x, y)
	})
}

// A producer goes on at the tail, a consumer at the head that its predecessor left.
func TestTakeOver(t *testing.T) {
	everywhere(t, func(t *testing.T, capacity int, start uint64, o ring.Order) {
		p := newPair(capacity, start, o)
		p.put(capacity)
		p.cons.Release(0)
		p.cons.Peek(1)
		p.cons.Release(1)
		p.prod = ring.NewProducer(p.tail, p.head, p.slots, p.tail.Load(), o)
		p.cons = ring.NewConsumer(p.tail, p.head, p.slots, p.head.Load())
		if got := p.cons.Len(); got != capacity-1 {
			t.Fatalf("the successor sees %d entries, want %d", got, capacity-1)
		}
		if n := p.put(capacity); n != 1 {
			t.Fatalf("the successor could publish %d, want 1", n)
		}
		a, b := p.cons.Peek(capacity)
		checkEntries(t, start+1, a, b)
	})
}

func TestRepublish(t *testing.T) {
	p := newPair(4, 7, ring.Release)
	p.put(3)
	p.tail.Store(0)
	p.prod.Republish()
	if p.tail.Load() != 10 {
		t.Fatalf("tail is %d, want 10", p.tail.Load())
	}
}

func TestMisuse(t *testing.T) {
	for _, k := range []int{3, -1, 1 << 62} {
		p := newPair(4, 0, ring.SeqCst)
		p.put(2)
		p.prod.Commit(k)
		a, b := p.prod.Reserve(4)
		if p.tail.Load() != 2 || p.prod.Err() != ring.ErrMisuse || len(a)+len(b) != 0 {
			t.Errorf("commit of %d: tail %d, %v", k, p.tail.Load(), p.prod.Err())
		}
		if p.cons.Len() != 2 {
			t.Errorf("commit of %d: the consumer has %d", k, p.cons.Len())
		}
		p.cons.Release(k)
		a, b = p.cons.Peek(4)
		if p.head.Load() != 0 || p.cons.Err() != ring.ErrMisuse || len(a)+len(b) != 0 {
			t.Errorf("release of %d: head %d, %v", k, p.head.Load(), p.cons.Err())
		}
		if p.cons.Len() != 0 || p.prod.Free() != 0 || !p.cons.Moved() {
			t.Errorf("after %d: %d to read, %d free", k, p.cons.Len(), p.prod.Free())
		}
	}
	p := newPair(4, 0, ring.SeqCst)
	for _, n := range []int{0, 3, 5} {
		mustPanic(t, "geometry", func() {
			ring.NewConsumer(p.tail, p.head, make([]uint64, n), 0)
		})
		mustPanic(t, "geometry", func() {
			ring.NewProducer(p.tail, p.head, make([]uint64, n), 0, ring.SeqCst)
		})
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

// orderName is the order in a word.
func orderName(o ring.Order) string {
	if o == ring.Release {
		return "release"
	}
	return "seq-cst"
}

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

func slotsOf[T any](mem []byte) error {
	s, err := ring.Slots[T](mem)
	if err == nil && (len(s) == 0 || cap(s) != len(s)) {
		panic("slots without slots, or with room behind them")
	}
	return err
}

func TestSlotsTakesPlainData(t *testing.T) {
	type entry struct {
		A    uint64
		B    [6]uint32
		C    struct{ X, Y float64 }
		D    int16
		E    [3]int8
		F, _ bool
	}
	mem := make([]byte, 64*8)
	for name, err := range map[string]error{
		"uint64": slotsOf[uint64](mem), "array": slotsOf[[8]uint64](mem),
		"byte": slotsOf[byte](mem), "float": slotsOf[float32](mem), "struct": slotsOf[entry](mem[:448]),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSlotsRefuses(t *testing.T) {
	mem := make([]byte, 128)
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"int":        {slotsOf[int](mem), "int cannot be shared"},
		"uint":       {slotsOf[uint](mem), "uint cannot be shared"},
		"uintptr":    {slotsOf[uintptr](mem), "uintptr cannot be shared"},
		"pointer":    {slotsOf[*uint64](mem), "cannot be shared"},
		"string":     {slotsOf[string](mem), "string cannot be shared"},
		"slice":      {slotsOf[[]byte](mem), "cannot be shared"},
		"map":        {slotsOf[map[int8]int8](mem), "cannot be shared"},
		"func":       {slotsOf[func()](mem), "cannot be shared"},
		"chan":       {slotsOf[chan int8](mem), "cannot be shared"},
		"interface":  {slotsOf[any](mem), "cannot be shared"},
		"complex":    {slotsOf[complex128](mem), "cannot be shared"},
		"array":      {slotsOf[[2]*byte](mem), "cannot be shared"},
		"field":      {slotsOf[struct{ Deep struct{ P *byte } }](mem), "field P"},
		"no size":    {slotsOf[struct{}](mem), "whole number"},
		"no pointer": {slotsOf[[0]*byte](mem), "cannot be shared"},
		"odd length": {slotsOf[uint64](mem[:127]), "whole number"},
		"no memory":  {slotsOf[uint64](nil), "whole number"},
		"alignment":  {slotsOf[uint64](mem[1:9]), "aligned"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("%s: error is %v, want one with %q", name, c.err, c.says)
		}
	}
}

func TestIndexAt(t *testing.T) {
	mem := make([]byte, 32)
	for off := range uint64(40) {
		i, err := ring.IndexAt(mem, off)
		if fits := off%8 == 0 && off <= 24; fits != (err == nil) || fits != (i != nil) {
			t.Errorf("offset %d: %v", off, err)
		}
		if i != nil {
			i.Store(off + 1)
			if mem[off] != byte(off+1) {
				t.Errorf("offset %d: the word lies elsewhere", off)
			}
		}
	}
	if _, err := ring.IndexAt(mem[:8], 0); err != nil {
		t.Errorf("the one word of 8 bytes: %v", err)
	}
	for _, off := range []uint64{1<<64 - 8, 1 << 63} {
		if _, err := ring.IndexAt(mem, off); err == nil {
			t.Errorf("offset %#x is taken", off)
		}
	}
	for _, short := range [][]byte{nil, mem[:7], mem[1:9]} {
		if _, err := ring.IndexAt(short, 0); err == nil {
			t.Errorf("an index word in %d bytes, or unaligned", len(short))
		}
	}
}
