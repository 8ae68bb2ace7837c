package model

import "slices"

// A read that waits for many entries, a wait set and the signal latch, all on one queue: each two
// of them are explored beside more of each elsewhere (gx and o), here the three meet. One goroutine
// waits for want entries, as often as it likes, and reads what is there in the end, at a deadline
// too; another waits on a set that has the queue, and reads. A signaller and the producers may stop
// for ever anywhere. The steps are those of the code for a queue that is shared: indices are
// counted from heads, and whoever counts takes the signal in a critical section of its own.
//
// So that it stays small, steps are one here where what comes in between can only wake somebody
// once more, or commutes with one of them: marks taken and lanes parked, or un-parked and drained;
// the rings of one bell, from the load of what rings it last to the store; an epoch loaded and its
// bell armed; a second look and the sleep; a disarming and the look that follows. In the variants
// above they are apart, for each two of the three.

type manyModel struct {
	want, capacity uint8
	publishes      [2]uint8
	signals        uint8
	deadline       bool // the wait for many may end at any time
	plain          bool // the reader pays
	deviant
}

// Deviations.
const (
	manySignalWaits = "a signal looks at the wake index"
	manyGatesSet    = "an arming for many gates the set's bell"
	manyOneRung     = "one rung word gates both bells"
	manyDisarmsSet  = "who waited for many takes the set's flag along"
	manyTaken       = "the second look overlooks what the set took"
	manyNoLatchLook = "the second look after arming for many ignores the latch"
	manyLatchUnseen = "the set does not see the latch"
	manyQueueOnly   = "a signal rings the queue's bell only"
	manyTellsNone   = "the set's user un-parks a lane that is counted, silently"
	manyEdge        = "the set drops a queue that it found with entries"
	manyEarlyRung   = "a signal marks the set's bell rung before it wakes"
	manyWhole       = "index = head + all that is wanted"
	manyNoBarrier   = "the set that parks runs no barrier"
	manyNoBarrierR  = "the count that parks runs no barrier"
)

// The actors; signaller is the third producer.
const (
	manySignaller = 2 + iota
	manyWaiter
	manySet
)

type manyState struct {
	tail, buffered, left, idx [2]uint8 // counted from the head: nothing is compared otherwise
	parked, ready, cand       uint8
	latch, finished           bool // finished: who left the latch has rung
	claims                    bool // the set found the latch alone
	signals                   uint8
	armed, rung               uint8
	noDom                     bool // in the armed word, by a mutant
	at, set                   step
	lock, lane                uint8
	missing                   uint8
	taken, fresh, asleep      bool
	dready, todo              bool
	darmed, drang             bool // drang: this arming was rung
	dfresh, dasleep           bool
	p                         [3]step
	w                         [3]uint8
}

const (
	mIdle     step = iota // publishes, or signals
	mP2                   // load parked
	mP3                   // set ready
	mP4                   // load armed
	mP5                   // load idx, ring
	mP6                   // set D.ready
	mP7                   // ring D
	mP7w                  // P7 wake
	mR1                   // swap ready, R4 park
	mR4b                  // R4 barrier
	mR4t                  // R4 count
	mRl                   // take the signal
	mR6                   // R5 store indices, R6 arm
	mR7                   // second look, R8 sleep
	mR9                   // disarm, R1, R4
	mRead                 // R1 to R3 drain
	mS1                   // take D.ready
	mS2                   // swap ready, park
	mS2b                  // S2 barrier
	mS2t                  // S2 tails again
	mS4                   // S3, S4 arm D
	mS5                   // second look, S6 sleep
	mS7                   // disarm D, S1
	mS8                   // read
	mGone                 // left
	mVisible              // tail becomes visible
	mDeadline             // deadline
)

func (m manyModel) names() []string {
	return []string{"mIdle", "producer 0", "producer 1", "signaller", "waiter", "set"}
}

