package model

// inherit is a process that takes the queue over: at any step of its predecessor, also half way
// through a take-over, and as often as it likes. The predecessor's goroutines die with all that was
// private to them. What is shared of the queue stays; its domain is another one. The goroutines of
// the variant then begin anew, in the new process.
func (v *bell) inherit(s, n *bellState, i int, emit func(*bellState)) {
	t := &n.task[i]
	if t.at != K1 { // it dies half way, and the next one comes
		again := *n
		v.succeed(s, &again, i)
		emit(&again)
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
	emit(n)
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

// heirs are the variants with a second reader's process, and those with two channels. The barrier
// is run for hot lanes only, as built: a lane that is found parked must have been paid for.
var heirs = []variant{
	{key: "z", text: "sread, take-overs, 2 lanes x2", size: smallest,
		bell: &bell{publishes: four(2, 2, 0, 0), lazy: true, sift: true,
			roles: three(direct, heir, absent)}},
	{key: "z1", text: "set, take-overs, 2 lanes x2 and x1", size: short,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true,
			roles: three(setter, heir, absent), masks: [taskCount]uint8{1}}},
	{key: "z2", text: "channel, take-overs, x2 and x1", size: short,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, channel: 1, mode: forAny,
			roles: three(getter, heir, absent)}},
	{key: "z3", text: "sread + set, take-overs, 1 lane x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, sift: true,
			roles: three(direct, setter, heir), masks: [taskCount]uint8{0, 1}}},
	{key: "z4", text: "trywait, take-overs, 2 lanes x1", size: short,
		bell: &bell{publishes: four(1, 1, 0, 0), lazy: true, sift: true,
			roles: three(poller, heir, absent)}},
	{key: "z5", text: "set {Q0, Q1}, take-overs, 1 lane x2 and x1", size: short,
		bell: &bell{publishes: four(2, 0, 1, 0), queueOf: secondQueue, lazy: true, sift: true,
			roles: three(setter, heir, absent), masks: [taskCount]uint8{3}}},
	{key: "z6", text: "sread + set, take-overs, 2 lanes x1", size: complete,
		bell: &bell{publishes: four(1, 1, 0, 0), lazy: true, sift: true,
			roles: three(direct, setter, heir), masks: [taskCount]uint8{0, 1}}},

	{key: "x", text: "two channels, a getter and a queue each, x1", size: complete,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			apart: true, roles: three(getter, getter, absent)}},
	{key: "x1", text: "two channels with a queue each, x1 in Q0", size: short,
		bell: &bell{publishes: four(1, 0, 0, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			apart: true, roles: three(getter, getter, absent)}},
	{key: "x2", text: "two channels and a set over their queues, x1 in Q0", size: complete,
		bell: &bell{publishes: four(1, 0, 0, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			apart: true, sift: true, roles: three(getter, getter, setter),
			masks: [taskCount]uint8{0, 0, 3}}},
	{key: "x3", text: "two channels with a queue each, x2 in Q0", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			apart: true, roles: three(getter, getter, absent)}},
}

var heirMutants = []mutant{
	{bug: heirTakesMarks, base: "z", text: "heir takes the marked lanes in hand only"},
	{bug: heirCountsAnew, base: "z", text: "heir numbers its armings as the one before did"},
	{bug: heirParks, base: "z", plain: true, text: "heir runs no barrier"},
	{bug: heirTakesMarks, base: "z1", text: "heir with a set takes the marked lanes only"},
	{bug: heirListsNone, base: "z1", text: "heir's set does not look at the queue first"},
	{bug: heirNamesLate, base: "z1", text: "heir names its bell after the queue is listed"},
	{bug: keepsBell, base: "z1", text: "producer goes on with the bell that it holds"},
	{bug: heirParks, base: "z1", plain: true, text: "heir with a set runs no barrier"},
	{bug: heirTakesMarks, base: "z2", text: "heir with a channel takes the marked lanes only"},
	{bug: heirNamesLate, base: "z2", text: "heir with a channel names its bell late"},
	{bug: keepsBell, base: "z2", text: "producer with a channel keeps its bell"},
	{bug: heirParks, base: "z2", plain: true, text: "heir with a channel runs no barrier"},
	{bug: heirParks, base: "z4", plain: true, text: "heir with a descriptor runs no barrier"},
	{bug: heirTakesMarks, base: "z4", text: "heir with a descriptor takes the marked lanes only"},

	{bug: ownOnly, base: "x3", text: "one channel keeps what it takes for the other"},
	{bug: wakeOneDomain, base: "x", size: complete, text: "wake one getter of several channels"},
	{bug: eachDisarmsDomain, base: "x1", text: "each channel's getter disarms the domain"},
	{bug: domainLookSharedOnly, base: "x1", text: "channel's second look: shared bits only"},
}

func init() {
	variants = append(variants, heirs...)
	mutants = append(mutants, heirMutants...)
}
