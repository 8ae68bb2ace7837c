package model

// produce performs the next step of producer l (or of the signaller) on n, a copy of s.
func (v *bell) produce(s, n *bellState, l int) {
	switch s.at[l] {
	case W1, W2, W3, W4f, W4:
		v.asksForRoom(s, n)
	case L1, L2:
		v.attach(n, l)
	case P1, P1t, P2, P2f, P3:
		v.publish(s, n, l)
	case P4, P5i, P5, P5e, P5w, P5d, P5r:
		v.ringQueue(s, n, l)
	default:
		v.ringDomain(s, n, l)
	}
	v.attached(n, l)
	v.reminded(n)
}

func (v *bell) queue(l int) uint8 {
	if l == signaller {
		return 0
	}
	return v.queueOf[l]
}

func (n *bellState) finish(l int) {
	n.at[l], n.w[l], n.wBits[l], n.dw[l], n.age[l] = P1, 0, 0, 0, 0
	n.wDom &^= 1 << l
	n.old &^= 1 << l
}

func (v *bell) publish(s, n *bellState, l int) {
	bit := uint8(1) << l
	switch s.at[l] {
	case P1, P1t:
		if v.capacity > 0 {
			v.asksForRoom(s, n)
			return
		}
		if s.at[l] == P1 && v.isSolicited(s, l, 0) {
			n.flush(l)
			n.sol[l] = v.publishes[l] - s.left[l] + 1
			n.at[l] = P1t
			return
		}
		n.left[l]--
		n.at[l] = P2
		switch {
		case l == signaller:
			n.latch, n.owes = true, 1
			n.at[l] = P4
		case v.publishesPlain(s, l):
			n.buffered[l]++
		default:
			n.unread[l]++
		}
	case P2:
		if s.parked&bit == 0 {
			n.finish(l)
			return
		}
		if v.bug == domainBitFirst {
			n.dready |= 1 << v.queue(l)
		}
		n.at[l] = P3
		if v.publishesPlain(s, l) && v.bug != noFence && v.bug != noFenceWeak {
			n.at[l] = P2f
		}
	case P2f:
		n.flush(l)
		n.at[l] = P3
	case P3:
		n.at[l] = P4
		if s.ready&bit != 0 {
			if v.bug == readyBitSkips {
				n.finish(l)
			}
			return
		}
		if !s.refused || v.bug != roomUnmarked {
			n.ready |= bit
		}
		if v.bug != noFenceWeak {
			n.flush(l)
		}
	}
}

// isSolicited tells whether the publish that comes next, or the one back before that, is.
func (v *bell) isSolicited(s *bellState, l, back int) bool {
	return l < laneCount && v.solicited[l]>>(int(v.publishes[l]-s.left[l])-back)&1 != 0
}

// wantsDomain is the condition of P6, on the armed word that P4 loaded.
func (v *bell) wantsDomain(s *bellState, l int) bool {
	q := v.queue(l)
	if s.dom&(1<<q) != 0 {
		return l != signaller || v.bug != signalQueueOnly
	}
	return l != signaller &&
		(s.notify[q] == forAny || s.notify[q] == forSolicited && v.isSolicited(s, l, 1))
}

// afterDirect is P6 or, for a queue that is in no set, the end.
func (v *bell) afterDirect(n *bellState, l int) {
	n.w[l], n.wBits[l], n.age[l] = 0, 0, 0
	n.at[l] = P6
	if n.wDom&(1<<l) == 0 {
		n.finish(l)
	}
}

