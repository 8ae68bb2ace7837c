package wake

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
)

// Source is a lane as its bell sees it. The bell asks it when it parks a lane, never per entry.
type Source interface {
	// Level loads the published index afresh and returns it with the index up to which the
	// reader took entries. A lane that cannot be trusted reports more than it has, so that
	// the reader looks at it and finds out.
	Level() (head, tail uint64)
	// Solicited loads the index after the last entry that a completion channel armed for
	// solicited ones waits for. The producer stores it before the tail, so it may be beyond it.
	Solicited() uint64
}

// LaneConfig is what the bell of a queue knows of one lane.
type LaneConfig struct {
	Row    *Row
	Source Source
	// Capacity bounds the wake index of a threshold: a full lane must be able to ring.
	Capacity uint64
	// ReaderPays says that the lane's producer publishes with release stores.
	ReaderPays bool
	// Rung is where a producer of another user counts its rings, in its own lane; nil for one that
	// writes to the reader's hints.
	Rung *atomic.Uint32

	gone bool // dropped: Row and Source stay, so that no look that is late finds none
}

// Config is what the reader of a queue gives its bell.
type Config struct {
	Arm   *Arm
	Hints *Hints
	Lanes int // how many lanes the queue may have
	// Generation tells this reader from its predecessors.
	Generation uint16
	// Face is the reader's descriptor, nil if the queue has none.
	Face *Face
	// Open is asked for a lane that was marked and is not known yet. It returns false for a
	// mark that no lane stands behind; it may be asked again. It runs under the bell's lock.
	Open func(bit int) (LaneConfig, bool)
	// Marked is told of each lane that was marked and is known. A hot one is marked by a producer
	// that took the lane over. It may be nil, and runs under the bell's lock.
	Marked func(bit int)
	// Shared makes Lock and Unlock real: several goroutines use the queue.
	Shared bool
	// Refused is told, once, that the kernel refuses membarrier. From then on a mark may be missed,
	// so whoever waits must look at all lanes again now and then. It runs under the bell's lock. It
	// may be nil: then each Park that needs the barrier fails.
	Refused func()
}

// Bell is the reader's half of the bell of one queue. Lock must be held for every method, unless
// it says otherwise; without Config.Shared one goroutine does everything and locks cost nothing.
type Bell struct {
	mu       sync.Mutex
	shared   bool
	arm      *Arm
	hints    *Hints
	face     *Face
	open     func(bit int) (LaneConfig, bool)
	marked   func(bit int)
	lanes    []LaneConfig
	known    int
	flags    uint64         // the layer above's bits of every row word
	cand     bitset         // lanes that are hot or perhaps not empty
	hot      bitset         // lanes whose row word says "not parked"
	door     *atomic.Uint64 // that OpenDoor opened since the lock was taken, or nil
	only     int            // what Only may answer; Several after each change of cand and hot
	idle     int            // see Cool
	many     int            // what OnlyOfMany may answer if the bell is wide, whose only is Several
	wide     bool
	steady   bool           // all candidates are hot, and none was added or removed since
	changes  atomic.Uint64  // of only, in a shared queue: see Quiet
	seen     []uint64       // the tail of each lane at the last Park that looked at it
	first    *atomic.Uint64 // of the ready words
	last     *atomic.Uint64
	gen      uint64
	seq      uint32
	direct   int             // goroutines in Sleep
	counts   int             // those of them that wait for more than one entry
	takes    uint64          // grows when marks were taken or lanes un-parked; see Sleep
	owed     bool            // a hot lane was parked and the barrier for it is not paid yet
	refused  func()          // nil once it was told
	weak     bool            // it was: nothing is paid any more
	rested   bool            // lanes were parked, and nobody has looked since
	ended    bool            // nobody sleeps any more
	notes    *notes          // of a completion channel that has the queue
	listened []listened      // lanes of other users
	sleepOn  []futex.Watched // room for the words that a sleeper waits on
	// seat is the queue's place in the bell of its process, for calls from anywhere.
	seat atomic.Pointer[seat]
	// Counted for Stats, which may be called from anywhere.
	sleeps, barriers atomic.Uint64
}

