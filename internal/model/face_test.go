package model

// descriptor is what a call does to the descriptor of a set or channel, and the user's epoll_wait.
func (v *bell) descriptor(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	if s.dmu != 0 && s.dmu != uint8(i)+1 && (t.at == F1 || t.at >= F3s && t.at <= F5 && t.at != F4) {
		return
	}
	switch t.at {
	case F1: // under d.mu
		switch {
		case s.lowered:
			v.settled(n, i)
		case v.domainLook(s, i) != 0:
			if v.bug != edgeOnce {
				n.face, n.edge = true, v.edges
			}
			v.settled(n, i)
		default:
			t.at = F2
			if v.bug == faceLooksFirst {
				t.at = v.lowers()
			}
		}
	case F2:
		if s.lowering != 0 && s.lowering != uint8(i)+1 {
			return
		}
		n.lowering = uint8(i) + 1
		n.face, n.edge = false, false
		t.at = v.lowers()
		if v.bug == faceLooksFirst {
			n.lowering = 0
			v.settled(n, i)
		}
	case F3s:
		n.dmu, n.dsum, t.hand, t.at = uint8(i)+1, false, 0, F3
		if s.dsum {
			t.hand = 1
		}
	case F3: // under d.mu
		v.lower(s, n, i)
	case F4:
		n.face, n.edge = false, false
		t.at = F5
		if v.bug == faceResetLate {
			*t = task{at: F8}
		}
	case F5: // under d.mu
		n.lowered = v.domainLook(s, i) == 0 || v.bug == faceNoLook
		*t = task{at: app}
		if n.lowered {
			t.at = F8
			if v.bug == faceResetLate {
				t.at = F4
			}
		}
	case F8: // readable, or the user's own deadline
		n.edge = false
		*t = task{at: app}
	}
	x.emit(n)
}

// lowers is the first step of the look after a reset.
func (v *bell) lowers() step {
	if v.summary {
		return F3s
	}
	return F3
}

// lower is F3.
func (v *bell) lower(s, n *bellState, i int) {
	t := &n.task[i]
	if !v.summary || t.hand != 0 {
		n.dready = 0
		v.handOn(n, s.dready)
	}
	n.dmu, t.hand = 0, 0
	if n.todo[v.list(i)] != 0 && v.bug != faceNoLook {
		n.face, n.edge = true, v.edges
	} else {
		n.lowered = true
		if v.bug == faceLooksFirst {
			t.at = F2
			return
		}
	}
	n.lowering = 0
	v.settled(n, i)
}

// settled goes on after the descriptor: with the event, to sleep, or to the user's epoll.
func (v *bell) settled(n *bellState, i int) {
	t := &n.task[i]
	switch {
	case t.found != 0:
		*t = task{at: C4, queue: t.queue}
	case v.roles[i] == eventPoller:
		*t = task{at: F8}
	default:
		*t = task{at: S3}
	}
}
