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
	case at == R4l:
		v.ends(s, n, i)
		x.emit(n)
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
	case taker:
		calls = []task{{at: gone}, {at: R1, call: read}}
	case looker:
		calls = []task{{at: gone}, {at: S2l}}
	case marker:
		calls = []task{{at: gone}, {at: R1, call: hints}}
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
	n.taken = n.taken || v.want > 0 && bits != 0
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
		switch t.call {
		case count:
			n.taken, t.at = false, R4
		case hints:
			v.giveBack(n, i, x)
			return
		}
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
			if v.rests {
				left := x.fork(n)
				left.task[i].at = R3
				x.emit(left)
			}
			n.parked &^= n.cand & lanes
		}
		t.at = v.heats(s, n)
	case R2e:
		v.directs(func(i int) { n.task[i].fresh = false })
		t.at = R2w
	case R2w:
		v.directs(func(i int) { n.task[i].asleep = false })
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
func (v *bell) pays(omitted string) bool {
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
			v.takes(one)
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
	if full != 0 {
		v.takes(n)
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
	if t.call == count {
		v.counts(s, n, i)
		x.emit(n)
		return
	}
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

// sleep is R5 to R9 of a direct read and what trywait has in their place.
func (v *bell) sleep(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	switch t.at {
	case R5:
		if t.fresh, t.at = true, R6; t.call == count && v.bug != indexAfterLook {
			t.at = R5i
		}
	case R5i:
		if !v.acquire(s, n, 0, i) {
			return
		}
		v.storeIndices(s, n, i)
	case R6:
		if !v.arm(s, n, t) {
			return
		}
	case R7:
		v.secondLook(s, n, i, x)
		return
	case R8:
		t.asleep, t.fresh, t.moved, t.at = t.fresh, false, 0, R9
	case R9:
		n.waiters--
		if n.waiters == 0 || v.bug == eachDisarms {
			n.armBits &^= armDirect | armThr
			if v.bug == disarmTakesFD {
				n.armBits = 0
			}
			if n.armBits == 0 {
				n.armed = 0
			}
		}
		if t.call == count {
			v.leaves(n, i, x)
			break
		}
		*t = task{at: app}
	case T4:
		n.eventfd = false
		t.at = R6
		switch v.bug {
		case resetAfterArm:
			t.at = R7
		case resetAfterLook:
			*t = task{at: T8}
		}
	case T8: // readable, or the user's own deadline
		*t = task{at: app}
	}
	x.emit(n)
}

// arm is R6. The direct bit goes with the last sleeper; the descriptor's bit stays. It is false
// while the bound of numbers that wrap keeps the reader from it.
func (v *bell) arm(s, n *bellState, t *task) bool {
	bit := uint8(armDirect)
	if t.call == trywait {
		bit = armFD
	} else {
		n.waiters++
	}
	switch {
	case v.bug == sameSeq && s.armBits != 0, v.bug == heirCountsAnew && s.armed != 0:
		n.armed = s.armed
	case v.numbers == 0:
		n.armed = newSeq
	case !v.renumber(s, n):
		return false
	}
	n.armBits |= bit
	switch {
	case t.call == count && (s.armBits&armFD == 0 || v.bug == thresholdGatesFD):
		n.armBits |= armThr
	case t.call == trywait && v.bug != trywaitKeepsThr:
		n.armBits &^= armThr
	}
	if v.bug == armForgetsFD {
		n.armBits = bit
	}
	t.at = R7
	if t.call == trywait && v.bug == resetAfterArm {
		t.at = T4
	}
	return true
}

// secondLook is R7, under q.mu.
func (v *bell) secondLook(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	if s.lock[0] != 0 && s.lock[0] != uint8(i)+1 && v.bug != lookUnlocked {
		return
	}
	lanes := v.lanesOf(0)
	some := s.ready&lanes != 0
	switch {
	case t.call == count:
		some = some || s.taken && v.bug != takesIgnored
		n.unlock(0, i)
		n.taken = false
	case v.bug != lookSharedOnly:
		some = some || s.cand&lanes != 0
	}
	if v.bug != lookIgnoresLatch {
		some = some || s.latch
	}
	if v.bug == noSecondLook {
		some = false
	}
	switch {
	case t.call == trywait:
	case some:
		t.fresh, t.moved, t.at = false, 0, R9
	case t.call == count && v.bug == indexAfterLook:
		t.at = R5i
	default:
		t.at = R8
	}
	switch {
	case t.call != trywait:
	case some:
		*t = task{at: app}
	case v.bug == resetAfterLook:
		t.at = T4
	default:
		*t = task{at: T8}
	}
	x.emit(n)
}

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
		linked: s.linked, begun: s.begun, cutOff: s.cutOff, order: s.order, sum: sum{idx: s.idx}}
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
		v.directs(func(i int) { n.task[i].fresh = false })
		t.at = U2w
	case U2w:
		v.directs(func(i int) { n.task[i].asleep = false })
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
