package wake

import (
	"errors"
	"os"
	"sync"
)

// ErrWaiting says that another goroutine is inside a call of the set. Two sets over the same
// members do not disturb each other.
var ErrWaiting = errors.New("wake: another goroutine waits on this set: give each its own")

// Set is a wait set or poll set: a mask over the domain's bits. Its members must be safe for use by
// several goroutines, or be used only by the goroutine that waits and polls: to look at a queue is
// to use it. Nothing else of the domain touches a member, so a death notice, a signal or the
// keeper of a descriptor needs no shared queue.
//
// One goroutine at a time waits, polls or arms the descriptor: while it looks at a member the list
// lacks it, and a second one would go to sleep on it. Add and Delete may be called from
// anywhere.
type Set struct {
	watcher
	members []Member   // under Domain.mu
	n       int        // under Domain.mu
	turn    sync.Mutex // held by the one who waits, polls or closes
}

// NewSet returns an empty set.
func (d *Domain) NewSet() *Set {
	s := new(Set)
	d.watch(&s.watcher)
	return s
}

// Add makes m, which owns the given bit of the domain, a member. The member's flag comes first, so
// that no producer publishes unseen between the two; a set that sleeps is woken to look.
func (s *Set) Add(bit int, m Member) {
	d := s.d
	d.member.Lock()
	defer d.member.Unlock()
	if b, ok := m.(*Bell); ok {
		b.SetDomain(d, bit)
	}
	d.mu.Lock()
	had, closed := s.mask.has(bit), s.closed
	d.mu.Unlock()
	if closed {
		return
	}
	if !had {
		if d.joined[bit]++; d.joined[bit] == 1 {
			m.Join(true)
		}
	}
	d.mu.Lock()
	if !had {
		s.n++
	}
	for len(s.members) <= bit {
		s.members = append(s.members, nil)
	}
	s.members[bit] = m
	s.mask.set(bit)
	s.put(bit/64, 1<<(bit%64))
	waiting := d.nw > 0
	d.mu.Unlock()
	if waiting {
		d.Kick()
	}
}

// Delete removes a member; one that no other set has loses its flag. A call that is under way in
// another goroutine may still look at it once.
func (s *Set) Delete(bit int) {
	s.d.member.Lock()
	defer s.d.member.Unlock()
	s.drop(bit)
}

// drop is Delete under Domain.member.
func (s *Set) drop(bit int) {
	d := s.d
	d.mu.Lock()
	had := s.mask.has(bit)
	var m Member
	if had {
		m, s.members[bit] = s.members[bit], nil
		s.mask.clear(bit)
		s.todo.clear(bit)
		s.n--
	}
	d.mu.Unlock()
	if !had {
		return
	}
	if d.joined[bit]--; d.joined[bit] == 0 {
		m.Join(false)
	}
}

// Wait appends the bits of the members that have something to dst and returns it; none at the
// deadline, or when Stop says so. With a negative deadline it looks once. A member stays ready
// until it was found empty. If dst has room, at most so many are appended as fit, and those that
// did not fit come first the next time; else dst grows. ErrWaiting says that another goroutine is
// inside, os.ErrClosed that the set was closed. An error of a member is returned when no other one
// is ready.
func (s *Set) Wait(dst []int, w Wait) ([]int, error) {
	if !s.turn.TryLock() {
		return dst, ErrWaiting
	}
	defer s.turn.Unlock()
	p := patience{w: w}
	for {
		ready, err := s.poll(dst)
		if err != nil || len(ready) > len(dst) || p.over() {
			return ready, err
		}
		p.sleep(&s.watcher)
	}
}

// poll is S1 and S2.
func (s *Set) poll(dst []int) ([]int, error) {
	passAll()
	s.d.mu.Lock()
	s.d.takeLocked()
	closed, begin := s.closed, s.next
	s.d.mu.Unlock()
	if closed {
		return dst, os.ErrClosed
	}
	room := cap(dst) - len(dst)
	if room == 0 {
		room = s.d.bits
	}
	had := len(dst)
	limit := had + room
	dst, err := s.look(dst, limit, begin, s.d.bits)
	if err == nil {
		dst, err = s.look(dst, limit, 0, begin)
	}
	if err != nil && len(dst) > had {
		// What is ready goes first; the member that failed comes first the next time.
		s.d.mu.Lock()
		s.next--
		s.d.mu.Unlock()
		err = nil
	}
	return dst, err
}

// look is S2 for the bits in [from, to), until dst has limit: each member leaves the list before it
// is looked at and goes back if it has something.
func (s *Set) look(dst []int, limit, from, to int) ([]int, error) {
	for len(dst) < limit {
		s.d.mu.Lock()
		bit := s.pick(from, to)
		var m Member
		if bit >= 0 {
			m = s.members[bit]
		}
		s.d.mu.Unlock()
		if bit < 0 {
			break
		}
		more, signaled, err := m.Look()
		ready := more || signaled
		if ready || err != nil {
			s.d.mu.Lock()
			s.put(bit/64, s.mask[bit/64]&(1<<(bit%64)))
			s.next = bit + 1
			s.d.mu.Unlock()
		}
		if err != nil {
			return dst, err
		}
		if ready {
			dst = append(dst, bit)
		}
		from = bit + 1
	}
	return dst, nil
}

// Face returns the set's descriptor, for the caller's own poll or epoll, making it at the first
// call. It belongs to the set. Before every blocking wait on it TryWait must have reported that
// nothing is ready.
func (s *Set) Face() (*Face, error) { return s.d.describe(&s.watcher) }

// TryWait arms the descriptor: it is readable as soon as a member may have something, unless ready
// says that one has, or may have, something now. The arming stands until the next call. Errors are
// those of Wait.
func (s *Set) TryWait() (ready bool, err error) {
	face, err := s.Face()
	if err != nil {
		return false, err
	}
	if !s.turn.TryLock() {
		return false, ErrWaiting
	}
	defer s.turn.Unlock()
	var one [1]int
	if found, err := s.poll(one[:0]); err != nil || len(found) > 0 {
		return err == nil, err
	}
	// The reset comes before the arming: what rings after it stays visible.
	if err := face.Reset(); err != nil {
		return false, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.lowered = !s.d.busy(&s.watcher)
	return !s.lowered, nil
}

// Close takes the set out of the domain: members that no other set has lose their flag. It waits
// for a call in another goroutine, which returns os.ErrClosed, and closes the descriptor.
func (s *Set) Close() {
	s.d.leave(&s.watcher)
	s.turn.Lock()
	defer s.turn.Unlock()
	s.d.member.Lock()
	defer s.d.member.Unlock()
	for bit := s.mask.next(0); bit >= 0; bit = s.mask.next(bit + 1) {
		s.drop(bit)
	}
	s.d.undescribe(&s.watcher)
}

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
