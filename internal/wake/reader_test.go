package wake

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// reader is what a completion queue does with a bell, without the queue: it drains lanes and
// checks that each entry comes once and in order.
type reader struct {
	*Bell
	q      *queue
	cons   []*ring.Consumer[uint64]
	level  func(bit int) // a test's hook into Source.Level
	count  atomic.Uint64 // entries read
	cooled uint64        // how often lanes that were hot were parked
	broken error
}

type readerOptions struct {
	order  ring.Order
	shared bool
	face   *Face
	gen    uint16
	lazy   bool // lanes become known by their first mark
	alone  bool // it has no domain
	// fake is a capacity that the bell is told instead of the true one.
	fake uint64
}

// source is one lane as the bell sees it.
type source struct {
	r   *reader
	bit int
}

func (s source) Level() (head, tail uint64) {
	if s.r.level != nil {
		s.r.level(s.bit)
	}
	head, tail = s.r.cons[s.bit].Head(), s.r.cons[s.bit].Tail()
	if s.r.cons[s.bit].Err() != nil {
		tail = max(tail, head+1)
	}
	return head, tail
}

func (s source) Solicited() uint64 { return s.r.q.sol(s.bit).Load() }

func newReader(q *queue, o readerOptions) *reader {
	r := &reader{q: q}
	for bit := range q.lanes {
		r.cons = append(r.cons, ring.NewConsumer(q.tail(bit), q.head(bit), q.slots(bit),
			q.head(bit).Load()))
	}
	config := func(bit int) LaneConfig {
		c := LaneConfig{Row: q.row(bit), Source: source{r, bit}, Capacity: laneSlots,
			ReaderPays: o.order == ring.Release}
		if o.fake != 0 {
			c.Capacity = o.fake
		}
		return c
	}
	r.Bell = NewBell(Config{Arm: q.arm, Hints: q.hints, Lanes: q.lanes, Generation: o.gen,
		Face: o.face, Shared: o.shared,
		Open: func(bit int) (LaneConfig, bool) { return config(bit), bit < q.lanes }})
	for bit := range q.lanes {
		if !o.lazy {
			r.Add(bit, config(bit))
		}
	}
	return r
}

// read is R1 to R3 of a read that takes up to limit entries.
func (r *reader) read(limit int) (n int) {
	r.Take()
	r.Heat()
	for bit := r.Next(0); bit >= 0 && n < limit; bit = r.Next(bit + 1) {
		n += r.drain(bit, limit-n)
	}
	r.count.Add(uint64(n))
	return n
}

func (r *reader) drain(bit, limit int) (n int) {
	c := r.cons[bit]
	a, b := c.Peek(limit)
	at := c.Head()
	for _, span := range [][]uint64{a, b} {
		for _, v := range span {
			if v != at && r.broken == nil {
				r.broken = fmt.Errorf("lane %d: entry %d holds %d", bit, at, v)
			}
			at++
		}
	}
	if n = len(a) + len(b); n > 0 {
		c.Release(n)
	}
	if c.Err() != nil && r.broken == nil {
		r.broken = c.Err()
	}
	if n < limit {
		r.Drained(bit)
	}
	return n
}

// outcome is why a blocking read came back.
type outcome int

const (
	gotEntries outcome = iota
	gotSignal
	gotNothing // the deadline, or Stop
)

// sread is a blocking read: R1 to R9 until there is something.
func (r *reader) sread(limit int, w Wait) (int, outcome) {
	for {
		r.Lock()
		n := r.read(limit)
		if n > 0 || r.broken != nil {
			r.Unlock()
			return n, gotEntries
		}
		if slices.ContainsFunc(r.hot, func(w uint64) bool { return w != 0 }) {
			r.cooled++
		}
		more, err := r.Park()
		if err != nil {
			r.broken = err
		}
		over := w.DeadlineNs > 0 && spin.Now() >= w.DeadlineNs || w.Stop != nil && w.Stop()
		signaled := !more && !over && r.TakeSignal()
		r.Unlock()
		switch {
		case signaled:
			return 0, gotSignal
		case over:
			return 0, gotNothing
		case !more:
			r.Sleep(w)
		}
	}
}