// NewBell returns the bell of a queue whose words the caller mapped. Sequence numbers go on after
// the armed word's, so that a producer that is late by a whole reader mutes nobody.
func NewBell(c Config) *Bell {
	b := &Bell{
		shared: c.Shared, arm: c.Arm, hints: c.Hints, face: c.Face, open: c.Open, marked: c.Marked,
		refused: c.Refused, wide: len(c.Hints.ready) > 2,
		only: Several, many: Several, lanes: make([]LaneConfig, c.Lanes), cand: newBitset(c.Lanes),
		hot:  newBitset(c.Lanes),
		seen: make([]uint64, c.Lanes), first: &c.Hints.ready[0],
		last: &c.Hints.ready[len(c.Hints.ready)-1],
		gen:  uint64(c.Generation) << armGenShift, seq: uint32(c.Arm.Word.Load()),
	}
	if b.face != nil {
		b.face.tailBy(b.tailOf)
	}
	b.store(0)
	return b
}

// Lock takes the queue's lock if several goroutines use it.
func (b *Bell) Lock() {
	if b.shared {
		b.lock()
	}
}

// Shut is what a door holds while it is not open.
const Shut = 1 << 63

// OpenDoor lets goroutines take from the lane that Only names without the lock, one at a time: who
// swaps what the door holds, the index up to which the lane is taken, for Shut. It leaves by a
// store of the new index, before which it neither takes the lock nor waits. The next Lock shuts the
// door, or waits for who is inside. Indices that no honest lane comes near open nothing.
func (b *Bell) OpenDoor(door *atomic.Uint64, at uint64) {
	if at < Shut/2 {
		b.door = door
		door.Store(at)
	}
}

// lock also shuts the door.
func (b *Bell) lock() {
	b.mu.Lock()
	if b.door == nil {
		return
	}
	for i := 0; b.door.Swap(Shut) == Shut; i++ {
		if i < 16 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond) // who is inside is not running
		}
	}
	b.door = nil
}

// Shared reports whether Lock is real: the queue is shared, or was on a channel.
func (b *Bell) Shared() bool { return b.shared }

// Unlock releases it.
func (b *Bell) Unlock() {
	if b.shared {
		b.mu.Unlock()
	}
}

// Add makes a lane known and a candidate: a reader that takes over looks at every lane. Of one that
// is known already it replaces what is known, and its state stays.
func (b *Bell) Add(bit int, c LaneConfig) {
	if b.Knows(bit) {
		begins := c.ReaderPays && !b.lanes[bit].ReaderPays
		b.lanes[bit] = c
		if begins {
			b.payLate(bit)
		}
		return
	}
	b.known++
	b.lanes[bit] = c
	b.seen[bit] = 0
	b.enlist(bit)
	if c.Row.Parked.Load()&Parked == 0 {
		b.hot.set(bit)
	} else {
		b.hot.clear(bit)
	}
	b.storeRow(bit)
	b.listen(bit, c.Rung)
}

// payLate is for a lane whose new writer leaves it to the reader to pay. It may have published
// before that was known, and the lane may have been parked since without a barrier. What that makes
// visible has no mark of its own, so those who rely on marks are told.
func (b *Bell) payLate(bit int) {
	if b.pay() != nil {
		b.owed = true // the next Park tries again, and tells
		return
	}
	if head, tail := b.lanes[bit].Source.Level(); head != tail && b.member() {
		b.tellDomain()
	}
}

// Knows reports whether the lane is known.
func (b *Bell) Knows(bit int) bool { return b.lanes[bit].Source != nil && !b.lanes[bit].gone }

