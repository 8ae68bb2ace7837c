package model

// fromOutside is what other goroutines of the reader's process do to a set: its members change, and
// the notice of a producer's death comes.
func (v *bell) fromOutside(s, n *bellState, i int, x *search[bellState]) {
	switch t := &n.task[i]; {
	case t.at < U1:
		v.change(s, n, t)
	default:
		v.bury(s, n, t)
	}
	x.emit(n)
}

// change adds queue 0 to the set of task 1, deletes it and adds it for good. The flag needs no
// lock.
func (v *bell) change(s, n *bellState, t *task) {
	const set, q0 = 1, 1
	switch t.at {
	case A1:
		n.dom |= q0
		t.at = A2
		if v.bug == listBeforeFlag {
			v.added(s, t, t.hand)
		}
	case A2:
		n.mask[set] |= q0
		v.put(n, set, q0)
		if v.bug == listBeforeFlag {
			t.hand, t.at = min(1, s.nw), A1
			break
		}
		v.added(s, t, min(1, s.nw))
	case A2e:
		v.stale(n)
		t.at = A2w
	case A2w:
		v.wakeDomain(n)
		v.added(s, t, 0)
	case A3:
		n.mask[set] &^= q0
		n.todo[set] &^= q0
		t.at = A4
	case A4:
		n.dom &^= q0
		t.at = A1
		if v.bug == listBeforeFlag {
			t.at = A2
		}
	}
}

// added ends an addition, or goes on to wake those who were waiting.
func (v *bell) added(s *bellState, t *task, waiting uint8) {
	t.hand = 0
	switch {
	case waiting != 0 && v.bug != addWakesNobody:
		t.at = A2e
	case t.found == 0:
		t.found, t.at = 1, A3
	default:
		*t = task{at: gone}
	}
}

// bury kills producer 0 at any step and does what its notice does.
func (v *bell) bury(s, n *bellState, t *task) {
	switch t.at {
	case U1:
		n.flush(0)
		n.dead, t.at = true, U2e
		if v.bug != noticeUnmarked {
			n.ready |= 1
		}
	case U2e:
		v.forRole(direct, func(i int) { n.task[i].fresh = false })
		t.at = U2w
	case U2w:
		v.forRole(direct, func(i int) { n.task[i].asleep = false })
		n.eventfd = true
		t.at = U3
		switch v.bug {
		case noticeQueueOnly:
			t.at = gone
		case noticeWakesFirst:
			t.at = U3e
		}
	case U3: // under d.mu
		v.handOn(n, 1)
		t.at = U3e
		if s.nw == 0 || v.bug == noticeListsOnly || v.bug == noticeWakesFirst {
			t.at = gone
		}
	case U3e:
		v.stale(n)
		t.at = U3w
	case U3w:
		v.wakeDomain(n)
		t.at = gone
		if v.bug == noticeWakesFirst {
			t.at = U3
		}
	}
}
