// Package ring is the single-producer, single-consumer ring that every lane of a queue is made of.
//
// It is pure logic over memory that the caller maps: no system call, no lock, no allocation after
// construction. Two 64-bit indices run freely; the slot of index i is slots[i&(len-1)], so every
// slot is usable and full and empty cannot be confused.
//
//	head                    tail
//	 |  published, unread    |   free, the producer's     |
//	 +-----------------------+----------------------------+  (len(slots) slots, a power of two)
//	consumer writes head     producer writes tail
//
// Half-open ownership: the consumer may read slots [head, tail), the producer may write slots
// [tail, head+len). Each side keeps the other's index in private memory and loads the shared word
// only when its copy says that there is not enough room, or nothing more to read; a batch is
// published with one store.
//
// # Order of memory accesses
//
// The producer fills slots and then stores tail; the consumer loads tail and then reads slots: a
// release store and an acquire load, so that a slot is never read before it was written. The
// consumer reads slots and then stores head; the producer loads head and then writes slots, in the
// same way. How the store of tail is ordered against what the producer does AFTER it is the
// producer's [Order]: a doorbell that is looked at after a publish needs more than a release
// store, and somebody has to pay for that.
//
// # The peer may be hostile
//
// An index that comes out of shared memory is loaded once, compared with the private copies and
// used only if it lies within the ring; otherwise the handle is poisoned for good: its Err is a
// [*CorruptError], and it goes no further than the last index that was possible. Slot
// contents are the caller's to distrust.
//
// # Race detector
//
// Memory outside the Go heap gives the race detector no happens-before edges, so a producer and
// a consumer in one process would look racy for what they hand over. Under -race the package adds
// the edges itself; see race_unsafe.go.
package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
)

// Order says who pays for the order between publishing entries and looking at a doorbell.
type Order uint8

const (
	// SeqCst publishes with a sequentially consistent store (XCHG on amd64, STLR on arm64):
	// a load that the producer issues after Commit is ordered behind the publish.
	SeqCst Order = iota
	// Release publishes with a plain release store. It is for rings whose consumer never sleeps,
	// or whose consumer issues a membarrier(2) on the producer's behalf before it sleeps.
	Release
)

// ErrCorrupt is the sentinel behind every [*CorruptError].
var ErrCorrupt = errors.New("ring: peer wrote an impossible index")

// ErrMisuse is what Err returns when this side was used by two goroutines at once: its private
// indices contradict each other. That is not always found, and never a crash.
var ErrMisuse = errors.New("ring: one side is used by two goroutines at once")

// CorruptError says which index a peer forged. It is final for the handle that returned it.
type CorruptError struct {
	Field    string // "head" or "tail"
	Found    uint64
	Low      uint64 // the smallest index that was possible
	High     uint64 // the largest index that was possible
	Capacity uint64
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("ring: %s is %d, possible were %d to %d (capacity %d): "+
		"the peer is broken or hostile, drop this lane", e.Field, e.Found, e.Low, e.High, e.Capacity)
}

// Is reports a match with [ErrCorrupt] and with EBADMSG, the errno of the same meaning.
func (e *CorruptError) Is(target error) bool {
	return target == ErrCorrupt || target == syscall.EBADMSG
}

// Index is one of the two shared words of a ring, usually in memory that two processes map.
type Index = atomic.Uint64

// check panics on geometry that no mapping of ours can have: both are programming errors of the
// package that laid out the memory, never something that a peer can cause.
func check(capacity int) {
	if capacity == 0 || capacity&(capacity-1) != 0 {
		panic(fmt.Sprintf("ring: capacity %d is not a power of two", capacity))
	}
}

// spans returns the slots of the n indices from at, as one span or, around the end, two. No n leads
// outside the slots, whatever two goroutines made of the indices that it comes from.
func spans[T any](slots []T, at uint64, n int) (a, b []T) {
	i := int(at & uint64(len(slots)-1))
	n = int(min(uint64(n), uint64(len(slots))))
	if end := i + n; end > len(slots) {
		return slots[i:len(slots):len(slots)], slots[: end-len(slots) : end-len(slots)]
	}
	return slots[i : i+n : i+n], nil
}

// Producer is the writing side. One goroutine at a time may use it.
type Producer[T any] struct {
	slots []T
	tail  *Index // this side writes it, the consumer reads it
	head  *Index // the consumer writes it, this side reads it
	next  uint64 // private tail: what is published
	limit uint64 // cached head + capacity: the first index that may not be written
	order Order
	err   *CorruptError
	// misused says that there were two goroutines. What is torn between them must be harmless:
	// every field of a handle is a word, or fixed.
	misused bool
	race    raceEdge
}

