package doorbell_test

// waitSet is S1 to S7 of set i, and the application's choice among the ready queues.
func (v *bell) waitSet(s, n *bellState, i int, emit func(*bellState)) {
	t := &n.task[i]
	switch t.at {
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
		some := s.dready & v.masks[i]
		if v.bug != domainLookSharedOnly {
			some |= s.todo[v.list(i)]
		}
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
	case S8:
		found := t.found
		*t = task{at: gone}
		emit(n)
		for q := range uint8(2) {
			if found&(1<<q) != 0 {
				*t = task{at: R1, call: read, queue: q}
				emit(n)
			}
		}
		return
	}
	emit(n)
}

// takeDomain is S1: what is taken goes to every set in the same critical section of d.mu.
func (v *bell) takeDomain(s, n *bellState, i int) {
	t := &n.task[i]
	bits := s.dready & v.masks[i]
	if t.at == S1h {
		bits = t.hand
	} else if v.bug != readyBeforeDomain {
		n.dready &^= bits
	}
	if v.bug == domainHandOn && t.at == S1 {
		t.hand, t.at = bits, S1h
		return
	}
	v.forRole(setter, func(f int) { n.todo[f] |= bits & v.masks[f] })
	*t = task{at: S2}
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
		n.cand |= bits
		t.at = S2p
	case S2h:
		n.cand |= t.hand
		t.hand, t.at = 0, S2p
	case S2p:
		t.at = S2t
		if v.pays(noBarrierS2) && (!v.lazy || s.cand&lanes&^s.parked != 0) {
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
		t.at = S2r
		if full != 0 {
			t.found |= qbit
		}
	case S2r:
		switch full := t.found&qbit != 0; {
		case full && v.bug != edgeList:
			n.todo[v.list(i)] |= qbit
		case !full && v.bug == lateOffList:
			n.todo[v.list(i)] &^= qbit
		}
		t.done |= qbit
		t.queue, t.at = 0, S2
	}
	return true
}

// list is the index of the set that task i waits on. A set is for one waiter at a time: while it
// looks at a queue the list lacks that queue, and a second one would go to sleep on it.
func (v *bell) list(i int) int {
	if v.bug == sharedList {
		return 0
	}
	return i
}

// nextQueue takes a queue off the list before it is looked at.
func (v *bell) nextQueue(s, n *bellState, i int) {
	t := &n.task[i]
	rest := s.todo[v.list(i)] &^ t.done
	if rest == 0 {
		if v.bug == readyBeforeDomain {
			n.dready &^= v.masks[i]
		}
		*t = task{at: S3, found: t.found}
		if t.found != 0 {
			t.at = S8
		}
		return
	}
	if rest&1 == 0 {
		t.queue = 1
	}
	if v.bug != lateOffList {
		n.todo[v.list(i)] &^= 1 << t.queue
	}
	t.at = S2l
}
