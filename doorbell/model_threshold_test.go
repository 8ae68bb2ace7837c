package doorbell_test

// threshold is a read that wants want entries over two lanes and drains nothing before.
type threshold struct {
	name      string
	want      uint8
	publishes [2]uint8
	capacity  uint8
	attach    bool // lane 1 attaches after the reader armed: born parked, index 0
	plain     bool
	bug       bug
}

// thresholdState holds absolute indices, since wake indices are compared with them.
type thresholdState struct {
	tail, buffered, left [2]uint8
	seen, idx            [2]uint8
	parked, ready        uint8
	armed, rung          uint8
	at                   step
	lane                 uint8
	fresh, asleep        bool
	unknown              bool // lane 1 is not known to the reader
	writer               [2]step
	w                    [2]uint8
}

func (v *threshold) start() (s thresholdState) {
	s.left, s.at = v.publishes, R1
	s.writer = [2]step{P1, P1}
	if v.attach {
		s.unknown, s.parked = true, 2
	}
	return s
}

func (v *threshold) actor(who uint8) string { return (&bell{}).actor(who) }

func (v *threshold) next(s *thresholdState, emit emitter[thresholdState]) {
	out := func(n *thresholdState, by label) {
		relabel(&n.armed, &n.rung, &n.w[0], &n.w[1])
		emit(n, by)
	}
	if !s.asleep && s.at != gone {
		n := *s
		v.reader(s, &n)
		out(&n, label{10, s.at})
	}
	for l := range s.writer {
		if s.buffered[l] > 0 {
			n := *s
			n.tail[l]++
			n.buffered[l]--
			out(&n, label{uint8(20 + l), visible})
		}
		full := s.tail[l]+s.buffered[l] >= v.capacity
		if s.writer[l] == P1 && (s.left[l] == 0 || full) {
			continue
		}
		n := *s
		v.produce(s, &n, l)
		out(&n, label{uint8(l), s.writer[l]})
	}
}

func (v *threshold) produce(s, n *thresholdState, l int) {
	bit := uint8(1) << l
	done := func() { n.writer[l], n.w[l] = P1, 0 }
	flush := func() { n.tail[l], n.buffered[l] = n.tail[l]+n.buffered[l], 0 }
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
		flush()
		n.writer[l] = P3
	case P3:
		n.writer[l] = P4
		if s.ready&bit == 0 {
			n.ready |= bit
			if v.bug != noFenceWeak {
				flush()
			}
		} else if v.bug == readyBitSkips {
			done()
		}
	case P4:
		n.w[l], n.writer[l] = s.armed, P5i
		if s.armed == 0 {
			done()
		}
	case P5i: // the index is loaded after armed
		n.writer[l] = P5
		if s.tail[l]+s.buffered[l] < s.idx[l] {
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
		n.asleep, n.writer[l] = false, P5r
	case P5r:
		n.rung = s.w[l]
		done()
	}
}

func (s *thresholdState) known() int {
	if s.unknown {
		return 1
	}
	return 2
}

func (v *threshold) reader(s, n *thresholdState) {
	switch s.at {
	case R1: // an attach is seen by its mark
		n.unknown = s.unknown && s.ready&2 == 0
		n.ready, n.at = 0, R4
	case R4:
		n.at = R4t
		if v.plain && v.bug != noBarrierR4 {
			n.at = R4b
		}
		n.parked |= 1<<s.known() - 1
	case R4b:
		n.tail[s.lane] += s.buffered[s.lane]
		n.buffered[s.lane] = 0
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
		n.armed, n.at = newSeq, R7
	case R7:
		n.at = R8
		if v.bug == indexAfterLook {
			n.at = R5i
		}
		if s.ready != 0 && v.bug != noSecondLook {
			n.at = R9
		}
	case R8:
		n.asleep, n.fresh, n.at = s.fresh, false, R9
	case R9:
		n.armed, n.fresh, n.at = 0, false, R1
	}
}

// count sums the tails; enough of them, or a full lane, ends the wait.
func (v *threshold) count(s, n *thresholdState) {
	sum, full := uint8(0), false
	for l := range s.known() {
		n.seen[l] = s.tail[l]
		sum += s.tail[l]
		full = full || s.tail[l] >= v.capacity
	}
	n.at = R5
	if sum >= v.want || full && v.bug != fullIgnored {
		n.at = gone
	}
}

// storeIndices spreads what is missing: when enough is there, some lane reached its share.
func (v *threshold) storeIndices(s, n *thresholdState) {
	lanes := uint8(s.known())
	missing := v.want - s.seen[0] - s.seen[1]
	share := (missing + lanes - 1) / lanes
	if v.bug == wholeIndex {
		share = missing
	}
	for l := range lanes {
		n.idx[l] = s.seen[l] + max(1, share)
		if v.bug != indexUnclamped {
			n.idx[l] = min(n.idx[l], v.capacity)
		}
	}
	n.at = R6
	if v.bug == indexAfterLook {
		n.at = R8
	}
}

func (v *threshold) judge(s *thresholdState) verdict {
	if s.buffered != [2]uint8{} || !s.asleep && s.at != gone {
		return moving
	}
	if s.at == gone {
		return over
	}
	sum, half, blocked := uint8(0), false, false
	for l := range s.writer {
		sum += s.tail[l]
		if s.writer[l] != P1 {
			half = true
			sum--
			continue
		}
		blocked = blocked || s.tail[l] >= v.capacity && s.left[l] > 0
	}
	switch {
	case sum < v.want && !blocked:
		return resting
	case half:
		return muted
	}
	return lost
}