func (v *bell) ringQueue(s, n *bellState, l int) {
	switch s.at[l] {
	case P4:
		if v.wantsDomain(s, l) {
			n.wDom |= 1 << l
		}
		if v.queue(l) != 0 || s.armBits == 0 || v.bug == wrapZero && s.armed == 1 ||
			s.refused && v.bug == roomWakesOnly {
			v.afterDirect(n, l)
			return
		}
		n.w[l], n.wBits[l] = s.armed, s.armBits
		n.at[l] = P5
		if s.armBits&armThr != 0 && (l != signaller || v.bug == signalWaits) {
			n.at[l] = P5i
		}
	case P5i: // the index is loaded after armed
		n.at[l] = P5
		if l == signaller || v.publishes[l]-s.left[l] < s.idx[l] {
			v.afterDirect(n, l)
			if v.bug == thresholdGatesSet {
				n.finish(l)
			}
		}
	case P5:
		if s.rung == s.w[l] || s.rung > s.w[l] && (v.bug == wrapLess || v.bug == wrapLessEdge) {
			v.afterDirect(n, l)
			if v.bug == oneRungWord {
				n.finish(l)
			}
			return
		}
		if v.bug == rungBeforeWake {
			n.rung = s.w[l]
		}
		n.at[l] = P5e
		if s.wBits[l]&armDirect == 0 {
			n.at[l] = P5d
		}
	case P5e:
		v.directs(func(i int) { v.moves(&n.task[i]) })
		n.at[l] = P5w
	case P5w:
		v.wakeDirect(s, n)
		if v.bug == producerDisarms {
			n.armed, n.armBits = 0, 0
		}
		n.at[l] = P5r
		if s.wBits[l]&armFD != 0 {
			n.at[l] = P5d
		}
	case P5d:
		n.eventfd = n.eventfd || s.old&(1<<l) == 0
		n.at[l] = P5r
	case P5r:
		n.rung = s.w[l]
		v.afterDirect(n, l)
		if v.bug == directBellOnly {
			n.finish(l)
		}
	}
}

// directs names the tasks that sleep on the queue's own futex.
func (v *bell) directs(f func(i int)) {
	for i, r := range v.roles {
		if r == direct || r == counter {
			f(i)
		}
	}
}

func (v *bell) wakeDirect(s, n *bellState) {
	woken := false
	v.directs(func(i int) {
		if v.bug == wakeOne && woken {
			return
		}
		woken = woken || s.task[i].asleep
		n.task[i].asleep = false
	})
}

func (v *bell) ringDomain(s, n *bellState, l int) {
	qbit := uint8(1) << v.queue(l)
	switch s.at[l] {
	case P6:
		if !v.reaches(s, n, l) {
			n.finish(l)
			return
		}
		n.at[l] = P7
		if v.summary {
			n.at[l] = P6s
			if v.bug == summaryFirst {
				n.dsum, n.at[l] = true, P6s
				return
			}
			if v.bug == summarySkips && s.dready&qbit != 0 {
				n.at[l] = P7
			}
		}
		switch {
		case v.bug == domainBitSkips && s.dready&qbit != 0,
			v.bug == domainBitWhenArmed && s.darmed == 0:
			n.finish(l)
		case v.bug != domainBitFirst:
			n.dready |= qbit
		}
	case P6s:
		n.at[l] = P7
		if v.bug == summaryFirst {
			n.dready |= qbit
		} else {
			n.dsum = true
		}
	case P7:
		n.dw[l], n.at[l] = s.darmed, P7c
		if s.darmed == 0 {
			n.finish(l)
		}
	case P7c:
		n.at[l] = P7e
		if s.drung == s.dw[l] {
			n.finish(l)
		} else if v.bug == drungBeforeWake {
			n.drung = s.dw[l]
		}
	case P7e:
		v.stale(n)
		n.at[l] = P7w
	case P7w:
		v.wakeDomain(n)
		n.at[l] = P7r
	case P7r:
		n.drung = s.dw[l]
		n.finish(l)
	}
}

// onDomain tells whether the role sleeps on the domain's futex.
func (r role) onDomain() bool { return r == setter || r == getter || r == keeper }

// stale is what the domain's epoch++ does.
func (v *bell) stale(n *bellState) {
	for i, r := range v.roles {
		if r.onDomain() {
			n.task[i].fresh = false
		}
	}
}

func (v *bell) wakeDomain(n *bellState) {
	for i, r := range v.roles {
		if !r.onDomain() || !n.task[i].asleep {
			continue
		}
		n.task[i].asleep = false
		if v.bug == wakeOneDomain {
			return
		}
	}
}

// unborn takes the lanes that come later out of the first state: their rows stand there, parked,
// from the queue's creation on.
func (v *bell) unborn(s *bellState) {
	if v.attaches == 0 {
		return
	}
	s.linked = s.cand &^ v.attaches
	s.cand, s.parked, s.begun = s.linked, v.attaches, v.attaches
	v.opens(s, s.linked)
	for l := range laneCount {
		if v.attaches>>l&1 != 0 {
			s.at[l] = L1
			if v.bug == markedUnnamed {
				s.at[l] = P3
			}
		}
	}
}

