package wake

import (
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/futex"
)

// Ringer is a producer's hold on the bell of a queue. One goroutine at a time may use it.
type Ringer struct {
	row   *Row
	word  *atomic.Uint64 // the row's parked word: one step less in Published, which is inlined
	arm   *Arm
	hints *Hints
	bit   int
	// Fence runs when the producer finds itself parked, before it goes on (P2'). It is nil if
	// publishes are sequentially consistent already; otherwise it must be a full fence behind
	// the publish, because from here on the reader does not pay any more.
	fence func()
	// face returns the descriptor of the reader's generation, or -1. What it returns is kept as
	// long as the reader is the same.
	face    func(generation uint16) int
	faceFD  int
	faceMu  sync.Mutex // a descriptor is closed once, even if two goroutines are here
	faceGen uint32     // generation + 1 of faceFD; 0 is none
	// domain returns a hold on the bell of the reader's process, or nil; likewise.
	domain func(generation uint16) *DomainRinger
	dom    *DomainRinger
	domGen uint16 // of dom

	beside *Bell // of the reader, if that is in this process

	// rung is nil unless the reader is another user's: then it is all that this side rings.
	rung *atomic.Uint32
	rang uint64 // sequence number of the arming that it rang last, and rangBit

	wakes atomic.Uint64 // batches; written by this goroutine, read by Stats
}

const rangBit = 1 << 32

// RingerConfig is what a producer knows of the queue that it is attached to.
type RingerConfig struct {
	Row   *Row
	Arm   *Arm
	Hints *Hints
	Bit   int // the lane's bit among the ready bits
	Fence func()
	Face  func(generation uint16) int
	// Domain returns the bell of the reader's process. It is asked for when the reader wants it
	// rung and none of this generation is known; nil says that it cannot be reached now, and it
	// is asked again the next time. What it returned for another generation is not used again.
	Domain func(generation uint16) *DomainRinger
	// Beside is the reader's bell if that is the producer's own, who closes the ringer before it. It
	// is in the place of Face and Domain, and takes no descriptor.
	Beside *Bell
	// Rung is the word of the producer's own lane in which it counts its rings, if the reader is
	// another user's, whose memory it cannot write to. Hints, Bit, Fence and Domain mean nothing
	// then, and Face returns the writing end of a pipe.
	Rung *atomic.Uint32
}

// Holds says what a published batch holds that somebody may wait for.
type Holds uint8

const (
	// HoldsSolicited says that the poster asked for an event for an entry.
	HoldsSolicited Holds = 1 << iota
	// HoldsError says that there is an error, which ends a wait for more entries and counts as
	// solicited.
	HoldsError
)

// NewRinger returns the ringer of one lane.
func NewRinger(c RingerConfig) *Ringer {
	return &Ringer{row: c.Row, word: &c.Row.Parked, arm: c.Arm, hints: c.Hints, bit: c.Bit,
		fence: c.Fence, face: c.Face, faceFD: -1, domain: c.Domain, beside: c.Beside, rung: c.Rung}
}

// Published is P2 to P7, to be called after each publish: tail is the published index. It returns
// the row word as it was seen, 0 while the reader is awake and all is well.
func (r *Ringer) Published(tail uint64, holds Holds) uint64 {
	w := r.word.Load() // P2; pairs with the store in Bell.Park (R4)
	if w != 0 {
		r.ringBatch(w, tail, holds)
	}
	return w
}

// ringBatch is apart, so that Published is inlined.
//
//go:noinline
func (r *Ringer) ringBatch(row, tail uint64, holds Holds) {
	if r.ring(row, tail, holds) {
		r.wakes.Add(1)
	}
}

// Remind rings for what was published before, whose mark may be lost.
func (r *Ringer) Remind(tail uint64, holds Holds) { r.ring(r.word.Load(), tail, holds) }

// Flags loads the row word: what the layer above put beside Parked.
func (r *Ringer) Flags() uint64 { return r.row.Parked.Load() }

// Wakes returns for how many batches this producer made system calls to wake the reader. What else
// it woke the reader for is not counted.
func (r *Ringer) Wakes() uint64 { return r.wakes.Load() }

// Announce is P3 to P7 whatever the row word says: the reader learns of a lane that was just born,
// or looks at one that it ignores.
func (r *Ringer) Announce() { r.ring(Parked, 0, HoldsError) }

func (r *Ringer) ring(row, tail uint64, holds Holds) (woke bool) {
	if row&Parked == 0 {
		return false
	}
	if r.rung != nil {
		return r.ringOwn(tail, holds)
	}
	crash.At(crash.RingParked)
	if r.fence != nil {
		r.fence() // P2'
	}
	mark(r.hints.ready, r.bit) // P3
	crash.At(crash.RingMarked)
	w := r.arm.Word.Load() // P4
	if w&armFlags == 0 {
		return false
	}
	// P5. The index is loaded after w: it was stored before this arming.
	if w&armThr == 0 || holds&HoldsError != 0 || tail >= r.row.Index.Load() {
		woke = ringQueue(w, r.hints, r.descriptor)
	}
	if n := notifyOf(w); w&armDom != 0 || n == NotifyAny || n == NotifySolicited && holds != 0 {
		if d := r.reach(w); d != nil && d.ring() {
			woke = true
		}
	}
	return woke
}