// waiting is a wait for a number of entries in all lanes together; nothing is read.
func (r *reader) waiting(want uint64, w Wait) uint64 {
	for {
		r.Lock()
		r.Take()
		w.Takes = r.takes
		if _, err := r.Park(); err != nil {
			r.broken = err
		}
		sum, full := uint64(0), false
		for bit := r.Next(0); bit >= 0; bit = r.Next(bit + 1) {
			n := uint64(r.cons[bit].Len())
			sum += n
			full = full || n == laneSlots
		}
		r.Unlock()
		if sum >= want || full || r.broken != nil || w.DeadlineNs > 0 && spin.Now() >= w.DeadlineNs {
			return sum
		}
		w.Missing = want - sum
		r.Sleep(w)
	}
}

var orders = []ring.Order{ring.SeqCst, ring.Release}

// registered makes this process one whose release stores a reader can order.
func registered(t testing.TB, o ring.Order) {
	t.Helper()
	if o == ring.Release {
		shmtest.Require(t, "membarrier", barrier.Register())
	}
}

// While the reader is awake a producer does nothing but look at one word.
func TestNoWakeWhileAwake(t *testing.T) {
	for _, o := range orders {
		q := heapQueue(t, 2)
		r := newReader(q, readerOptions{order: o})
		w := q.writer(1, o)
		w.put(1)
		if w.Wakes() != 0 || q.hints.ready[0].Load() != 2 {
			t.Fatal("a parked lane is not marked, or its mark wakes although nobody sleeps")
		}
		for range 1000 {
			if r.read(laneSlots) == 0 {
				t.Fatal("an entry is missing")
			}
			w.put(1)
			if w.Published(w.prod.Tail(), 0) != 0 {
				t.Fatal("the lane of a reader that is awake is parked")
			}
		}
		if w.Wakes() != 0 || q.hints.epoch.Load() != 0 || q.hints.ready[0].Load() != 0 {
			t.Fatalf("wakes %d, epoch %d, ready %#x", w.Wakes(), q.hints.epoch.Load(),
				q.hints.ready[0].Load())
		}
	}
}

// A lane that has one entry for each sleep stays parked, so that its reader never pays to park it.
// One that has more gets hot at the second look.
func TestHotAtTheSecondLook(t *testing.T) {
	registered(t, ring.Release)
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{order: ring.Release})
	w := q.writer(0, ring.Release)
	parks := func(want uint64) {
		t.Helper()
		more, err := r.Park()
		if paid := r.barriers.Load(); more || err != nil || paid != want {
			t.Fatalf("parked: %v, %v, %d barriers, want %d", more, err, paid, want)
		}
	}
	parks(0)
	for range 10 {
		w.put(1)
		if a, b := r.read(1), r.read(1); a != 1 || b != 0 || r.Only() != Nobody {
			t.Fatalf("reads after a sleep take %d and %d, then there is %d", a, b, r.Only())
		}
		parks(0)
	}
	w.put(2)
	if r.read(1) != 1 || r.Steady() || r.Only() != Several || w.Published(w.prod.Tail(), 0) == 0 {
		t.Fatal("the lane is hot at the first look, or nobody has to look again")
	}
	if r.read(1) != 1 || !r.Steady() || r.Only() != 0 || w.Published(w.prod.Tail(), 0) != 0 {
		t.Fatal("the lane is not hot at the second look")
	}
	parks(1)
	r.owed = true // as after a Park whose barrier the kernel refused
	if w.put(1); r.read(1) != 1 || w.Published(w.prod.Tail(), 0) != 0 {
		t.Fatal("the lane stays parked though nobody paid for that")
	}
	parks(2)
}