// Drop forgets a lane: nothing will be read from it again.
func (b *Bell) Drop(bit int) {
	if b.Knows(bit) {
		b.known--
		b.lanes[bit].gone = true
	}
	b.answer(Several)
	b.cand.clear(bit)
	b.hot.clear(bit)
	b.notes.forget(bit)
	b.unlisten(bit)
}

// SetFlags puts the layer above's bits into every known lane's row word; bit 0 is Parked.
func (b *Bell) SetFlags(flags uint64) {
	b.flags = flags &^ Parked
	for bit := range b.lanes {
		if b.Knows(bit) {
			b.storeRow(bit)
		}
	}
}

func (b *Bell) storeRow(bit int) {
	w := b.flags
	if !b.hot.has(bit) {
		w |= Parked
	}
	b.lanes[bit].Row.Parked.Store(w)
}

// Take is R1: it takes the ready bits and makes their lanes candidates. It returns how often the
// readers of the queue have taken marks or un-parked lanes, for [Wait].Takes.
func (b *Bell) Take() (takes uint64) {
	if len(b.listened) > 0 {
		b.hear()
	}
	for i := range b.hints.ready {
		if b.hints.ready[i].Load() == 0 {
			continue
		}
		b.answer(Several) // before the marks are gone: see Quiet
		x := b.hints.ready[i].Swap(0)
		b.takes++
		for ; x != 0; x &= x - 1 {
			b.candidate(i*64 + lowest(x))
		}
	}
	return b.takes
}

func (b *Bell) candidate(bit int) {
	if bit >= len(b.lanes) {
		return // a forged mark
	}
	if !b.Knows(bit) {
		c, ok := b.open(bit)
		if !ok {
			return
		}
		b.Add(bit, c)
	} else if b.marked != nil {
		b.marked(bit)
	}
	b.enlist(bit)
}

// enlist makes a known lane a candidate. While a channel is armed this is the moment to note where
// the lane stood at the arming: it was parked and empty, so nobody has read from it since.
func (b *Bell) enlist(bit int) {
	b.answer(Several)
	b.cand.set(bit)
	if b.notes != nil && b.armed()&armNotify != 0 && !b.notes.lanes.has(bit) {
		head, _ := b.lanes[bit].Source.Level()
		b.notes.note(bit, head)
	}
}

// Consider makes a lane a candidate, as if it had been marked. If it has entries, it tells the sets
// and channels that have the queue, which otherwise look only at what was marked.
func (b *Bell) Consider(bit int) {
	b.takes++
	b.answer(Several) // the lane may be one that cannot be opened, which is news too
	b.candidate(bit)
	if bit < len(b.lanes) && b.Knows(bit) && b.member() {
		if head, tail := b.lanes[bit].Source.Level(); head != tail {
			b.tellDomain()
		}
	}
}

// Heat is R2: candidates are un-parked, but not while a channel is armed, which needs their marks,
// and not those that have nothing: their marks were old, or forged, and they leave. From here on
// their producers publish without marking. The first look after a Park leaves lanes parked: one
// that has an entry for each sleep need not be parked, and paid for, again and again. A lane that a
// goroutine counted and left parked, because it waits for more, gets hot without a mark and so
// without a wake: that goroutine is woken here and parks the lane again.
func (b *Bell) Heat() {
	heated, parked := false, false
	if b.notes != nil && b.armed()&armNotify != 0 {
		return
	}
	for i := range b.cand {
		for x := b.cand[i] &^ b.hot[i]; x != 0; x &= x - 1 {
			bit := i*64 + lowest(x)
			// It is parked, and that is paid for: whatever comes is marked again.
			if head, tail := b.lanes[bit].Source.Level(); head == tail && !b.owed {
				b.cand.clear(bit)
				continue
			}
			if b.rested && !b.owed {
				parked = true // what comes is marked as well
				continue
			}
			b.hot.set(bit)
			b.storeRow(bit)
			heated = true
		}
	}
	b.rested = false
	b.answer(b.survey())
	b.steady = len(b.listened) == 0 && !parked
	if heated && b.shared {
		b.takes++
		if b.counts > 0 {
			b.hints.epoch.Add(1)
			futex.WakeAll(b.hints.epoch)
		}
	}
}