// NewProducer returns the producer of the ring over slots, whose length must be a power of two. It
// goes on at index at, which must be what tail holds: 0 for a new ring, the last published index
// after a take-over.
func NewProducer[T any](tail, head *Index, slots []T, at uint64, order Order) *Producer[T] {
	check(len(slots))
	p := &Producer[T]{slots: slots, tail: tail, head: head, next: at, limit: at, order: order}
	p.race.init(tail)
	p.refresh()
	return p
}

// Cap returns how many entries the ring holds.
func (p *Producer[T]) Cap() int { return len(p.slots) }

// Tail returns the index of the next entry to be published.
func (p *Producer[T]) Tail() uint64 { return p.next }

// Err returns the [*CorruptError] or [ErrMisuse] that poisoned the producer, or nil.
func (p *Producer[T]) Err() error {
	if err := p.err; err != nil {
		return err
	}
	if p.misused {
		return ErrMisuse
	}
	return nil
}

// Free returns how many entries fit now. It loads the consumer's index.
func (p *Producer[T]) Free() int {
	p.refresh()
	return int(p.limit - p.next)
}

// Head loads the consumer's index and returns it, or the last possible one that was seen when the
// consumer is found to be corrupt (see Err).
func (p *Producer[T]) Head() uint64 {
	p.refresh()
	return p.limit - uint64(len(p.slots))
}

// Reserve returns up to n free slots, as one span or, around the end of the ring, two. Nothing is
// promised to the consumer until Commit; a second Reserve returns the same slots again. Fewer
// than n, or none, come back when the ring is full or the producer is poisoned (see Err). What was
// reserved before may still be committed then: the limit that an honest index gave stands.
func (p *Producer[T]) Reserve(n int) (a, b []T) {
	if uint64(n) > p.limit-p.next {
		p.refresh()
		n = int(min(uint64(n), p.limit-p.next))
	}
	return spans(p.slots, p.next, n)
}

// Next returns the next free slot if, as far as this side knows, more than keep are free; else nil,
// and Reserve, which looks afresh, may still find room. It is inlined.
func (p *Producer[T]) Next(keep uint64) *T {
	if p.limit-p.next <= keep {
		return nil
	}
	return &p.slots[p.next&uint64(len(p.slots)-1)]
}

// refresh loads the consumer's index once and takes it if it is possible: it lies in
// [cached head, tail]. The load pairs with the consumer's store of head in Release, so that what
// the consumer read from a slot was read before the slot is written again.
func (p *Producer[T]) refresh() {
	if p.err != nil || p.misused {
		return
	}
	capacity := uint64(len(p.slots))
	seen := p.limit - capacity
	h := p.head.Load()
	p.race.acquireFree()
	if h-seen > p.next-seen {
		p.err = &CorruptError{Field: "head", Found: h, Low: seen, High: p.next, Capacity: capacity}
		return
	}
	p.limit = h + capacity
}

// Commit publishes the first k of the reserved slots with one store. k must not exceed what
// Reserve returned: a commit of more publishes nothing and poisons the producer (see [ErrMisuse]).
func (p *Producer[T]) Commit(k int) {
	next := p.next // once: another goroutine must not come between check and store
	if room := p.limit - next; uint64(k) > room || room > uint64(len(p.slots)) {
		p.misused, p.limit = true, next // no call: this is inlined
		return
	}
	p.next = next + uint64(k)
	p.race.releaseFull()
	if p.order == Release {
		StoreRelease(p.tail, p.next)
	} else {
		p.tail.Store(p.next)
	}
}

// Republish stores the tail again, sequentially consistent whatever the order of the producer:
// a full fence behind everything that was published. A producer that publishes with release stores
// calls it once it has seen that its consumer is no longer looking.
func (p *Producer[T]) Republish() { p.tail.Store(p.next) }

// Consumer is the reading side. One goroutine at a time may use it.
type Consumer[T any] struct {
	slots []T
	tail  *Index // the producer writes it, this side reads it
	head  *Index // this side writes it, the producer reads it
	next  uint64 // private head: what is released
	seen  uint64 // cached tail
	err   *CorruptError
	// misused says that there were two goroutines, as in [Producer].
	misused bool
	race    raceEdge
}

// NewConsumer returns the consumer of the ring over slots, whose length must be a power of two. It
// goes on at index at, which must be what head holds.
func NewConsumer[T any](tail, head *Index, slots []T, at uint64) *Consumer[T] {
	check(len(slots))
	c := &Consumer[T]{slots: slots, tail: tail, head: head, next: at, seen: at}
	c.race.init(tail)
	return c
}

// Cap returns how many entries the ring holds.
func (c *Consumer[T]) Cap() int { return len(c.slots) }

// Head returns the index of the first entry that is not released.
func (c *Consumer[T]) Head() uint64 { return c.next }

