package model

// produce performs the next step of producer l (or of the signaller) on n, a copy of s.
func (v *bell) produce(s, n *bellState, l int) {
	switch s.at[l] {
	case L1, L2:
		v.attach(n, l)
	case P1, P1t, P2, P2f, P3:
		v.publish(s, n, l)
	case P4, P5, P5e, P5w, P5d, P5r:
		v.ringQueue(s, n, l)
	default:
		v.ringDomain(s, n, l)
	}
	v.attached(n, l)
}

func (v *bell) queue(l int) uint8 {
	if l == signaller {
		return 0
	}
	return v.queueOf[l]
}

func (n *bellState) finish(l int) {
	n.at[l], n.w[l], n.wBits[l], n.dw[l] = P1, 0, 0, 0
	n.wDom &^= 1 << l
	n.old &^= 1 << l
}

func (v *bell) publish(s, n *bellState, l int) {
	bit := uint8(1) << l
	switch s.at[l] {
	case P1, P1t:
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
		n.ready |= bit
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
	n.w[l], n.wBits[l] = 0, 0
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
		if v.queue(l) != 0 || s.armBits == 0 {
			v.afterDirect(n, l)
			return
		}
		n.w[l], n.wBits[l] = s.armed, s.armBits
		n.at[l] = P5
	case P5:
		if s.rung == s.w[l] {
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
		v.forRole(direct, func(i int) { n.task[i].fresh = false })
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

func (v *bell) forRole(r role, f func(i int)) {
	for i := range v.roles {
		if v.roles[i] == r {
			f(i)
		}
	}
}

func (v *bell) wakeDirect(s, n *bellState) {
	woken := false
	v.forRole(direct, func(i int) {
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
