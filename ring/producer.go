package ring

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
