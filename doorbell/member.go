package doorbell

// Member is what a wait set looks at: a queue's [Bell], or anything else whose producers ring the
// domain. Both methods run without the domain's locks, and may be called while the member is
// being removed from the set by another goroutine: one that goes away must see to it that a late
// call finds it gone.
type Member interface {
	// Look is S2 for one member: under the member's own lock it takes what is marked, parks what
	// is hot and looks again. more says that a read would return something, signaled that a signal
	// is there: either makes the member ready. An error puts the member back on the list and ends
	// the wait.
	Look() (more, signaled bool, err error)
	// Join sets or clears the flag that makes the member's producers ring the domain. Whatever
	// else changes the member at that time must not undo it.
	Join(on bool)
}

// seat is a queue's place in the bell of its process.
type seat struct {
	d      *Domain
	ringer DomainRinger
}

// SetDomain tells the bell which bit of the domain is its own. From then on Signal, Kick, Mark and
// Consider also reach the sets and channels that have the queue. It may be called from anywhere.
func (b *Bell) SetDomain(d *Domain, bit int) {
	b.seat.Store(&seat{d: d, ringer: DomainRinger{Arm: d.arm, Hints: d.hints, Bit: bit}})
}

// Look implements [Member]. It takes the lock. A signal stays: whoever ends a wait for it takes it
// with TakeSignal.
func (b *Bell) Look() (more, signaled bool, err error) {
	b.Lock()
	defer b.Unlock()
	b.Take()
	more, err = b.Park()
	return more, b.hints.latch.Load() != 0, err
}

// Join implements [Member]. It may be called from anywhere, also on a queue that is not shared, and
// leaves the rest of the armed word to those who arm.
func (b *Bell) Join(on bool) {
	if on {
		b.arm.Word.Or(armDom)
	} else {
		b.arm.Word.And(^uint64(armDom))
	}
}

// member reports whether a set has the queue, or a channel is armed for it.
func (b *Bell) member() bool { return b.arm.Word.Load()&(armDom|armNotify) != 0 }

func (b *Bell) tellDomain() {
	if s := b.seat.Load(); s != nil {
		s.d.Consider(s.ringer.Bit)
	}
}
