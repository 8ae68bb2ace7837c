package wake

import (
	"math/bits"
	"sync/atomic"

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
	// Asleep is told of each sleep of a set or channel, and what it returns of the end of it. Both
	// may be nil.
	Asleep func() (awake func())
	// Missing is how many entries the caller still waits for, beyond those that it counted and
	// left in their lanes; 0 means any entry, with all lanes found empty.
	Missing uint64
	// Feeders are bells of what posts into the queue by the reader's own progress: the sleep ends with
	// theirs too. Each was parked since it was looked at, and all of them are shared.
	Feeders []*Bell
	// Takes is what Bell.Take returned when the caller began to look; for Missing > 0 only.
	Takes uint64
}

// Sleep is R5 to R9, to be called without the lock after Park reported that nothing is there. It
// returns when a look is worth while, at the deadline, the end of a slice, or for no reason.
//
// With feeders every epoch is loaded before the first bell is armed, and every bell is looked at
// again after it was armed, under its lock: who took its marks meanwhile left candidates.
func (b *Bell) Sleep(w Wait) {
	var room [feederRoom]futex.Watched
	words := append(room[:0], futex.Watched{Value: uint64(b.hints.epoch.Load()), Word: b.hints.epoch})
	for _, f := range w.Feeders { // R5
		words = append(words, futex.Watched{Value: uint64(f.hints.epoch.Load()), Word: f.hints.epoch})
	}
	busy := b.rouse(w)
	for _, f := range w.Feeders {
		busy = f.rouse(Wait{}) || busy
	}
	if !busy && (w.Stop == nil || !w.Stop()) {
		b.sleeps.Add(1)
		crash.At(crash.SleepNext)
		b.doze(words, w.until()) // R8
		crash.At(crash.SleepEnded)
	}
	for _, f := range w.Feeders {
		f.calm(Wait{})
	}
	b.calm(w)
}

// MostWords is how many words one sleep has room for: the queue's own, one of each feeder, and one
// of each lane of another user.
const MostWords = futex.MostWords

// feederRoom is for how many words a sleep needs no allocation.
const feederRoom = 4

// rouse is R6 and R7: it reports that there is something to look at.
func (b *Bell) rouse(w Wait) (busy bool) {
	b.Lock()
	defer b.Unlock()
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
	busy = b.ended || b.news() || b.hints.latch.Load() != 0
	if w.Missing > 0 {
		busy = busy || b.takes != w.Takes
	} else {
		busy = busy || !b.cand.empty()
	}
	return busy
}

