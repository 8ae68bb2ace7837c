package doorbell

import (
	"math/bits"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/spin"
)

func lowest(x uint64) int { return bits.TrailingZeros64(x) }

// Wait says how long [Bell.Sleep] may sleep.
type Wait struct {
	// DeadlineNs is of the monotonic clock; 0 is none. A negative one is for calls of sets and
	// channels: they look once.
	DeadlineNs int64
	// SliceNs bounds one sleep where a producer's death would not be noticed otherwise; 0 is none.
	SliceNs int64
	// Stop is asked after the epoch was loaded, so that whoever makes it true and then calls
	// Kick cannot be missed. It may be nil.
	Stop func() bool
	// Missing is how many entries the caller still waits for, beyond those that it counted and
	// left in their lanes; 0 means any entry, with all lanes found empty.
	Missing uint64
	// Takes is what Bell.Take returned when the caller began to look; for Missing > 0 only.
	Takes uint64
}

// Sleep is R5 to R9, to be called without the lock after Park reported that nothing is there. It
// returns when a look is worth while, at the deadline, the end of a slice, or for no reason.
func (b *Bell) Sleep(w Wait) {
	e := b.hints.epoch.Load() // R5
	b.Lock()
	thr := uint64(0)
	if w.Missing > 0 {
		b.counts++
		// The indices gate every bell of the queue, so they are for a reader that is alone.
		if b.direct == 0 && b.armed()&armFD == 0 {
			thr = armThr
			b.setIndices(w.Missing)
		}
	}
	b.direct++
	b.renumber()
	b.alter(armThr, armDirect|thr) // R6
	crash.At(crash.ArmStored)
	// R7, with the shared bits and what other goroutines of this process took from them.
	busy := b.news() || b.hints.latch.Load() != 0
	if w.Missing > 0 {
		busy = busy || b.takes != w.Takes
	} else {
		busy = busy || !b.cand.empty()
	}
	b.Unlock()
	if !busy && (w.Stop == nil || !w.Stop()) {
		b.sleeps.Add(1)
		crash.At(crash.SleepNext)
		b.doze(e, w.until()) // R8
		crash.At(crash.SleepEnded)
	}
	b.Lock()
	if w.Missing > 0 {
		b.counts--
	}
	b.direct-- // R9: only the last to leave disarms, else it would mute the others
	if b.direct == 0 {
		b.alter(armDirect|armThr, 0)
	}
	b.Unlock()
}

func (w Wait) until() int64 {
	if w.SliceNs == 0 {
		return w.DeadlineNs
	}
	slice := spin.Now() + w.SliceNs
	if slice > 0 && (w.DeadlineNs == 0 || slice < w.DeadlineNs) { // else it is beyond all time
		return slice
	}
	return w.DeadlineNs
}

// setIndices spreads what is missing over the known lanes: if every lane stays below its share,
// the sum stays below what is missing, so one of them rings in time. A lane that the reader
// does not know yet has index 0 and rings at once.
//
// A share is added to a tail no newer than the caller's count, or an entry that came in between
// would stand in the index and in what is missing too. That is the tail which Park saw, if the
// caller is the only one who parks; else the head, which rings too early rather than too late.
func (b *Bell) setIndices(missing uint64) {
	share := max(1, (missing+uint64(b.known)-1)/max(1, uint64(b.known)))
	for bit := range b.lanes {
		l := &b.lanes[bit]
		if !b.Knows(bit) {
			continue
		}
		head, _ := l.Source.Level()
		base := head
		if !b.shared && b.cand.has(bit) {
			base = b.seen[bit]
		}
		l.Row.Index.Store(min(base+share, head+l.Capacity))
	}
}

// TryWait is the arming of the descriptor: everything is parked and looked at, and the user may
// block on the face's descriptor if TryWait reports that nothing is there. The arming stands
// until the next one; a producer rings it once.
func (b *Bell) TryWait() (ready, signaled bool, err error) {
	b.Lock()
	defer b.Unlock()
	b.Take()
	if more, err := b.Park(); more || err != nil {
		return more, false, err
	}
	if b.TakeSignal() {
		return true, true, nil
	}
	// The reset comes before the arming: what rings after it stays visible.
	if err := b.face.Reset(); err != nil {
		return false, false, err
	}
	b.renumber()
	b.alter(armThr, armFD)
	return b.news() || !b.cand.empty() || b.hints.latch.Load() != 0, false, nil
}

// Kick wakes everyone who waits, on futex and descriptor, whatever was armed, and makes the sets
// and channels that have the queue look at it: for closing, for a cancelled context and for a
// producer's death. It may be called from anywhere.
func (b *Bell) Kick() {
	b.hints.epoch.Add(1)
	futex.WakeAll(b.hints.epoch)
	if b.face != nil {
		b.face.Set()
	}
	if b.member() {
		b.tellDomain()
	}
}

// Mark sets a lane's ready bit and kicks: what a producer that died between publish and ring did
// not do any more. It may be called from anywhere.
func (b *Bell) Mark(bit int) {
	mark(b.hints.ready, bit)
	b.Kick()
}

// Signal is [Signal] by the reader's own process. It may be called from anywhere.
func (b *Bell) Signal() {
	b.hints.latch.Store(1)
	w := b.arm.Word.Load()
	ringQueue(w, b.hints, func(uint64) int {
		if b.face == nil {
			return -1
		}
		return b.face.EventFD()
	})
	if s := b.seat.Load(); s != nil && w&armDom != 0 {
		s.ringer.ring()
	}
}

// renumber gives the next arming its number, which is not the one that was rung last: after 2^32
// armings without a ring it would be that again, and no producer would ring this one.
func (b *Bell) renumber() {
	b.seq++
	if b.hints.rung.Load() == uint64(b.seq) {
		b.seq++
	}
}

// Disarm is for a reader that leaves: nobody of it waits any more, and producers need not ring.
func (b *Bell) Disarm() { b.store(0) }

func (b *Bell) armed() uint64 { return b.arm.Word.Load() & armFlags }

// store writes the armed word. Every arming has a new sequence number; taking flags away keeps it.
func (b *Bell) store(flags uint64) {
	b.arm.Word.Store(b.gen | flags | uint64(b.seq))
}

// alter clears and sets flags, and stores the present sequence number with them. It is one atomic
// step: a set may take the queue on, or give it up, from another goroutine than the queue's own.
func (b *Bell) alter(clear, set uint64) {
	for {
		old := b.arm.Word.Load()
		if b.arm.Word.CompareAndSwap(old, b.gen|old&armFlags&^clear|set|uint64(b.seq)) {
			return
		}
	}
}
