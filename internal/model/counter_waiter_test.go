package model

func (m *countModel) waiterSteps(s *countState, i int, x *search[countState]) {
	n := x.fork(s)
	w, seat := &n.waiter[i], m.seat[i]
	switch w.at {
	case w0:
		n.waiter[i].at = w1
		x.emit(n)
		w.at = wGone
	case w1: // under the handle's lock
		w.inList = true
		if m.bug != cLateThreshold {
			n.threshold[seat] = m.lowest(n, seat)
		}
		w.at = w1b
		if !m.leader(s, seat) {
			w.leads, w.at = true, w2
		}
	case w1b:
		w.at = wParked
		if (m.bug != cNoFollowerLook && s.value >= m.want[i]) || w.done || w.leads {
			w.at = w6
			if w.leads && !w.done {
				w.at = w2
			}
		}
	case w2:
		w.fresh, w.at = true, w3
		if m.bug == cScanFirst && s.adder[countAdders-1].at != cJoin {
			w.knows = true
		}
	case w3:
		if m.bug != cSameArming || !w.again {
			n.armed = newSeq
		}
		w.again, w.at = true, w4
	case w4:
		m.look(s, n, i)
	case w5:
		if m.bug == cLateThreshold {
			n.threshold[seat] = m.lowest(s, seat)
		}
		w.at = w2
		if w.fresh {
			w.at = wAsleep
		}
	case wAsleep, wParked: // deadline or context
		w.at = w6
		if s.waiter[i].at == wAsleep {
			w.fresh = false
		}
	case w6:
		m.leave(n, i)
	default:
		return
	}
	x.emit(n)
	if w := s.waiter[i]; w.at == wParked && (w.done || w.leads) {
		n := x.fork(s)
		n.waiter[i].at = w6
		if !w.done {
			n.waiter[i].at = w2
		}
		x.emit(n)
	}
}

// look is W4, by the leader of a seat for all of its waiters.
func (m *countModel) look(s, n *countState, i int) {
	w := &n.waiter[i]
	if m.bug != cScanFirst && s.adder[countAdders-1].at != cJoin {
		w.knows = true
	}
	if m.bug == cLateEpoch {
		w.fresh = true
	}
	w.at = w5
	if m.bug == cNoLook {
		return
	}
	for j := range n.waiter {
		other := &n.waiter[j]
		if !other.inList || m.seat[j] != m.seat[i] || s.value < m.want[j] {
			continue
		}
		if j == i {
			w.at = w6
		} else if m.bug != cServeSelfOnly {
			other.done = true
		}
	}
}

// leave is W6, under the handle's lock: the last act of a leader is to name another one.
func (m *countModel) leave(n *countState, i int) {
	seat, led := m.seat[i], n.waiter[i].leads
	n.waiter[i] = countWaiter{at: w0}
	n.threshold[seat] = m.lowest(n, seat)
	if m.bug == cLeaveForgetsOthers {
		n.threshold[seat] = idleThreshold
	}
	if m.bug == cWaiterDisarms {
		n.rung = n.armed
	}
	for j := range n.waiter {
		if led && m.bug != cNoHandOn && n.waiter[j].inList && m.seat[j] == seat {
			n.waiter[j].leads, led = true, false
		}
	}
}
