package model

// act performs the next step of goroutine i of the reader's process. It emits one successor, or
// several where the application has a choice, or none while the queue's lock is taken.
func (v *bell) act(s *bellState, i int, x *search[bellState]) {
	n := x.fork(s)
	switch at := s.task[i].at; {
	case at == app:
		v.choose(n, i, x)
	case at >= R1 && at <= R4t:
		v.take(s, n, i, x)
	case at >= R5 && at <= T8:
		v.sleep(s, n, i, x)
	case at >= N1 && at <= N6:
		v.arming(s, n, i, x)
	case at >= C1s && at <= C4:
		v.get(s, n, i, x)
	case at >= F1 && at <= F8:
		v.descriptor(s, n, i, x)
	case at >= K1 && at <= K5:
		v.inherit(s, n, i, x)
	case at >= A1 && at <= U3w:
		v.fromOutside(s, n, i, x)
	default:
		v.waitSet(s, n, i, x)
	}
}

// choose is the application between two calls.
func (v *bell) choose(n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	calls := []task{{at: gone}}
	switch v.roles[i] {
	case direct:
		calls = []task{{at: gone}, {at: R1, call: sread}, {at: R1, call: read}}
	case poller:
		calls = []task{{at: gone}, {at: R1, call: trywait}, {at: R1, call: read}}
	case setter, setPoller:
		calls = []task{{at: gone}, {at: v.setBegins()}}
	case getter, eventPoller:
		calls = []task{{at: gone}, {at: v.getBegins()}}
	}
	for _, c := range calls {
		*t = c
		x.emit(n)
	}
}

// enlist merges ready bits that were taken into cand. While a channel is armed a lane that was no
// candidate is noted with its head: nobody has read from it since the arming.
func (v *bell) enlist(s, n *bellState, bits uint8) {
	bits = v.known(s, n, bits)
	n.cand |= bits
	for l := range laneCount {
		if bits&^s.noted&(1<<l) != 0 && s.notify[v.queueOf[l]] != forNone {
			n.base[l] = v.head(s, l)
			n.noted |= 1 << l
		}
	}
}

func (v *bell) acquire(s, n *bellState, q uint8, i int) bool {
	if v.bug == noLock {
		return true
	}
	if s.lock[q] != 0 {
		return false
	}
	n.lock[q] = uint8(i) + 1
	return true
}

func (n *bellState) unlock(q uint8, i int) {
	if n.lock[q] == uint8(i)+1 {
		n.lock[q] = 0
	}
}

// giveBack ends a call: the lock is dropped and the application runs.
func (v *bell) giveBack(n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	n.unlock(t.queue, i)
	next := task{at: app}
	if t.call == empty && v.channel == 3 && !v.apart && !n.started {
		n.started, next = true, task{at: N1, queue: 1}
	}
	*t = next
	x.emit(n)
}

// take is R1 to R4, all of it under q.mu.
func (v *bell) take(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	lanes := v.lanesOf(t.queue)
	switch t.at {
	case R1:
		if !v.acquire(s, n, t.queue, i) {
			return
		}
		bits := s.ready & lanes
		n.ready &^= bits
		if v.bug == lookUnlocked {
			t.hand, t.at = bits, R1h
			break
		}
		v.enlist(s, n, bits)
		t.at = R2
		if t.call == trywait { // it may also leave lanes parked and go straight to R4
			direct := x.fork(n)
			direct.task[i].at = R4
			x.emit(direct)
		}
	case R1h:
		v.enlist(s, n, t.hand)
		t.hand, t.at = 0, R2
	case R2:
		if !v.keep && (s.notify[t.queue] == forNone || v.bug == unparkArmed) {
			if v.sift {
				n.cand &^= s.parked & lanes &^ s.filled()
			}
			n.parked &^= n.cand & lanes
		}
		t.at = R3
	case R3:
		v.drain(s, n, i, x)
		return
	case R4:
		t.at = R4t
		if v.mustPay(s, noBarrierR4, lanes) {
			t.at = R4b
		}
		n.parked |= s.cand & lanes
	case R4b:
		if v.barrier(n, t) {
			t.at = R4t
		}
	case R4t:
		v.tailsAgain(s, n, i, x)
		return
	}
	x.emit(n)
}

// filled returns the lanes with entries that the reader can see.
func (s *bellState) filled() (lanes uint8) {
	for l := range laneCount {
		if s.unread[l] > 0 {
			lanes |= 1 << l
		}
	}
	return lanes
}

// pays tells whether the reader runs the barrier at the place where the bug would omit it.
func (v *bell) pays(omitted bug) bool {
	return v.plain && v.bug != omitted && v.bug != noBarrier
}

// barrier drains one producer's buffer a step: an expedited membarrier interrupts the CPUs one
// after the other, and producers run on in between. It returns true with the last one.
func (v *bell) barrier(n *bellState, t *task) bool {
	for v.publishes[t.lane] == 0 {
		t.lane++
	}
	n.flush(int(t.lane))
	for t.lane++; t.lane < laneCount; t.lane++ {
		if v.publishes[t.lane] > 0 {
			return false
		}
	}
	t.lane = 0
	return true
}

// drain is R3. A read may take all there is or a single entry of any lane.
func (v *bell) drain(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	mine := s.cand & v.lanesOf(t.queue)
	full := s.nonEmpty(mine)
	if t.call == trywait {
		if full != 0 {
			v.giveBack(n, i, x)
			return
		}
		t.at = R4
		x.emit(n)
		return
	}
	for l := range laneCount {
		if full&(1<<l) != 0 && t.call != empty {
			one := x.fork(n)
			one.unread[l]--
			if one.unread[l] == 0 {
				one.cand &^= s.parked & (1 << l)
			}
			v.giveBack(one, i, x)
		}
	}
	for l := range laneCount {
		if mine&(1<<l) != 0 {
			n.unread[l] = 0
			n.cand &^= s.parked & (1 << l)
		}
	}
	if full == 0 && t.call == sread {
		t.at = R4
		x.emit(n)
		return
	}
	v.giveBack(n, i, x)
}

// tailsAgain is the end of R4.
func (v *bell) tailsAgain(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	lanes := v.lanesOf(t.queue)
	full := s.nonEmpty(s.cand & lanes)
	if v.bug == noTailsAgain {
		full = 0
	}
	n.cand = s.cand&^lanes | full
	switch {
	case full != 0 && t.call == trywait:
		v.giveBack(n, i, x)
		return
	case full != 0:
		t.at = R2
	case s.latch:
		n.takeLatch()
		v.giveBack(n, i, x)
		return
	default:
		n.unlock(t.queue, i)
		t.at = R5
		if t.call == trywait {
			t.at = T4
			if v.bug == resetAfterArm || v.bug == resetAfterLook || v.bug == noReset {
				t.at = R6
			}
		}
	}
	x.emit(n)
}