// A lane that is ignored is neither looked at nor marked, but for what its producer announces.
func TestIgnored(t *testing.T) {
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	w := q.writer(0, ring.SeqCst)
	for range 2 { // parked, then hot
		r.Ignore(0)
		w.put(1)
		more, err := r.Park()
		if n := r.read(1); n != 0 || more || err != nil || r.Pending() || r.Only() != Nobody {
			t.Fatalf("read %d, parked %v, %v; pending %v, then %d", n, more, err, r.Pending(), r.Only())
		}
		if r.Consider(0); r.read(1) != 1 {
			t.Fatal("a lane that is considered again is not looked at")
		}
	}
	r.Ignore(0)
	if w.Announce(); !r.Pending() {
		t.Fatal("what is announced is ignored")
	}
}

// One arming is rung once, however much is published before the reader runs.
func TestOneWakePerArming(t *testing.T) {
	q := heapQueue(t, 2)
	r := newReader(q, readerOptions{})
	a, b := q.writer(0, ring.SeqCst), q.writer(1, ring.SeqCst)
	stop := once(func() bool {
		for range 5 {
			a.put(1)
			b.put(1)
		}
		return false
	})
	whileArmed := func() bool { return r.direct > 0 && stop() }
	if n, why := r.sread(laneSlots, Wait{Stop: whileArmed}); n != 10 {
		t.Fatal(n, why)
	}
	if got := a.Wakes() + b.Wakes(); got != 1 {
		t.Fatalf("%d wakes for one arming", got)
	}
	if q.arm.Word.Load()&armFlags != 0 {
		t.Fatal("still armed")
	}
}

// A lane that attaches while the reader sleeps is seen before its first entry.
func TestAttachRings(t *testing.T) {
	q := heapQueue(t, 3)
	r := newReader(q, readerOptions{lazy: true})
	q.arm.Word.Store(armDirect | armThr | 9)
	q.row(2).Index.Store(1 << 60)
	w := q.writer(2, ring.SeqCst)
	w.Announce()
	if q.hints.epoch.Load() != 1 || w.Wakes() != 0 {
		t.Fatal("attaching does not ring, or counts as a batch")
	}
	r.read(1)
	if r.Known() != 1 || !r.Knows(2) || r.Knows(1) {
		t.Fatalf("%d lanes are known", r.Known())
	}
}

// Two sleep and one gives up: the other is still to be woken.
func TestLeavingDoesNotMuteTheOthers(t *testing.T) {
	q := heapQueue(t, 1)
	watchdog(t, q.String)
	r := newReader(q, readerOptions{shared: true})
	w := q.writer(0, ring.SeqCst)
	done := make(chan int)
	go func() {
		n, _ := r.sread(1, Wait{})
		done <- n
	}()
	for r.sleeps.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if n, why := r.sread(1, Wait{DeadlineNs: spin.Now() + 1e6}); n != 0 || why != gotNothing {
		t.Fatal(n, why)
	}
	w.put(1)
	if n := <-done; n != 1 || w.Wakes() != 1 {
		t.Fatal(n, w.Wakes())
	}
}

// TestOnly walks through what changes the answer of Only.
func TestOnly(t *testing.T) { answers(t, 100, (*Bell).Only) }

// TestWiden: a bell that was widened is never sure in Only, in OnlyOfMany it is; and the other way
// round after that. Whoever glanced at it before notices either.
func TestWiden(t *testing.T) {
	answers(t, 100, func(b *Bell) int {
		only, since := b.Only(), b.Changes()
		b.Widen(true)
		if got := b.Only(); got != Several || !b.Wide() || only != Several && b.Quiet(since) {
			t.Errorf("Only of a widened bell: %d", got)
		}
		many := b.OnlyOfMany()
		b.Widen(false)
		if got := b.Only(); got != many || got != only || b.Wide() {
			t.Errorf("it says %d, %d, %d", only, many, got)
		}
		return many
	})
}