// Steady reports that Take and Heat have nothing to do: no lane is marked, and the candidates are
// as the last Heat left them. It is inlined.
func (b *Bell) Steady() bool {
	return b.steady && !b.anyMark()
}

// Results of [Bell.Only] that are no lane.
const (
	Nobody  = -1 // no lane can have anything
	Several = -2 // that needs a closer look: Take, Heat, and Next
)

// Only returns the lane that alone can have anything, Nobody, or Several. It is the short cut of a
// reader that keeps up with one writer, for which Take and Heat have nothing to do; they do not run
// here, so after anything happened it says Several until they did. It is inlined.
func (b *Bell) Only() int {
	if b.first.Load()|b.last.Load() != 0 {
		return Several
	}
	return b.only
}

// Wide reports that the bell has more words of marks than Only looks at, or was widened: then that
// says Several, and OnlyOfMany what there is to say.
func (b *Bell) Wide() bool { return b.wide }

// Widen has Only say Several from now on, or no more, for a reader that has something to do before
// it looks at lanes.
func (b *Bell) Widen(on bool) {
	if len(b.hints.ready) > 2 || b.wide == on {
		return
	}
	if on {
		only := b.only
		b.answer(Several)
		b.wide, b.many = true, only
	} else {
		only := b.many
		b.wide, b.many = false, Several
		b.answer(only)
	}
}

// OnlyOfMany is Only of a wide bell. It looks at all words of marks.
func (b *Bell) OnlyOfMany() int {
	if b.anyMark() {
		return Several
	}
	return b.many
}

// answer sets what Only answers, or OnlyOfMany. A glance without the lock that began before
// notices.
func (b *Bell) answer(only int) {
	b.steady = false
	if b.wide {
		b.many = only
	} else if b.only != only {
		b.only = only
		if b.shared {
			b.changes.Add(1)
		}
	}
}

// Changes counts the changes of what Only answers in a shared queue. It needs no lock, and is
// inlined.
func (b *Bell) Changes() uint64 { return b.changes.Load() }

// Quiet reports that no lane is marked and that Only still answers what it did when Changes was
// since. It is for who found the one lane that Only named empty, without the lock: then at that
// moment all were. The marks are loaded first: who takes some counts the change before. It needs no
// lock, and is inlined.
func (b *Bell) Quiet(since uint64) bool {
	return b.first.Load()|b.last.Load() == 0 && b.changes.Load() == since
}

// LookCloser makes Only say Several until the next Heat: the caller has something to think of
// beside the lanes.
func (b *Bell) LookCloser() { b.answer(Several) }

// survey finds the answer for Only in cand and hot.
func (b *Bell) survey() int {
	bit := b.cand.next(0)
	switch {
	case b.listensToParked():
		return Several
	case bit < 0:
		return Nobody
	case b.hot.has(bit) && b.cand.next(bit+1) < 0:
		return bit
	}
	return Several
}

// Next returns the first candidate from lane bit on, or -1. It is how R3, the caller's, goes round.
func (b *Bell) Next(bit int) int { return b.cand.next(bit) }

// Drained is the end of R3 for one lane that was found empty: a parked one leaves the candidates,
// a hot one stays, since its producer will not mark it.
func (b *Bell) Drained(bit int) {
	if !b.hot.has(bit) {
		b.cand.clear(bit)
		b.answer(Several)
	}
}

// Ignore has a lane neither looked at nor rung for, until Consider. Its producer announces what is
// not to wait for that.
func (b *Bell) Ignore(bit int) {
	b.answer(Several)
	b.cand.clear(bit)
	if !b.hot.has(bit) {
		b.hot.set(bit)
		b.storeRow(bit)
	}
}

