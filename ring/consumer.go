package ring

// Consumer is the reading side. One goroutine at a time may use it.
type Consumer[T any] struct {
	slots []T
	tail  *Index // the producer writes it, this side reads it
	head  *Index // this side writes it, the producer reads it
	next  uint64 // private head: what is released
	seen  uint64 // cached tail
	err   error
	race  raceEdge
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

// Err returns the [*CorruptError] that poisoned the consumer, or nil.
func (c *Consumer[T]) Err() error { return c.err }

// Len returns how many entries can be read now. It loads the producer's index.
func (c *Consumer[T]) Len() int {
	c.refresh()
	return int(c.seen - c.next)
}

// Waiting returns how many entries were published and not released when the producer's index was
// last loaded.
func (c *Consumer[T]) Waiting() uint64 { return c.seen - c.next }

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

// PeekFrom is Peek from index at, which must lie in [Head, Tail]: entries before it are handed out
// already and not yet released.
func (c *Consumer[T]) PeekFrom(at uint64, n int) (a, b []T) {
	if at-c.next > c.seen-c.next {
		panic("ring: peek outside the published entries")
	}
	if uint64(n) > c.seen-at {
		c.refresh()
		n = int(min(uint64(n), c.seen-at))
	}
	return spans(c.slots, at, n)
}

// refresh loads the producer's index once and takes it if it is possible: it lies in
// [cached tail, head+capacity]. The load pairs with the store in Commit.
func (c *Consumer[T]) refresh() {
	if c.err != nil {
		return
	}
	capacity := uint64(len(c.slots))
	t := c.tail.Load()
	c.race.acquireFull()
	if t-c.seen > c.next+capacity-c.seen {
		c.err = &CorruptError{Field: "tail", Found: t, Low: c.seen, High: c.next + capacity,
			Capacity: capacity}
		return
	}
	c.seen = t
}

// Release gives the first k entries back to the producer with one store. A plain release store is
// enough: nobody sleeps for room.
func (c *Consumer[T]) Release(k int) {
	if uint64(k) > c.seen-c.next {
		panic("ring: release of more entries than were read")
	}
	c.next += uint64(k)
	c.race.releaseFree()
	StoreRelease(c.head, c.next)
}