// TestOnlyOfMany: with more marks than Only looks at that is never sure, and OnlyOfMany is.
func TestOnlyOfMany(t *testing.T) {
	answers(t, 300, func(b *Bell) int {
		if got := b.Only(); got != Several || !b.Wide() {
			t.Errorf("Only of a wide bell: %d", got)
		}
		return b.OnlyOfMany()
	})
}

func answers(t *testing.T, lanes int, only func(*Bell) int) {
	q := heapQueue(t, lanes)
	r := newReader(q, readerOptions{shared: true})
	want := func(when string, want int) {
		t.Helper()
		if got := only(r.Bell); got != want {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	want("nobody has looked", Several)
	r.read(1)
	want("all lanes are empty", Nobody)
	for bit := range q.lanes {
		if q.row(bit).Parked.Load() != Parked {
			t.Fatalf("lane %d is un-parked and empty", bit)
		}
	}
	w, v := q.writer(70, ring.SeqCst), q.writer(99, ring.SeqCst)
	w.put(1)
	want("a lane is marked", Several)
	if r.read(1) != 1 {
		t.Fatal("nothing was read")
	}
	want("that lane is hot", 70)
	w.put(1)
	want("it has more, without a mark", 70)
	v.put(1)
	want("another one is marked", Several)
	r.read(3)
	want("two are hot", Several)
	if _, err := r.Park(); err != nil {
		t.Fatal(err)
	}
	want("both are parked", Several)
	r.read(1)
	want("both are empty", Nobody)
	v.put(1)
	r.read(1)
	want("the second is hot", 99)
	r.LookCloser()
	want("the caller thinks of something", Several)
	r.read(1)
	want("no more", 99)
	if _, err := r.Park(); err != nil {
		t.Fatal(err)
	}
	want("it is parked", Several)
	v.put(1)
	r.read(1)
	r.Consider(3)
	want("a lane is to be looked at", Several)
	r.read(1)
	r.Drop(99)
	want("the lane is dropped", Several)
}

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

func TestNoAllocationsWhileAwake(t *testing.T) {
	for _, o := range orders {
		d := newDomain(t, 1, 70, readerOptions{order: o})
		q, r := d.q[0], d.r[0]
		w := q.writer(69, o, d.ringer(0))
		r.read(1)
		if _, err := r.Park(); err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func(){
			"publish to a reader that is awake": func() { w.put(1); r.read(laneSlots) },
			"publish to a parked lane": func() {
				r.drain(69, laneSlots)
				if _, err := r.Park(); err != nil {
					t.Fatal(err)
				}
				w.put(1)
			},
			"take, heat, next, drained": func() {
				q.hints.ready[1].Store(1 << 5)
				r.Take()
				r.Heat()
				for bit := r.Next(0); bit >= 0; bit = r.Next(bit + 1) {
					r.Drained(bit)
				}
			},
			"look": func() { _, _, _ = r.Pending(), r.TakeSignal(), w.Flags() },
			"ring the queue": func() {
				r.seq++
				r.store(armDirect)
				r.Park()
				w.Published(w.prod.Tail(), 0)
				r.store(0)
			},
			"ring the domain": func() {
				d.seq++
				d.arm.Word.Store(d.seq)
				r.seq++
				r.store(armDom)
				r.Park()
				w.Published(w.prod.Tail(), 0)
				r.store(0)
			},
			"signal": func() { r.Signal(); Signal(q.arm, q.hints, nil, nil); r.TakeSignal() },
			"wait":   func() { r.Sleep(expired) },
		} {
			r.drain(69, laneSlots)
			if n := testing.AllocsPerRun(200, f); n != 0 {
				t.Errorf("%v, %s: %v allocations", o, name, n)
			}
		}
	}
}