func (m manyModel) start() manyState {
	s := manyState{left: m.publishes, signals: m.signals, todo: true, at: mR1, set: mS1}
	s.cand = 1<<m.lanes() - 1
	return s
}

func (m manyModel) lanes() uint8 {
	if m.publishes[1] == 0 {
		return 1
	}
	return 2
}

// forget makes states equal that differ in what nobody will look at only.
func (n *manyState) forget() {
	counting := false
	for _, at := range n.p {
		counting = counting || at == mP5
	}
	if n.armed == 0 && !counting { // they are stored before the next arming
		n.idx = [2]uint8{}
	}
	n.taken = n.taken && n.at >= mR4b && n.at <= mR7
	n.finished = n.finished && n.latch
}

func (m manyModel) same(n *manyState) {
	relabel(&n.armed, &n.rung, &n.w[0], &n.w[1], &n.w[2])
	n.forget()
}

func (m manyModel) next(s *manyState, x *search[manyState]) {
	for l := range s.buffered {
		x.does(s, uint8(l), mVisible, s.buffered[l] > 0, func(n *manyState) { n.flush(l) })
	}
	for who := range s.p {
		x.by(uint8(who), s.p[who])
		if n := x.fork(s); m.produce(s, n, who) {
			x.emit(n)
		}
	}
	m.waiter(s, x)
	m.waitSet(s, x)
}

func (n *manyState) flush(l int) { n.tail[l], n.buffered[l] = n.tail[l]+n.buffered[l], 0 }

func (m manyModel) produce(s, n *manyState, who int) bool {
	done := func() {
		n.p[who], n.w[who] = mIdle, 0
		n.finished = n.finished || who == manySignaller
	}
	switch s.p[who] {
	case mIdle:
		return m.begin(s, n, who)
	case mP2:
		n.p[who] = mP3
		if s.parked&(1<<who) == 0 {
			done()
		}
	case mP3: // P2', the fence, comes with it: the locked instruction drains the buffer
		n.flush(who)
		n.ready, n.p[who] = s.ready|1<<who, mP4
	case mP4:
		n.w[who], n.p[who] = s.armed, mP5
		if s.armed == 0 {
			n.p[who] = mP6
		}
	case mP5: // the index is loaded after armed
		n.w[who], n.p[who] = 0, mP6
		early := who == manySignaller && m.bug == manySignalWaits
		if who != manySignaller {
			early = s.tail[who] < s.idx[who]
		}
		switch {
		case early && m.bug == manyGatesSet, s.rung == s.w[who] && m.bug == manyOneRung:
			done()
		case !early && s.rung != s.w[who]:
			n.fresh, n.asleep, n.rung = false, false, s.w[who]
		}
	case mP6:
		n.p[who] = mP7
		if n.dready = s.dready || !s.noDom; s.noDom {
			done()
		}
	case mP7:
		done()
		if s.darmed && !s.drang {
			n.drang = true
			if m.bug == manyEarlyRung && who == manySignaller {
				n.p[who] = mP7w
				break
			}
			n.dfresh, n.dasleep = false, false
		}
	case mP7w:
		n.dfresh, n.dasleep = false, false
		done()
	}
	if who == manySignaller && n.p[who] == mP6 && m.bug == manyQueueOnly {
		done()
	}
	return true
}

// begin is P1, or the signal.
func (m manyModel) begin(s, n *manyState, who int) bool {
	if who == manySignaller {
		if s.signals == 0 {
			return false
		}
		n.signals--
		n.latch, n.finished, n.p[who] = true, false, mP4
		return true
	}
	if s.left[who] == 0 || s.tail[who]+s.buffered[who] >= m.capacity {
		return false
	}
	n.left[who]--
	n.p[who] = mP2
	if m.plain {
		n.buffered[who]++
	} else {
		n.tail[who]++
	}
	return true
}

