package model

import "math/bits"

// waitSet is S1 to S7 of set i, and the application's choice among the ready queues.
func (v *bell) waitSet(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	if s.dmu != 0 && s.dmu != uint8(i)+1 {
		switch t.at {
		case S1s, S1, S2, S2r, S4, S5, S7:
			return // under d.mu
		}
	}
	switch t.at {
	case S1s:
		n.dmu, n.dsum, t.at = uint8(i)+1, false, S1
		if v.bug == leafBeforeSummary || !s.dsum { // nothing is marked
			n.dmu, t.at = 0, S2
			if v.roles[i] == keeper {
				t.at = S3
			}
		}
	case S1, S1h:
		v.takeDomain(s, n, i)
	case S2, S2l, S2h, S2p, S2b, S2t, S2r:
		if !v.lookAt(s, n, i) {
			return
		}
	case S3:
		t.fresh, t.at = true, S4
	case S4: // under d.mu
		n.darmed = newSeq
		n.nw++
		t.at = S5
	case S5: // under d.mu
		some := v.domainLook(s, i)
		t.at = S6
		if some != 0 {
			t.fresh, t.at = false, S7
		}
	case S6:
		t.asleep, t.fresh, t.at = t.fresh, false, S7
	case S7: // under d.mu
		n.nw--
		if n.nw == 0 || v.bug == eachDisarmsDomain {
			n.darmed = 0
		}
		*t = task{at: app}
		if v.roles[i] == keeper {
			t.at = v.setBegins()
		}
	case S8:
		found := v.claimed(s, n, t)
		if found == 0 {
			*t = task{at: app}
			break
		}
		*t = task{at: gone}
		x.emit(n)
		for q := range uint8(3) {
			if found&(1<<q) != 0 {
				*t = task{at: R1, call: read, queue: q}
				x.emit(n)
			}
		}
		return
	}
	x.emit(n)
}

// claimed is what a wait on a set returns: a queue that was found for its signal only if the signal
// is still there, and then the wait takes it.
func (v *bell) claimed(s, n *bellState, t *task) uint8 {
	switch {
	case !t.signal:
	case v.bug == signalKept:
		n.owes--
	case s.latch || v.bug == signalUnclaimed:
		n.takeLatch()
	default:
		return t.found &^ 1
	}
	return t.found
}

// setBegins is the first step of a wait on a set.
func (v *bell) setBegins() step {
	if v.summary && v.bug != leafBeforeSummary {
		return S1s
	}
	return S1
}

// domainLook is the second look of S5 and its like. The keeper looks at what those who have a
// descriptor have in their masks, and at no list: what is listed for them shows in the descriptor.
func (v *bell) domainLook(s *bellState, i int) uint8 {
	list := v.list(i)
	if v.roles[i] == keeper {
		list = v.described()
		if v.bug == keeperBlind {
			return 0
		}
	}
	bits := s.dready
	if v.summary && !s.dsum {
		bits = 0
	}
	bits &= s.mask[list]
	if v.roles[i] != keeper && v.bug != domainLookSharedOnly {
		bits |= s.todo[list]
	}
	return bits
}

// put adds queues to a list. Under d.mu it also raises a lowered descriptor.
func (v *bell) put(n *bellState, list int, queues uint8) {
	n.todo[list] |= queues
	if queues != 0 && n.lowered && list == v.described() && v.bug != listsSilently {
		n.lowered, n.face, n.edge = false, true, v.edges
	}
}

// handOn gives the domain's bits to every list that has them in its mask.
func (v *bell) handOn(n *bellState, bits uint8) {
	for i, r := range v.roles {
		if v.list(i) != i && v.bug != sharedList || r.gets() && v.bug == setsOnly {
			continue
		}
		if r.gets() || r == setter || r == setPoller {
			v.put(n, i, bits&n.mask[i])
		}
	}
}

