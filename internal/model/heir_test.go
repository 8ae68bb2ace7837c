package model

// inherit is a process that takes the queue over: at any step of its predecessor, also half way
// through a take-over, and as often as it likes. The predecessor's goroutines die with all that was
// private to them. What is shared of the queue stays; its domain is another one. The goroutines of
// the variant then begin anew, in the new process.
func (v *bell) inherit(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	if t.at != K1 { // it dies half way, and the next one comes
		again := x.fork(n)
		v.succeed(s, again, i)
		x.emit(again)
	}
	switch t.at {
	case K1:
		v.succeed(s, n, i)
	case K2:
		if v.barrier(n, t) {
			*t = task{at: v.afterBarrier()}
		}
	case K3:
		n.named, t.at = true, K4
		if v.bug == heirNamesLate {
			t.at = K1
		}
	case K4:
		n.dom, t.at = v.start().dom, K5
	case K5:
		n.mask, n.todo, n.heirReady = v.masks, v.masks, true
		if v.bug == heirListsNone {
			n.todo = [taskCount]uint8{}
		}
		t.at = K1
		if v.bug == heirNamesLate {
			t.at = K3
		}
	}
	x.emit(n)
}

func (v *bell) afterBarrier() step {
	if v.bug == heirNamesLate {
		return K4
	}
	return K3
}

// succeed is K1: the armed word gets the new generation and no flags, everything private is made
// anew. A producer that is about to ring the domain of before changes nothing in the new one.
func (v *bell) succeed(s, n *bellState, i int) {
	begin := v.start()
	*n = bellState{unread: s.unread, left: s.left, buffered: s.buffered, parked: s.parked,
		ready: s.ready, cand: begin.cand, rung: s.rung, latch: s.latch, owes: s.owes, at: s.at, w: s.w,
		wBits: s.wBits, wDom: s.wDom, sol: s.sol, old: s.old, stale: s.holds | s.stale, task: begin.task,
		linked: s.linked, begun: s.begun, cutOff: s.cutOff, order: s.order}
	v.findLanes(s, n)
	switch v.bug {
	case heirTakesMarks:
		n.cand = 0
	case heirCountsAnew:
		n.armed = s.armed
	}
	for l, at := range s.at {
		switch {
		case at >= P6 && at <= P7r:
			n.finish(l)
			v.attached(n, l)
		case at > P4 && at < P6:
			n.old |= 1 << l
		}
	}
	n.task[i] = task{at: v.afterBarrier()}
	if v.pays(heirParks) {
		n.task[i].at = K2
	}
}

// reaches tells whether producer l finds the bell of the reader's process: it asks for that of the
// generation that it saw in the armed word.
func (v *bell) reaches(s, n *bellState, l int) bool {
	bit := uint8(1) << l
	found := s.named && s.old&bit == 0
	if v.bug == keepsBell && s.stale&bit != 0 {
		return false
	}
	if v.bug == keepsBell && found {
		n.holds |= bit
	}
	return found
}