// judge: whoever sleeps must have nothing to wake for that is finished.
func (m manyModel) judge(s *manyState) verdict {
	if !s.asleep && s.at != mGone || !s.dasleep && s.set != mGone || s.buffered != [2]uint8{} {
		return moving
	}
	sum, full, half := uint8(0), false, s.p[manySignaller] != mIdle
	for l := range s.tail {
		waiting := s.tail[l]
		if s.p[l] != mIdle {
			half = true
			waiting -= min(waiting, 1)
		}
		sum += waiting
		full = full || waiting >= m.capacity && s.left[l] > 0
	}
	signal := s.latch && s.finished
	switch bad := s.asleep && (sum >= m.want || full || signal) || s.dasleep && (sum > 0 || signal); {
	case bad && half:
		return muted
	case bad:
		return lost
	case !s.asleep && !s.dasleep:
		return over
	}
	return resting
}

// take is R1: marks go to what this process has in hand.
func (n *manyState) take(s *manyState) {
	n.cand, n.ready = s.cand|s.ready, 0
}

// park is R4 but for the look at tails. It returns the step that follows.
func (m manyModel) park(n *manyState, pays bool, barrier, tails step) step {
	fresh := n.cand &^ n.parked
	n.parked |= n.cand
	if m.plain && pays && fresh != 0 {
		return barrier
	}
	return tails
}

// waiter waits for want entries, once. A wake for nothing makes it count anew, too.
func (m manyModel) waiter(s *manyState, x *search[manyState]) {
	x.by(manyWaiter, s.at)
	n := x.fork(s)
	if s.asleep {
		if m.deadline {
			n.asleep, n.armed, n.at = false, 0, mRead
			x.by(manyWaiter, mDeadline)
			x.emit(n)
		}
		return
	}
	if s.at == mGone || s.lock != 0 && s.lock != manyWaiter {
		return
	}
	switch s.at {
	case mR9, mR1:
		n.armed, n.fresh = 0, false
		n.noDom = s.noDom || s.at == mR9 && m.bug == manyDisarmsSet
		n.take(s)
		n.lock, n.taken = manyWaiter, false
		n.at = m.park(n, m.bug != manyNoBarrierR, mR4b, mR4t)
	case mR4b:
		n.flush(int(s.lane))
		if n.lane = (s.lane + 1) % m.lanes(); n.lane == 0 {
			n.at = mR4t
		}
	case mR4t:
		m.count(s, n)
	case mRl:
		n.at = mR6
		if s.latch {
			n.latch, n.missing, n.at = false, 0, mRead
		}
	case mR6:
		n.fresh, n.armed, n.lock, n.at = true, newSeq, manyWaiter, mR7
		share := max(1, (s.missing+m.lanes()-1)/m.lanes())
		if m.bug == manyWhole {
			share = s.missing
		}
		for l := range m.lanes() {
			n.idx[l] = min(share, m.capacity)
		}
		n.missing = 0
	case mR7:
		n.lock, n.at = 0, mR9
		busy := s.ready != 0 || s.latch && m.bug != manyNoLatchLook || s.taken && m.bug != manyTaken
		n.asleep, n.fresh, n.taken = s.fresh && !busy, false, false
	case mRead:
		m.read(s, n, manyWaiter)
		n.at = mGone
	}
	x.emit(n)
}

// count is R4t: enough of it, or a full lane, ends the wait.
func (m manyModel) count(s, n *manyState) {
	sum, full := uint8(0), false
	for l := range s.tail {
		waiting := s.tail[l]
		sum += waiting
		full = full || waiting >= m.capacity
		if waiting == 0 {
			n.cand &^= 1 << l
		}
	}
	n.lock, n.at = 0, mRl
	if sum >= m.want || full {
		n.at = mRead
		return
	}
	n.missing = m.want - sum
}

