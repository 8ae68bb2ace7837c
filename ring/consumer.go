package ring

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

// Look loads the producer's index.
func (c *Consumer[T]) Look() { c.refresh() }

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