// passOn is the death of producer 0, anywhere, and the claim of its lane by the next one, who goes
// on at its tail. What the dead one had stored is visible. No notice is needed: the successor rings
// as every writer does that attaches.
func (v *bell) passOn(s, n *bellState) {
	n.flush(0)
	n.cutOff = s.cutOff || s.running(0) && s.begun&1 == 0 && s.at[0] != P1t
	n.finish(0)
	n.begun |= 1
	n.at[0] = L2
}

// attach is what a writer does before it rings for the first time.
func (v *bell) attach(n *bellState, l int) {
	switch n.at[l] {
	case L1:
		n.linked |= 1 << l
		if v.bug == markedUnnamed || v.bug == silentBirth {
			n.finish(l)
			break
		}
		n.at[l] = P3
	case L2:
		if v.bug == orderLate && n.begun&1 != 0 && n.order&4 == 0 {
			n.order |= 4 // the word is written when it has rung
		} else {
			n.order |= 1
		}
		n.at[l] = P3
		if v.bug == silentSuccessor {
			n.finish(l)
		}
	}
	if n.at[l] == P3 && v.publishesPlain(n, l) {
		n.at[l] = P2f
	}
}

// attached ends an attachment with the step that ended a ring.
func (v *bell) attached(n *bellState, l int) {
	if n.at[l] != P1 || n.begun>>l&1 == 0 {
		return
	}
	if v.attaches>>l&1 != 0 && n.linked>>l&1 == 0 {
		n.at[l] = L1
		return
	}
	if l == 0 {
		n.cutOff = false
		if n.order&4 != 0 {
			n.order = n.order&^4 | 1
		}
	}
	n.begun &^= 1 << l
}

// publishesPlain tells whether the producer leaves it to the reader to pay.
func (v *bell) publishesPlain(s *bellState, l int) bool {
	return v.plain && (!v.mixed || l != 0 || s.order&5 != 0)
}

// known is what the reader makes of marks: it opens lanes that it does not know, and looks at how
// the lanes of those publish that it knows. A lane that has no name yet cannot be opened, and its
// mark is gone. Whoever finds that a lane's writer has begun to leave it to the reader pays at
// once, for what was published while the lane was parked as that of one who pays himself.
func (v *bell) known(s, n *bellState, marks uint8) uint8 {
	if v.attaches != 0 {
		marks &= s.linked
		v.opens(n, marks)
	}
	if v.mixed && marks&1 != 0 && s.order&3 == 1 && v.bug != orderUnseen {
		n.order |= 2
		if v.bug != orderUnpaid {
			v.paysLate(s, n)
		}
	}
	return marks
}

// paysLate makes visible what came before. Sets and channels that have the queue learn of it: they
// rely on marks, and this one is taken already.
func (v *bell) paysLate(s, n *bellState) {
	n.flush(0)
	if n.unread[0] > 0 && v.bug != orderUntold {
		v.handOn(n, 1)
		if s.nw > 0 {
			v.stale(n)
			v.wakeDomain(n)
		}
	}
}

// mustPay tells whether a look that parks lanes has to run the barrier, if the bug is not that it
// does not.
func (v *bell) mustPay(s *bellState, omitted string, lanes uint8) bool {
	if !v.pays(omitted) {
		return false
	}
	hot := s.cand & lanes &^ s.parked
	if v.mixed && s.order&2 == 0 {
		return hot&^1 != 0
	}
	return !v.lazy || hot != 0
}

// findLanes is how an heir learns which lanes there are: by their names, before it looks at marks.
func (v *bell) findLanes(s, n *bellState) {
	if v.attaches != 0 {
		n.cand = s.linked
		v.opens(n, s.linked)
		if v.bug == heirMaps {
			n.cand &= s.ready | v.start().cand
		}
	}
	if n.order&1 != 0 {
		n.order |= 2
	}
}

// getBegins is the first step of a get.
func (v *bell) getBegins() step {
	if v.summary && v.bug != leafBeforeSummary {
		return C1s
	}
	return C1
}

var thirdQueue = [laneCount]uint8{0, 1, 2}