// read is R1 to R3 of either goroutine, all there is.
func (m manyModel) read(s, n *manyState, who uint8) {
	n.take(s)
	heated := n.cand&s.parked != 0
	n.parked &^= n.cand
	if who == manySet {
		n.taken = n.taken || heated || s.ready != 0
		if heated && (s.armed != 0 || s.fresh) && m.bug != manyTellsNone {
			n.fresh, n.asleep = false, false
		}
	}
	for l := range s.tail {
		if n.cand&(1<<l) != 0 {
			n.idx[l] -= min(s.idx[l], s.tail[l])
			n.tail[l] = 0
		}
	}
}

// nothing says that no lane in hand has an entry.
func (s *manyState) nothing() bool {
	for l := range s.tail {
		if s.cand&(1<<l) != 0 && s.tail[l] != 0 {
			return false
		}
	}
	return true
}

// waitSet waits on the set, and reads the queue when it is ready.
func (m manyModel) waitSet(s *manyState, x *search[manyState]) {
	x.by(manySet, s.set)
	n := x.fork(s)
	locks := s.set == mS2 && s.todo || s.set == mS8
	if s.dasleep || s.set == mGone || locks && s.lock != 0 {
		return
	}
	switch s.set {
	case mS7, mS1:
		if s.set == mS7 {
			n.darmed, n.drang = false, false
			n.set = mGone
			x.emit(n)
		}
		n.todo, n.dready, n.set = s.todo || s.dready, false, mS2
	case mS2:
		n.set = mS4
		if s.todo {
			n.todo, n.lock, n.taken = false, manySet, s.taken || s.ready != 0
			n.take(s)
			n.set = m.park(n, m.bug != manyNoBarrier, mS2b, mS2t)
		}
	case mS2b:
		n.flush(int(s.lane))
		if n.lane = (s.lane + 1) % m.lanes(); n.lane == 0 {
			n.set = mS2t
		}
	case mS2t:
		n.lock, n.set = 0, mS4
		some := s.latch && m.bug != manyLatchUnseen
		for l := range s.tail {
			if s.tail[l] == 0 {
				n.cand &^= 1 << l
			} else {
				some = some || s.cand&(1<<l) != 0
			}
		}
		if some {
			n.claims = s.nothing()
			n.todo, n.set = m.bug != manyEdge, mS8
		}
	case mS4:
		n.dfresh, n.darmed, n.drang, n.set = true, true, false, mS5
	case mS5:
		n.dasleep = s.dfresh && !s.dready && !s.todo
		n.dfresh, n.set = false, mS7
	case mS8:
		n.claims, n.set = false, mS1
		if s.claims && !s.latch { // the other took it
			break
		}
		n.latch, n.set = s.latch && !s.claims, mGone // it may also go without
		x.emit(n)
		m.read(s, n, manySet)
		x.emit(n)
		n.set = mS1
	}
	x.emit(n)
}

func (m manyModel) paid() manyModel {
	m.plain = true
	return m
}

var (
	manyOne = manyModel{want: 2, capacity: 9, publishes: [2]uint8{3, 0}, signals: 1, deadline: true}
	manyTwo = manyModel{want: 2, capacity: 9, publishes: [2]uint8{1, 1}, signals: 1}
)

var many = family{
	title: "Many, a set and the latch",
	variants: []variant{
		form("1 lane x3, a signal", manyOne),
		form("1 lane x3, a signal, reader pays", manyOne.paid()),
		form("2 lanes x1, a signal", manyTwo),
		form("2 lanes x1, a signal, reader pays", manyTwo.paid()),
	},
	mutants: slices.Concat(
		on("1 lane x3, a signal", manySignalWaits, manyGatesSet, manyOneRung, manyDisarmsSet,
			manyTaken, manyNoLatchLook, manyLatchUnseen, manyQueueOnly, manyTellsNone, manyEdge,
			manyEarlyRung),
		on("1 lane x3, a signal, reader pays", manyNoBarrier, manyNoBarrierR),
		on("2 lanes x1, a signal", manyWhole)),
}