// Tail loads the producer's index and returns it, or the last possible one that was seen when the
// producer is found to be corrupt (see Err).
func (c *Consumer[T]) Tail() uint64 {
	c.refresh()
	return c.seen
}

// Err returns the [*CorruptError] or [ErrMisuse] that poisoned the consumer, or nil.
func (c *Consumer[T]) Err() error {
	if err := c.err; err != nil {
		return err
	}
	if c.misused {
		return ErrMisuse
	}
	return nil
}

// Len returns how many entries can be read now. It loads the producer's index.
func (c *Consumer[T]) Len() int {
	c.refresh()
	return int(c.seen - c.next)
}

// Waiting returns how many entries were published and not released when the producer's index was
// last loaded.
func (c *Consumer[T]) Waiting() uint64 { return c.seen - c.next }

// Moved reports whether the producer's index is another one than when it was last looked at. It is
// inlined and loads that word only, never a slot, for readers that look again and again; Peek says
// what the change means.
func (c *Consumer[T]) Moved() bool { return c.tail.Load() != c.seen }

// Peek returns up to n published entries in place, from the first that is not released, as one
// span or, around the end of the ring, two. They stay the consumer's until Release. Entries that
// a poisoned producer had published before are still returned; Err says that no more will come.
func (c *Consumer[T]) Peek(n int) (a, b []T) {
	if uint64(n) > c.seen-c.next {
		c.refresh()
		n = int(min(uint64(n), c.seen-c.next))
	}
	return spans(c.slots, c.next, n)
}

// Span is Peek without another look at the producer's index, and no further than the end of the
// ring. It is inlined.
func (c *Consumer[T]) Span(n int) []T {
	i := c.next & uint64(len(c.slots)-1)
	return c.slots[i:][:min(uint64(n), c.seen-c.next, uint64(len(c.slots))-i)]
}

// Front returns the first entry that is not released if, as far as this side knows, there is one;
// else nil. It is inlined.
func (c *Consumer[T]) Front() *T {
	if c.seen == c.next {
		return nil
	}
	return &c.slots[c.next&uint64(len(c.slots)-1)]
}

// PeekFrom is Peek from index at, which must lie in [Head, Tail]: entries before it are handed out
// already and not yet released. Elsewhere there is nothing, and the consumer is poisoned (see
// [ErrMisuse]).
func (c *Consumer[T]) PeekFrom(at uint64, n int) (a, b []T) {
	if at-c.next > c.seen-c.next {
		c.misused, c.seen = true, c.next
		return nil, nil
	}
	if uint64(n) > c.seen-at {
		c.refresh()
		n = int(min(uint64(n), c.seen-at))
	}
	return spans(c.slots, at, n)
}

// refresh loads the producer's index once and takes it if it is possible: it lies in
// [cached tail, head+capacity]. The load pairs with the store in Commit. It is inlined.
func (c *Consumer[T]) refresh() {
	t := c.tail.Load()
	c.race.acquireFull()
	if c.misused || t-c.seen > c.next+uint64(len(c.slots))-c.seen {
		c.poison(t)
		return
	}
	c.seen = t
}

// poison ends a consumer: it looks at a word of its own from now on, which is as impossible.
func (c *Consumer[T]) poison(t uint64) {
	if c.err == nil && !c.misused {
		high := c.next + uint64(len(c.slots))
		c.err = &CorruptError{Field: "tail", Found: t, Low: c.seen, High: high,
			Capacity: uint64(len(c.slots))}
		c.tail = new(Index)
		c.tail.Store(c.seen - 1)
	}
}

// Release gives the first k entries back to the producer with one store. A plain release store is
// enough: nobody sleeps for room. A release of more than there is gives nothing back and poisons
// the consumer (see [ErrMisuse]).
func (c *Consumer[T]) Release(k int) {
	next := c.next // once: another goroutine must not come between check and store
	if left := c.seen - next; uint64(k) > left || left > uint64(len(c.slots)) {
		c.misused, c.seen = true, next // no call: this is inlined
		return
	}
	c.next = next + uint64(k)
	c.race.releaseFree()
	StoreRelease(c.head, c.next)
}

// sync/atomic offers sequentially consistent stores only, which cost an XCHG on amd64: as much as
// the rest of a publish. The two files beside this one say what a release store is instead.

// StoreRelease stores v with release order: everything before it, in program order, is visible to
// a processor that loads v with acquire order. It does not order later loads of this processor;
// that is what makes it cheap, and why a doorbell must not be looked at behind it unless the other
// side pays for the order. Of two stores to one word with no load between them the first may never
// be seen. Under the race detector it is a sync/atomic store.
func StoreRelease(p *Index, v uint64) { storeRelease(p, v) }
