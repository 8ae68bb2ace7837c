package model

// take is R1. A lane that is not known yet is found by its mark.
func (n *thresholdState) take(s *thresholdState) {
	n.unknown = s.unknown && s.ready&2 == 0
	n.cand |= s.ready
	n.ready = 0
}

func (s *thresholdState) known() int {
	if s.unknown {
		return 1
	}
	return 2
}

// wait performs the waiter's next step. It returns false while the lock is taken.
func (v *threshold) wait(s, n *thresholdState) bool {
	switch s.at {
	case R1, R5i, R6: // R1 to R4t hold q.mu, and so do R5i to R7
		if s.lock != 0 && s.lock != waiter {
			return false
		}
		n.lock = waiter
	}
	switch s.at {
	case K2:
		n.flush(int(s.lane))
		n.lane = 1 - s.lane
		if s.lane == 1 {
			n.at = R1
		}
	case R1:
		n.take(s)
		n.taken, n.at = false, R4
	case R4:
		n.at = R4t
		if v.plain && v.bug != noBarrierR4 && s.cand&^s.parked != 0 {
			n.at = R4b
		}
		n.parked |= s.cand
	case R4b:
		n.flush(int(s.lane))
		n.lane = 1 - s.lane
		if s.lane == 1 {
			n.at = R4t
		}
	case R4t:
		v.count(s, n)
	case R5:
		n.fresh, n.at = true, R5i
		if v.bug == indexAfterLook {
			n.at = R6
		}
	case R5i:
		v.storeIndices(s, n)
	case R6:
		n.armed, n.bits, n.at = newSeq, s.bits&armFD|armDirect, R7
		if s.bits&armFD == 0 || v.bug == thresholdGatesFD {
			n.bits |= armThr
		}
	case R7:
		v.look(s, n)
	case R8:
		n.asleep, n.fresh, n.at = s.fresh, false, R9
	case R9:
		n.bits &= armFD
		if n.bits == 0 {
			n.armed = 0
		}
		n.fresh, n.at = false, R1
	}
	return true
}

// count sums what waits; enough of it, or a full lane, ends the wait.
func (v *threshold) count(s, n *thresholdState) {
	sum, full := uint8(0), false
	for l := range s.known() {
		waiting := s.tail[l] - s.head[l]
		n.seen[l] = s.tail[l]
		sum += waiting
		full = full || waiting >= v.capacity
		if waiting == 0 {
			n.cand &^= 1 << l
		}
	}
	n.lock, n.at = 0, R5
	if sum >= v.want || full && v.bug != fullIgnored {
		n.at, n.seen = gone, [2]uint8{}
		return
	}
	n.missing = v.want - sum
}

// storeIndices spreads what is missing: when enough is there, some lane reached its share, counted
// from the tails that went into the sum.
func (v *threshold) storeIndices(s, n *thresholdState) {
	lanes := uint8(s.known())
	if v.bug == heirIndices && s.idx != [2]uint8{} {
		n.missing, n.seen, n.at = 0, [2]uint8{}, R6
		return
	}
	share := (s.missing + lanes - 1) / lanes
	if v.bug == wholeIndex {
		share = s.missing
	}
	for l := range lanes {
		from := s.seen[l]
		if v.bug == indexFromNow {
			from = s.tail[l]
		}
		n.idx[l] = from + max(1, share)
		if v.bug != indexUnclamped {
			n.idx[l] = min(n.idx[l], s.head[l]+v.capacity)
		}
	}
	n.missing, n.seen, n.at = 0, [2]uint8{}, R6
	if v.bug == indexAfterLook {
		n.lock, n.at = 0, R8
	}
}

// look is R7: marks, marks that another goroutine took, and lanes that it un-parked.
func (v *threshold) look(s, n *thresholdState) {
	n.at = R8
	switch {
	case s.ready != 0 && v.bug != noSecondLook,
		s.taken && v.bug != takesIgnored:
		n.at, n.lock = R9, 0
	case v.bug == indexAfterLook:
		n.at = R5i
	default:
		n.lock = 0
	}
	n.taken = false
}
