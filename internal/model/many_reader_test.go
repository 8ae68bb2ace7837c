package model

import "slices"

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

func (m manyModel) with(bug string) protocol[manyState] {
	m.bug = bug
	return m
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
		form("1 lane x3, a signal", manyOne.with),
		form("1 lane x3, a signal, reader pays", manyOne.paid().with),
		form("2 lanes x1, a signal", manyTwo.with),
		form("2 lanes x1, a signal, reader pays", manyTwo.paid().with),
	},
	mutants: slices.Concat(
		on("1 lane x3, a signal", manySignalWaits, manyGatesSet, manyOneRung, manyDisarmsSet,
			manyTaken, manyNoLatchLook, manyLatchUnseen, manyQueueOnly, manyTellsNone, manyEdge,
			manyEarlyRung),
		on("1 lane x3, a signal, reader pays", manyNoBarrier, manyNoBarrierR),
		on("2 lanes x1, a signal", manyWhole)),
}
