package doorbell

import (
	"errors"
	"sync"
	"sync/atomic"
)

// DomainRinger is a producer's hold on the bell of a reader's process.
type DomainRinger struct {
	Arm   *Arm
	Hints *Hints
	Bit   int // of the queue among the domain's
}

// ring is P6 and P7. It reports whether it woke anyone.
func (r *DomainRinger) ring() bool {
	mark(r.Hints.ready, r.Bit) // P6
	mark(r.Hints.summary, r.Bit/64)
	a := r.Arm.Word.Load() // P7
	if a == 0 || r.Hints.rung.Load() == a {
		return false
	}
	r.Hints.epoch.Add(1)
	wakeAll(r.Hints.epoch)
	r.Hints.rung.Store(a)
	return true
}

// Domain is the bell of a reader's process: one futex word, a bit per queue. Safe for use by
// several goroutines.
type Domain struct {
	member sync.Mutex // held while a set's members and a queue's flag change; before mu

	mu    sync.Mutex
	arm   *Arm
	hints *Hints
	bells []*Bell
	sets  []*Set
	seq   uint64
	nw    int // goroutines in Set.Wait
}

// NewDomain returns the bell of this process over words that the caller mapped.
func NewDomain(arm *Arm, hints *Hints, queues int) *Domain {
	return &Domain{arm: arm, hints: hints, bells: make([]*Bell, queues),
		seq: arm.Word.Load()}
}

// Register gives the bell of a queue its bit.
func (d *Domain) Register(bit int, b *Bell) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bells[bit] = b
}

// Kick wakes everyone who waits on a set of the domain, whatever was armed: for what [Wait].Stop
// asks. It may be called from anywhere.
func (d *Domain) Kick() {
	d.hints.epoch.Add(1)
	wakeAll(d.hints.epoch)
}

// ErrWaiting says that another goroutine waits on the set. Two sets over the same queues do not
// disturb each other.
var ErrWaiting = errors.New("doorbell: another goroutine waits on this set: give each its own")

// Set is a wait set: a mask over the domain's bits. Its queues must be shared, or used only by
// the goroutine that waits on the set. One goroutine at a time waits on it: while it looks at a
// queue the list lacks that queue, and a second one would go to sleep on it.
type Set struct {
	d    *Domain
	mask bitset // under d.mu
	todo bitset // under d.mu: queues to look at before sleeping
	busy atomic.Bool
}

// NewSet returns an empty wait set.
func (d *Domain) NewSet() *Set {
	s := &Set{d: d, mask: newBitset(len(d.bells)), todo: newBitset(len(d.bells))}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sets = append(d.sets, s)
	return s
}

// Add makes the queue with the given bit a member. The queue's flag comes first, so that no
// producer publishes unseen between the two; a set that sleeps is woken to look.
func (s *Set) Add(bit int) {
	s.d.member.Lock()
	defer s.d.member.Unlock()
	b := s.d.bells[bit]
	b.Lock()
	b.store(b.armed() | armDom)
	b.Unlock()
	s.d.mu.Lock()
	s.mask.set(bit)
	s.todo.set(bit)
	waiting := s.d.arm.Word.Load() != 0
	s.d.mu.Unlock()
	if waiting {
		s.d.Kick()
	}
}

// Delete removes a member.
func (s *Set) Delete(bit int) {
	s.d.member.Lock()
	defer s.d.member.Unlock()
	s.d.mu.Lock()
	s.mask.clear(bit)
	s.todo.clear(bit)
	member := false
	for _, t := range s.d.sets {
		member = member || t.mask.has(bit)
	}
	s.d.mu.Unlock()
	if member {
		return
	}
	b := s.d.bells[bit]
	b.Lock()
	b.store(b.armed() &^ armDom)
	b.Unlock()
}

// Wait appends the bits of the queues that have entries to dst and returns it; none at the
// deadline, or when Stop says so. A queue stays ready until it was found empty. ErrWaiting says
// that another goroutine is inside.
func (s *Set) Wait(dst []int, w Wait) ([]int, error) {
	if !s.busy.CompareAndSwap(false, true) {
		return dst, ErrWaiting
	}
	defer s.busy.Store(false)
	for {
		s.take() // S1
		ready, err := s.look(dst)
		if err != nil || len(ready) > len(dst) {
			return ready, err
		}
		if w.Stop != nil && w.Stop() || w.DeadlineNs > 0 && Now() >= w.DeadlineNs {
			return dst, nil
		}
		s.sleep(w)
	}
}

// take is S1: the domain's bits go to every set that has them in its mask, in one critical section.
func (s *Set) take() {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.hints.summary {
		for x := d.hints.summary[i].Load(); x != 0; x &= x - 1 {
			word := i*64 + lowest(x)
			if word >= len(d.hints.ready) {
				continue
			}
			// Summary before leaf, the opposite of the producer's order: a bit that is set in
			// between leaves its summary set.
			d.hints.summary[i].And(^(uint64(1) << (word % 64)))
			got := d.hints.ready[word].Swap(0)
			for _, t := range d.sets {
				t.todo[word] |= got & t.mask[word]
			}
		}
	}
}

// look is S2: each queue leaves the list before it is looked at and goes back if it is not empty.
func (s *Set) look(dst []int) ([]int, error) {
	n := len(dst)
	for bit := s.next(0); bit >= 0; bit = s.next(bit + 1) {
		b := s.d.bells[bit]
		b.Lock()
		b.Take()
		more, err := b.Park()
		b.Unlock()
		if more || err != nil {
			s.d.mu.Lock()
			if s.mask.has(bit) {
				s.todo.set(bit)
			}
			s.d.mu.Unlock()
		}
		if err != nil {
			return dst[:n], err
		}
		if more {
			dst = append(dst, bit)
		}
	}
	return dst, nil
}

func (s *Set) next(from int) int {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	bit := s.todo.next(from)
	if bit >= 0 {
		s.todo.clear(bit)
	}
	return bit
}

// sleep is S3 to S7.
func (s *Set) sleep(w Wait) {
	d := s.d
	e := d.hints.epoch.Load() // S3
	d.mu.Lock()
	d.seq++
	d.arm.Word.Store(d.seq) // S4
	d.nw++
	busy := !s.todo.empty() || s.marked() // S5
	d.mu.Unlock()
	if !busy && (w.Stop == nil || !w.Stop()) {
		wait(d.hints.epoch, e, w.until()) // S6
	}
	d.mu.Lock()
	d.nw-- // S7
	if d.nw == 0 {
		d.arm.Word.Store(0)
	}
	d.mu.Unlock()
}

// marked looks through the summary, as take does: a bit whose summary is not set yet belongs to a
// producer that still has P7 before it.
func (s *Set) marked() bool {
	h := s.d.hints
	for i := range s.mask {
		if h.summary[i/64].Load()>>(i%64)&1 != 0 && h.ready[i].Load()&s.mask[i] != 0 {
			return true
		}
	}
	return false
}
