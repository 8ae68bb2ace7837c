package model

// threshold is a read that wants want entries over two lanes and drains nothing before.
type threshold struct {
	publishes [2]uint8
	want      uint8
	capacity  uint8
	attach    bool // lane 1 attaches after the reader armed: born parked, index 0
	shared    bool // another goroutine reads the queue without blocking
	set       bool // a set looks at the queue, whoever rings it: takes, parks, drops what is empty
	get       bool // a channel does: it takes marks and parks nothing
	face      bool // another goroutine has trywait arm the descriptor, and blocks on it
	rests     bool // the other may leave lanes parked, as the first who looks after a parking
	heirs     bool // the reader's process may die anywhere, and another takes over
	plain     bool
	deviant
}

func (v threshold) with(plain bool) explored {
	v.plain = plain
	return form("", &v).explored
}

// The actors of the reader's process.
const (
	waiter = 10
	other  = 11
)

// thresholdState holds absolute indices, since wake indices are compared with them.
type thresholdState struct {
	tail, buffered, left [2]uint8
	head, seen, idx      [2]uint8
	missing              uint8
	parked, ready, cand  uint8
	armed, rung          uint8
	at, other            step
	lock                 uint8
	taken                bool // the other took marks or un-parked since the waiter began to look
	lane                 uint8
	fresh, asleep        bool
	unknown              bool // lane 1 is not known to the reader
	writer               [2]step
	w, wBits             [2]uint8
	bits                 uint8 // of the armed word
	eventfd              bool
}

// Beside armDirect and armFD.
const armThr = 1 << 2

func (v *threshold) start() (s thresholdState) {
	s.left, s.at, s.other, s.cand = v.publishes, R1, gone, 3
	s.writer = [2]step{P1, P1}
	if v.shared || v.set || v.get || v.face {
		s.other = app
	}
	if v.attach {
		s.unknown, s.parked, s.cand = true, 2, 1
	}
	return s
}

func (v *threshold) names() []string { return (&bell{}).names() }

func (v *threshold) same(n *thresholdState) {
	relabel(&n.armed, &n.rung, &n.w[0], &n.w[1])
}

func (v *threshold) next(s *thresholdState, x *search[thresholdState]) {
	x.by(waiter, s.at)
	if n := x.fork(s); !s.asleep && s.at != gone && v.wait(s, n) {
		x.emit(n)
	}
	x.does(s, waiter, K1, v.heirs, func(n *thresholdState) { v.succeed(n) })
	if s.other != gone {
		x.by(other, s.other)
		v.read(s, x)
	}
	for l := range s.writer {
		if s.buffered[l] > 0 {
			x.by(uint8(20+l), visible)
			n := x.fork(s)
			n.tail[l]++
			n.buffered[l]--
			x.emit(n)
		}
		full := s.tail[l]+s.buffered[l]-s.head[l] >= v.capacity
		if s.writer[l] == P1 && (s.left[l] == 0 || full) {
			continue
		}
		x.does(s, uint8(l), s.writer[l], true, func(n *thresholdState) { v.produce(s, n, l) })
	}
}

func (v *threshold) produce(s, n *thresholdState, l int) {
	bit := uint8(1) << l
	done := func() { n.writer[l], n.w[l], n.wBits[l] = P1, 0, 0 }
	switch s.writer[l] {
	case P1:
		n.left[l]--
		if v.plain {
			n.buffered[l]++
		} else {
			n.tail[l]++
		}
		n.writer[l] = P2
	case P2:
		n.writer[l] = P3
		if s.parked&bit == 0 {
			done()
		} else if v.plain && v.bug != noFence && v.bug != noFenceWeak {
			n.writer[l] = P2f
		}
	case P2f:
		n.flush(l)
		n.writer[l] = P3
	case P3:
		n.writer[l] = P4
		if s.ready&bit == 0 {
			n.ready |= bit
			if v.bug != noFenceWeak {
				n.flush(l)
			}
		} else if v.bug == readyBitSkips {
			done()
		}
	case P4:
		n.w[l], n.wBits[l], n.writer[l] = s.armed, s.bits, P5i
		if s.bits == 0 {
			done()
		}
	case P5i: // the index is loaded after armed
		n.writer[l] = P5
		if s.wBits[l]&armThr != 0 && s.tail[l]+s.buffered[l] < s.idx[l] {
			done()
		}
	case P5:
		n.writer[l] = P5e
		if s.rung == s.w[l] {
			done()
		} else if v.bug == rungBeforeWake {
			n.rung = s.w[l]
		}
	case P5e:
		n.fresh, n.writer[l] = false, P5w
	case P5w:
		if s.wBits[l]&armDirect != 0 {
			n.asleep = false
		}
		n.writer[l] = P5r
		if s.wBits[l]&armFD != 0 {
			n.writer[l] = P5d
		}
	case P5d:
		n.eventfd, n.writer[l] = true, P5r
	case P5r:
		n.rung = s.w[l]
		done()
	}
}

