package model

import "math/bits"

// arming is N1 to N4 of the channel's queue, all of it under q.mu, and the drain after it.
func (v *bell) arming(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	q, lanes := t.queue, v.lanesOf(t.queue)
	qbit := uint8(1) << q
	switch t.at {
	case N1, N1p, N1b, N1t:
		if !v.channelParks(s, n, i, lanes) {
			return
		}
	case N2: // with what d.mu protects
		if s.dmu != 0 {
			return
		}
		if v.due(s, q) {
			if v.bug == rearmDrops {
				n.owed[q]++ // that event is owed for ever
			} else {
				v.disarm(n, q)
				n.pending[q]++
				v.put(n, v.list(i), qbit)
				t.hand = min(1, s.nw)
			}
		}
		n.mask[v.list(i)] |= qbit
		t.at = N3
	case N3:
		mode := v.mode
		if v.twice && t.done == 0 {
			mode = forSolicited
		}
		if s.notify[q] == forNone {
			n.owed[q]++
		}
		n.notify[q] = max(s.notify[q], mode)
		t.at = N4
	case N4:
		v.rebase(s, n, lanes)
		t.at = N6
		if t.hand != 0 {
			t.at = N5e
		}
	case N5e:
		v.stale(n)
		t.at = N5w
	case N5w:
		v.wakeDomain(n)
		t.at = N6
	case N6:
		n.unlock(q, i)
		if v.twice && t.done == 0 {
			*t = task{at: N1, queue: q, done: 1}
		} else {
			*t = task{at: R1, call: empty, queue: q}
		}
	}
	x.emit(n)
}

// channelParks is N1: the lock is taken, the lanes are parked, the barrier is paid, tails are
// looked at again. Without the lock nothing happens.
func (v *bell) channelParks(s, n *bellState, i int, lanes uint8) bool {
	t := &n.task[i]
	switch t.at {
	case N1:
		if !v.acquire(s, n, t.queue, i) {
			return false
		}
		n.ready &^= lanes
		v.enlist(s, n, s.ready&lanes)
		t.at = N1p
	case N1p:
		t.at = N1t
		if v.mustPay(s, noBarrierN1, lanes) {
			t.at = N1b
		}
		n.parked |= s.cand & lanes
	case N1b:
		if v.barrier(n, t) {
			t.at = N1t
		}
	case N1t:
		n.cand = s.cand&^lanes | s.nonEmpty(s.cand&lanes)
		t.at = N2
	}
	return true
}

func (v *bell) rebase(s, n *bellState, lanes uint8) {
	n.noted = s.noted&^lanes | s.cand&lanes
	for l := range laneCount {
		if lanes&(1<<l) == 0 {
			continue
		}
		n.base[l], n.since[l] = 0, v.tail(s, l)
		if n.noted&(1<<l) != 0 {
			n.base[l] = v.tail(s, l)
		}
	}
}

// due judges against the index at the arming. A solicited index beyond the tail belongs to a batch
// that is not published yet, and may hide one that is.
func (v *bell) due(s *bellState, q uint8) bool {
	for l := range laneCount {
		if s.noted&v.lanesOf(q)&(1<<l) == 0 {
			continue
		}
		base, tail := s.base[l], v.tail(s, l)
		if v.bug == judgeByHead {
			base = v.head(s, l)
		}
		solicited := s.sol[l] > base && tail > base
		if v.bug == judgeByTail {
			solicited = s.sol[l] > base && tail >= s.sol[l]
		}
		if s.notify[q] == forAny && tail > base || s.notify[q] == forSolicited && solicited {
			return true
		}
	}
	return false
}

func (v *bell) disarm(n *bellState, q uint8) {
	lanes := v.lanesOf(q)
	n.notify[q] = forNone
	n.noted &^= lanes
	for l := range laneCount {
		if lanes&(1<<l) != 0 {
			n.base[l], n.since[l] = 0, 0
		}
	}
}

// get is C1 and C2. C3 is S3 to S7.
func (v *bell) get(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	list := v.list(i)
	switch t.at {
	case C1s, C1, C2:
		if s.dmu != 0 && s.dmu != uint8(i)+1 {
			return // under d.mu
		}
	}
	switch t.at {
	case C1s:
		n.dmu, n.dsum, t.at = uint8(i)+1, false, C1
		if v.bug == leafBeforeSummary || !s.dsum { // nothing is marked
			n.dmu, t.at = 0, C2
		}
	case C1:
		n.dready, n.dmu = 0, 0
		if v.bug == ownOnly {
			v.put(n, list, s.dready&s.mask[list])
		} else {
			v.handOn(n, s.dready)
		}
		*t = task{at: C2}
		if v.summary && v.bug == leafBeforeSummary {
			n.dmu, t.at = uint8(i)+1, C1s
		}
	case C2: // under d.mu
		v.nextEvent(s, n, i)
	case C2l:
		if !v.acquire(s, n, t.queue, i) {
			return
		}
		lanes := v.lanesOf(t.queue)
		n.ready &^= lanes
		v.enlist(s, n, s.ready&lanes)
		t.at = C2j
	case C2j:
		switch {
		case !v.due(s, t.queue):
			n.unlock(t.queue, i)
			*t = task{at: C2}
		case v.bug == noLock:
			t.at = C2d
		default:
			v.deliver(n, i)
		}
	case C2d:
		v.deliver(n, i)
	case C4: // the user leaves with the event, or arms again
		leaves := x.fork(n)
		leaves.task[i] = task{at: gone}
		x.emit(leaves)
		*t = task{at: N1, queue: t.queue}
	}
	if t.at == S3 || t.at == C4 {
		v.settleFirst(n, list, t)
	}
	x.emit(n)
}

func (v *bell) nextEvent(s, n *bellState, i int) {
	t, list := &n.task[i], v.list(i)
	if s.todo[list] == 0 {
		*t = task{at: S3}
		return
	}
	t.queue = uint8(bits.TrailingZeros8(s.todo[list]))
	qbit := uint8(1) << t.queue
	n.todo[list] &^= qbit
	t.at = C2l
	if s.pending[t.queue] > 0 {
		n.pending[t.queue]--
		n.owed[t.queue]--
		t.at = C4
		if n.pending[t.queue] > 0 || s.mask[list]&qbit != 0 {
			v.put(n, list, qbit)
		}
	}
}

// deliver is the end of a judgement that found the event due.
func (v *bell) deliver(n *bellState, i int) {
	t := &n.task[i]
	v.disarm(n, t.queue)
	n.owed[t.queue]--
	n.mask[v.list(i)] &^= 1 << t.queue
	n.unlock(t.queue, i)
	t.at = C4
}

// settleFirst: whoever gets from a channel with a descriptor leaves that as it must be.
func (v *bell) settleFirst(n *bellState, list int, t *task) {
	if list == v.described() {
		t.found = 0
		if t.at == C4 {
			t.found = 1
		}
		t.at = F1
	}
}