// Park is R4: all candidates are parked and looked at again; the empty ones leave. It reports
// whether any is not empty. The store of the row word pairs with the producer's load in P2.
func (b *Bell) Park() (more bool, err error) {
	b.answer(Several)
	b.rested = true
	for i := range b.cand {
		for x := b.cand[i] & b.hot[i]; x != 0; x &= x - 1 {
			bit := i*64 + lowest(x)
			b.hot.clear(bit)
			b.storeRow(bit)
			b.owed = b.owed || b.lanes[bit].ReaderPays
		}
	}
	crash.At(crash.ParkStored)
	if b.owed {
		// A producer whose release store of the tail still sits in its store buffer, and that
		// has already loaded "not parked", is made visible here.
		if err := b.pay(); err != nil {
			return true, err
		}
		b.owed = false
	}
	crash.At(crash.ParkPaid)
	for bit := b.cand.next(0); bit >= 0; bit = b.cand.next(bit + 1) {
		head, tail := b.lanes[bit].Source.Level()
		b.seen[bit] = tail
		if head == tail {
			b.cand.clear(bit)
		} else {
			more = true
		}
	}
	return more, nil
}

// coolLooks is how many looks at lanes that are empty one Park is worth: a system call for as many,
// so that polling costs what the lanes in use cost.
const coolLooks = 16 << 10

// Cool parks all lanes now and then, for a reader that only polls: it would look at every lane that
// was ever hot for ever. So many looks have found nothing since the last call, or since Warm.
func (b *Bell) Cool(looks int) (parked bool, err error) {
	if b.idle += looks; b.idle < coolLooks {
		return false, nil
	}
	b.idle = 0
	_, err = b.Park()
	return true, err
}

// Warm begins the count of Cool anew.
func (b *Bell) Warm() { b.idle = 0 }

// pay runs the barrier. A kernel that refuses it, for a filter of system calls that came late, does
// so for ever, and is not asked again.
func (b *Bell) pay() error {
	if b.weak {
		return nil
	}
	b.barriers.Add(1)
	err := barrier.All()
	if err == nil || b.refused == nil {
		return err
	}
	b.weak = true
	b.refused()
	return nil
}

// Pending reports whether a look is worth while: something is marked, or a candidate has entries,
// or a signal is there. It takes nothing and needs no lock in a queue that is not shared.
func (b *Bell) Pending() bool {
	if b.news() || b.hints.latch.Load() != 0 {
		return true
	}
	for bit := b.cand.next(0); bit >= 0; bit = b.cand.next(bit + 1) {
		if head, tail := b.lanes[bit].Source.Level(); head != tail {
			return true
		}
	}
	return false
}

// anyMark reports whether a lane is marked. It is inlined, and looks at two words first: few bells
// have more.
func (b *Bell) anyMark() bool {
	return b.first.Load()|b.last.Load() != 0 || len(b.hints.ready) > 2 && b.anyBetween()
}

func (b *Bell) anyBetween() bool {
	for i := range b.hints.ready {
		if b.hints.ready[i].Load() != 0 {
			return true
		}
	}
	return false
}

// news is anyMark with the rings that were not turned into marks yet.
func (b *Bell) news() bool {
	return b.anyMark() || len(b.listened) > 0 && b.unheard()
}

// TakeSignal consumes a pending signal. At most one caller gets it. It may be called from anywhere.
func (b *Bell) TakeSignal() bool {
	return b.hints.latch.Load() != 0 && b.hints.latch.Swap(0) != 0
}

// Counts returns how often a reader went to sleep, how often it paid for order, and how many system
// calls it made to reset the descriptor. It may be called from anywhere.
func (b *Bell) Counts() (sleeps, barriers, resets uint64) {
	return b.sleeps.Load(), b.barriers.Load(), b.face.resets()
}