// takeDomain is S1: what is taken goes to every set in the same critical section of d.mu.
func (v *bell) takeDomain(s, n *bellState, i int) {
	t := &n.task[i]
	bits := s.dready
	if t.at == S1h {
		bits = t.hand
	} else if v.bug != readyBeforeDomain {
		n.dready &^= bits
	}
	if v.bug == domainHandOn && t.at == S1 {
		t.hand, t.at = bits, S1h
		return
	}
	v.handOn(n, bits)
	*t = task{at: S2}
	n.dmu = 0
	switch {
	case v.summary && v.bug == leafBeforeSummary:
		t.at = S1s
	case v.roles[i] == keeper:
		t.at = S3
	}
}

// lookAt is S2. It returns false while the queue's lock is taken.
func (v *bell) lookAt(s, n *bellState, i int) bool {
	t := &n.task[i]
	lanes := v.lanesOf(t.queue)
	qbit := uint8(1) << t.queue
	switch t.at {
	case S2:
		v.nextQueue(s, n, i)
	case S2l:
		if !v.acquire(s, n, t.queue, i) {
			return false
		}
		bits := s.ready & lanes
		n.ready &^= bits
		if v.bug == lookUnlocked {
			t.hand, t.at = bits, S2h
			break
		}
		v.enlist(s, n, bits)
		t.at = S2p
	case S2h:
		v.enlist(s, n, t.hand)
		t.hand, t.at = 0, S2p
	case S2p:
		t.at = S2t
		if v.mustPay(s, noBarrierS2, lanes) {
			t.at = S2b
		}
		if v.bug != setDoesNotPark {
			n.parked |= s.cand & lanes
		}
	case S2b:
		if v.barrier(n, t) {
			t.at = S2t
		}
	case S2t:
		full := s.nonEmpty(s.cand & lanes)
		n.cand = s.cand&^lanes | full
		n.unlock(t.queue, i)
		if t.at = S2r; v.roles[i] == looker {
			*t = task{at: app}
			break
		}
		if full != 0 || t.queue == 0 && s.latch && v.bug != latchUnseen {
			t.found |= qbit
			t.signal = t.signal || full == 0
		}
	case S2r:
		switch full := t.found&qbit != 0; {
		case full && v.bug != edgeList:
			v.put(n, v.list(i), qbit&s.mask[i])
		case !full && v.bug == lateOffList:
			n.todo[v.list(i)] &^= qbit
		}
		t.done |= qbit
		t.queue, t.at = 0, S2
	}
	return true
}

// list is the index of the set that task i waits on. A set is for one waiter at a time: while it
// looks at a queue the list lacks that queue, and a second one would go to sleep on it. A channel
// is for many.
func (v *bell) list(i int) int {
	if v.bug == sharedList {
		return 0
	}
	if v.roles[i].gets() && !v.apart {
		for j, r := range v.roles {
			if r.gets() {
				return j
			}
		}
	}
	return i
}

// described is the list that has a descriptor, or -1.
func (v *bell) described() int {
	for i, r := range v.roles {
		if r == setPoller || r == eventPoller {
			return v.list(i)
		}
	}
	return -1
}

// nextQueue takes a queue off the list before it is looked at.
func (v *bell) nextQueue(s, n *bellState, i int) {
	t := &n.task[i]
	rest := s.todo[v.list(i)] &^ t.done
	if rest == 0 {
		if v.bug == readyBeforeDomain {
			n.dready = 0
		}
		*t = task{at: S3, found: t.found, signal: t.signal}
		if v.roles[i] == setPoller {
			t.at = F4
			if v.bug == faceResetLate {
				t.at = F5
			}
		}
		if t.found != 0 {
			t.at = S8
		}
		return
	}
	t.queue = uint8(bits.TrailingZeros8(rest))
	if v.bug != lateOffList {
		n.todo[v.list(i)] &^= 1 << t.queue
	}
	t.at = S2l
}

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