// calm is R9: only the last to leave disarms, else it would mute the others.
func (b *Bell) calm(w Wait) {
	b.Lock()
	defer b.Unlock()
	if w.Missing > 0 {
		b.counts--
	}
	b.direct--
	if b.direct == 0 {
		b.alter(armDirect|armThr, 0)
	}
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

// End wakes everyone who sleeps on the bell, and nobody will any more.
func (b *Bell) End() {
	b.ended = true
	b.Kick()
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
	ringQueue(w, b.hints, b.descriptor)
	if d := b.domainRinger(); d != nil && w&armDom != 0 {
		d.ring()
	}
}

// descriptor returns what a ring of this process writes to, or -1.
func (b *Bell) descriptor(uint64) int {
	if b.face == nil {
		return -1
	}
	return b.face.EventFD()
}

// domainRinger returns this process's hold on its own bell, or nil if the queue has no place there.
func (b *Bell) domainRinger() *DomainRinger {
	if s := b.seat.Load(); s != nil {
		return &s.ringer
	}
	return nil
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

// A producer of another user cannot write to the reader's hints. It counts its rings in a word of
// its own lane, rung, and the reader listens there: H1 turns every count that has changed into the
// ready bit that the producer could not set, and R8 sleeps on these words beside the queue's own.
type listened struct {
	bit   int
	word  *atomic.Uint32 // mapped read-only: the producer writes it
	heard uint32         // what it held when it was last turned into a mark
	alarms
}

// alarms find out a producer that rings though it has published nothing: soon nobody listens to it
// for a while, so that it cannot keep the reader busy. Its own entries are what comes late then.
type alarms struct {
	tail     uint64 // as far as it had come at a ring
	mistaken int    // rings in a row that stood for nothing
	quietNs  int64  // until when nobody listens; 0 is not at all
}

const (
	// falseAlarms are believed before the first pause: attaching, closing, overrunning and dying
	// ring without an entry.
	falseAlarms  = 8
	minQuietNs   = 1_000_000
	maxQuietness = 7 // doublings: 128 ms
)

// note notes a ring that found the lane's tail there. A tail never goes back: one that swings
// between two places says no more than one that stands.
func (a *alarms) note(tail uint64) {
	a.quietNs = 0
	if int64(tail-a.tail) > 0 {
		a.tail, a.mistaken = tail, 0
		return
	}
	if a.mistaken++; a.mistaken > falseAlarms {
		a.quietNs = spin.Now() + minQuietNs<<min(a.mistaken-falseAlarms-1, maxQuietness)
	}
}

// quiet reports that nobody listens at present. The clock is asked about offenders only.
func (a *alarms) quiet() bool { return a.quietNs != 0 && spin.Now() < a.quietNs }

// listen begins with what the word holds: whoever adds a lane looks at it afterwards.
func (b *Bell) listen(bit int, word *atomic.Uint32) {
	b.unlisten(bit)
	if word != nil {
		l := listened{bit: bit, word: word, heard: word.Load()}
		_, l.tail = b.lanes[bit].Source.Level()
		b.listened = append(b.listened, l)
	}
	if n := len(b.listened) + 1; cap(b.sleepOn) < n {
		b.sleepOn = make([]futex.Watched, 0, 2*n)
	}
}

func (b *Bell) unlisten(bit int) {
	for i := range b.listened {
		if b.listened[i].bit == bit {
			b.listened = append(b.listened[:i], b.listened[i+1:]...)
			return
		}
	}
}

// hear is H1. The load pairs with the producer's addition in Q3, before which its tail is stored.
func (b *Bell) hear() {
	for i := range b.listened {
		l := &b.listened[i]
		v := l.word.Load()
		if v == l.heard || l.quiet() {
			continue
		}
		l.heard = v
		_, tail := b.lanes[l.bit].Source.Level()
		l.note(tail)
		crash.At(crash.OthersHeard)
		mark(b.hints.ready, l.bit)
	}
}

// tailOf returns how far a lane that is known has come.
func (b *Bell) tailOf(bit int) uint64 {
	if !b.Knows(bit) {
		return 0
	}
	_, tail := b.lanes[bit].Source.Level()
	return tail
}

// unheard reports whether hear would find anything.
func (b *Bell) unheard() bool {
	for i := range b.listened {
		if l := &b.listened[i]; l.word.Load() != l.heard && !l.quiet() {
			return true
		}
	}
	return false
}

// listensToParked reports whether a lane can have entries that no ready bit tells of.
func (b *Bell) listensToParked() bool {
	for i := range b.listened {
		if !b.hot.has(b.listened[i].bit) {
			return true
		}
	}
	return false
}

// doze is R8, on the queue's own word and those of its feeders. The reader of a queue that is not
// shared sleeps on its lanes' words itself; in a shared one Forward rings the queue's own for them.
func (b *Bell) doze(words []futex.Watched, deadlineNs int64) {
	// In this order: others may change the list of a shared one.
	if !b.shared && len(b.listened) > 0 {
		words = append(b.sleepOn[:0], words...)
		for i := range b.listened {
			l := &b.listened[i]
			if !l.quiet() {
				words = append(words, futex.Watched{Value: uint64(l.heard), Word: l.word})
			} else if deadlineNs == 0 || l.quietNs < deadlineNs {
				deadlineNs = l.quietNs
			}
		}
	}
	if len(words) == 1 {
		futex.Wait(words[0].Word, uint32(words[0].Value), deadlineNs)
		return
	}
	_ = futex.WaitMany(words, deadlineNs)
}

// ringFor rings for a producer of another user: P3 to P7. It may be called from anywhere.
func (b *Bell) ringFor(bit int) {
	mark(b.hints.ready, bit)
	crash.At(crash.RelayMarked)
	w := b.arm.Word.Load()
	if w&armFlags == 0 {
		return
	}
	ringQueue(w, b.hints, b.descriptor)
	if d := b.domainRinger(); d != nil && w&(armDom|armNotify) != 0 {
		d.ring()
	}
}