func (n *thresholdState) flush(l int) {
	n.tail[l], n.buffered[l] = n.tail[l]+n.buffered[l], 0
}

// barrier reaches the next producer, and goes on with end after the last.
func (n *thresholdState) barrier(at *step, end step) {
	n.flush(int(n.lane))
	if n.lane == 1 {
		*at = end
	}
	n.lane = 1 - n.lane
}

// read is the other goroutine: R1 to R3 under q.mu, again and again, and away at any time.
func (v *threshold) read(s *thresholdState, x *search[thresholdState]) {
	n := x.fork(s)
	if v.face {
		v.tryWait(s, n, x)
		return
	}
	switch s.other {
	case app:
		n.other = gone
		x.emit(n)
		n.other = R1
	case R1:
		if s.lock != 0 {
			return
		}
		n.lock = other
		n.take(s)
		n.taken = n.taken || s.ready != 0
		n.other = R2
		if v.set {
			n.other = S2p
		}
		if v.get {
			n.lock, n.other = 0, app
		}
	case S2p:
		n.other = S2t
		if v.plain && v.bug != noBarrierS2 && s.cand&^s.parked != 0 {
			n.other = S2b
		}
		n.parked |= s.cand
	case S2b:
		n.barrier(&n.other, S2t)
	case S2t:
		n.lock, n.other = 0, app
		for l := range s.head {
			if s.tail[l] == s.head[l] {
				n.cand &^= 1 << l
			}
		}
	case R2:
		if v.rests {
			left := x.fork(n)
			left.other = R3
			x.emit(left)
		}
		n.parked &^= s.cand
		n.other = R3
		if s.cand&s.parked != 0 {
			n.taken = true
			if s.armed != 0 && v.bug != unparksSilently {
				n.other = R2e
			}
		}
	case R2e:
		n.fresh, n.other = false, R2w
	case R2w:
		n.asleep, n.other = false, R3
	case R3:
		n.lock, n.other = 0, app
		n.readLanes(s, x)
	}
	x.emit(n)
}

// readLanes reads one entry of a lane, of each in turn, or all of all lanes, which is what n
// becomes.
func (n *thresholdState) readLanes(s *thresholdState, x *search[thresholdState]) {
	for l := range s.head {
		if s.cand&(1<<l) != 0 && s.tail[l] > s.head[l] {
			one := x.fork(n)
			one.head[l]++
			if one.head[l] == one.tail[l] {
				one.cand &^= s.parked & (1 << l)
			}
			x.emit(one)
		}
	}
	for l := range s.head {
		if s.cand&(1<<l) != 0 {
			n.head[l] = s.tail[l]
			n.cand &^= s.parked & (1 << l)
		}
	}
}

// judge: what is finished must not be enough, and no lane may stand still because it is full.
func (v *threshold) judge(s *thresholdState) verdict {
	blocked := s.other == T8 && !s.eventfd
	if s.buffered != [2]uint8{} || !s.asleep && s.at != gone || s.other != gone && !blocked {
		return moving
	}
	if blocked {
		if bad := v.deaf(s); bad != resting || s.at == gone {
			return bad
		}
	}
	if s.at == gone {
		return over
	}
	sum, half, full := uint8(0), false, false
	for l := range s.writer {
		waiting := s.tail[l] - s.head[l]
		if s.writer[l] != P1 {
			half = true
			sum += waiting - min(waiting, 1)
			continue
		}
		sum += waiting
		full = full || waiting >= v.capacity && s.left[l] > 0
	}
	switch {
	case sum < v.want && !full:
		return resting
	case half:
		return muted
	}
	return lost
}

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
		n.barrier(&n.at, R1)
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
		n.barrier(&n.at, R4t)
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
		n.barrier(&n.other, R4t)
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
