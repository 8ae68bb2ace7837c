package model

// succeed is K1 for a reader that waits for many: of its own it has nothing, and it knows all
// lanes. The rows stay as they are, wake indices too.
func (v *threshold) succeed(n *thresholdState) {
	n.missing, n.seen, n.armed, n.bits = 0, [2]uint8{}, 0, 0
	n.cand, n.unknown, n.lock, n.taken, n.lane = 3, false, 0, false, 0
	n.fresh, n.asleep, n.eventfd = false, false, false
	if v.bug == heirTakesMarks {
		n.cand = 0
	}
	n.at, n.other = R1, v.start().other
	if v.plain && v.bug != heirParks {
		n.at = K2
	}
}

// tryWait is the goroutine with the descriptor: R1, R4 and the arming under q.mu, then epoll_wait.
// It reads whenever it is told that there is something, or does not.
func (v *threshold) tryWait(s, n *thresholdState, x *search[thresholdState]) {
	switch s.other {
	case app:
		leaves := x.fork(n)
		leaves.other = gone
		x.emit(leaves)
		n.other = R1
	case R1:
		if s.lock != 0 {
			return
		}
		n.lock = other
		n.take(s)
		n.taken = n.taken || s.ready != 0
		n.other = R4
	case R4:
		n.other = R4t
		if v.plain && v.bug != noBarrierR4 && s.cand&^s.parked != 0 {
			n.other = R4b
		}
		n.parked |= s.cand
	case R4b:
		n.flush(int(s.lane))
		n.lane = 1 - s.lane
		if s.lane == 1 {
			n.other = R4t
		}
	case R4t:
		some := false
		for l := range s.head {
			if s.tail[l] == s.head[l] {
				n.cand &^= 1 << l
			} else {
				some = some || s.cand&(1<<l) != 0
			}
		}
		n.other = T4
		if some {
			n.lock, n.other = 0, app
			n.readLanes(n, x)
			return
		}
	case T4:
		n.eventfd, n.other = false, R6
	case R6:
		n.armed, n.bits, n.other = newSeq, s.bits&armDirect|armFD, R7
		if v.bug == trywaitKeepsThr {
			n.bits = s.bits | armFD
		}
	case R7:
		n.lock, n.other = 0, T8
		if s.ready != 0 || s.cand != 0 {
			n.other = app
		}
	case T8: // readable, or the user's own deadline
		n.other = app
	}
	x.emit(n)
}

// deaf judges a user who is blocked on the descriptor: no finished publish may wait.
func (v *threshold) deaf(s *thresholdState) verdict {
	half, some := false, false
	for l := range s.writer {
		waiting := s.tail[l] - s.head[l]
		if s.writer[l] != P1 {
			half = true
			waiting -= min(waiting, 1)
		}
		some = some || waiting > 0
	}
	switch {
	case some && half:
		return muted
	case some:
		return lost
	}
	return resting
}