// ringOwn is what a producer does in place of P3 to P7 whose reader is another user's: everything
// it writes is its own. Wakes are muted, by the sequence number of an arming for which it has rung,
// only while nobody but the reader itself may sleep on the word: a forwarder is not armed, it
// always listens.
func (r *Ringer) ringOwn(tail uint64, holds Holds) (woke bool) {
	crash.At(crash.OthersParked)
	r.rung.Add(1) // Q3; pairs with the load in Bell.hear (H1), and with R8
	crash.At(crash.OthersCounted)
	w := r.arm.Word.Load() // Q4
	if w&armFlags == 0 {
		return false
	}
	others := w&armDom != 0 || notifyOf(w) != NotifyNone
	if !others && w&armThr != 0 && holds&HoldsError == 0 && tail < r.row.Index.Load() {
		return false
	}
	seq := rangBit | uint64(uint32(w))
	fresh := seq != r.rang
	if w&armFD != 0 && fresh { // Q5
		if fd := r.descriptor(w); fd < 0 || writeByte(fd) != nil {
			seq = 0 // that is left to the next publish
		}
		crash.At(crash.OthersPiped)
		woke = true
	}
	if others || w&armDirect != 0 && fresh {
		// Once more, behind the load of armed: the reader may have heard the first already and be
		// about to sleep, and this wake would find nobody while it mutes the next.
		r.rung.Add(1) // Q6
		crash.At(crash.OthersAgain)
		futex.WakeAll(r.rung) // Q7
		crash.At(crash.OthersWoken)
		woke = true
	}
	r.rang = seq
	return woke
}

// reach returns the hold on the bell of the reader's process, asking for it when the reader has
// changed, or could not be reached so far.
func (r *Ringer) reach(w uint64) *DomainRinger {
	if r.beside != nil {
		return r.beside.domainRinger()
	}
	gen := uint16(w >> armGenShift)
	if r.dom == nil || r.domGen != gen {
		r.dom, r.domGen = nil, gen
		if r.domain != nil {
			r.dom = r.domain(gen)
		}
	}
	return r.dom
}

// descriptor returns the reader's descriptor for the generation in w, asking for it when the
// reader has changed, or could not be reached so far.
func (r *Ringer) descriptor(w uint64) int {
	if r.beside != nil {
		return r.beside.descriptor(w)
	}
	gen := uint16(w >> armGenShift)
	r.faceMu.Lock()
	defer r.faceMu.Unlock()
	if r.faceGen != uint32(gen)+1 || r.faceFD < 0 {
		eventfd.Close(r.faceFD)
		r.faceFD, r.faceGen = -1, uint32(gen)+1
		if r.face != nil {
			r.faceFD = r.face(gen)
		}
	}
	return r.faceFD
}

// Close releases the descriptor that the ringer holds.
func (r *Ringer) Close() {
	eventfd.Close(r.faceFD)
	r.faceFD, r.faceGen = -1, 0
}

// ringQueue is P5 for the arming w: wake first, then mark it rung, so that whoever stops between
// the two mutes nobody. Plain stores of rung suffice, since it is compared for equality only.
func ringQueue(w uint64, h *Hints, descriptor func(uint64) int) bool {
	seq := uint64(uint32(w))
	if w&(armDirect|armFD) == 0 || h.rung.Load() == seq {
		return false
	}
	h.epoch.Add(1)
	if w&armDirect != 0 {
		futex.WakeAll(h.epoch)
	}
	if w&armFD != 0 {
		if fd := descriptor(w); fd < 0 || eventfd.Write(fd) != nil {
			return true // it is not rung: leave that to a producer who has a descriptor
		}
	}
	crash.At(crash.RingWoken)
	h.rung.Store(seq)
	return true
}

// Signal leaves a signal that exactly one waiter of the queue takes: now if one waits, later if
// not. It is the latch, then [Ring] for all but channels.
func Signal(arm *Arm, h *Hints, descriptor func(generation uint16) int,
	domain func(generation uint16) *DomainRinger) {
	h.latch.Store(1)
	ringAll(arm, h, armDom, descriptor, domain)
}

// Ring has whoever sleeps on the queue look at what was published and marked: it is P4 to P7
// without an index, and safe from anywhere, as one wake too many does no harm. descriptor is asked
// for the reader's descriptor if its user sleeps on one, domain for the bell of the reader's
// process if a set or channel has the queue; both may be nil.
func Ring(arm *Arm, h *Hints, descriptor func(generation uint16) int,
	domain func(generation uint16) *DomainRinger) {
	ringAll(arm, h, armDom|armNotify, descriptor, domain)
}

func ringAll(arm *Arm, h *Hints, domainFlags uint64, descriptor func(generation uint16) int,
	domain func(generation uint16) *DomainRinger) {
	w := arm.Word.Load()
	if w&armFlags == 0 {
		return
	}
	ringQueue(w, h, func(w uint64) int {
		if descriptor == nil {
			return -1
		}
		return descriptor(uint16(w >> armGenShift))
	})
	if w&domainFlags == 0 || domain == nil {
		return
	}
	if d := domain(uint16(w >> armGenShift)); d != nil {
		d.ring()
	}
}
