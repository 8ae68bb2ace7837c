package model

// unborn takes the lanes that come later out of the first state: their rows stand there, parked,
// from the queue's creation on.
func (v *bell) unborn(s *bellState) {
	if v.attaches == 0 {
		return
	}
	s.linked = s.cand &^ v.attaches
	s.cand, s.parked, s.begun = s.linked, v.attaches, v.attaches
	for l := range laneCount {
		if v.attaches>>l&1 != 0 {
			s.at[l] = L1
			if v.bug == markedUnnamed {
				s.at[l] = P3
			}
		}
	}
}

// passOn is the death of producer 0, anywhere, and the claim of its lane by the next one, who goes
// on at its tail. What the dead one had stored is visible. No notice is needed: the successor rings
// as every writer does that attaches.
func (v *bell) passOn(s, n *bellState) {
	n.flush(0)
	n.cutOff = s.cutOff || s.running(0) && s.begun&1 == 0 && s.at[0] != P1t
	n.finish(0)
	n.begun |= 1
	n.at[0] = L2
}

// attach is what a writer does before it rings for the first time.
func (v *bell) attach(n *bellState, l int) {
	switch n.at[l] {
	case L1:
		n.linked |= 1 << l
		if v.bug == markedUnnamed || v.bug == silentBirth {
			n.finish(l)
			break
		}
		n.at[l] = P3
	case L2:
		if v.bug == orderLate && n.begun&1 != 0 && n.order&4 == 0 {
			n.order |= 4 // the word is written when it has rung
		} else {
			n.order |= 1
		}
		n.at[l] = P3
		if v.bug == silentSuccessor {
			n.finish(l)
		}
	}
	if n.at[l] == P3 && v.publishesPlain(n, l) {
		n.at[l] = P2f
	}
}

// attached ends an attachment with the step that ended a ring.
func (v *bell) attached(n *bellState, l int) {
	if n.at[l] != P1 || n.begun>>l&1 == 0 {
		return
	}
	if v.attaches>>l&1 != 0 && n.linked>>l&1 == 0 {
		n.at[l] = L1
		return
	}
	if l == 0 {
		n.cutOff = false
		if n.order&4 != 0 {
			n.order = n.order&^4 | 1
		}
	}
	n.begun &^= 1 << l
}

// publishesPlain tells whether the producer leaves it to the reader to pay.
func (v *bell) publishesPlain(s *bellState, l int) bool {
	return v.plain && (!v.mixed || l != 0 || s.order&5 != 0)
}

// known is what the reader makes of marks: it opens lanes that it does not know, and looks at how
// the lanes of those publish that it knows. A lane that has no name yet cannot be opened, and its
// mark is gone. Whoever finds that a lane's writer has begun to leave it to the reader pays at
// once, for what was published while the lane was parked as that of one who pays himself.
func (v *bell) known(s, n *bellState, marks uint8) uint8 {
	if v.attaches != 0 {
		marks &= s.linked
	}
	if v.mixed && marks&1 != 0 && s.order&3 == 1 && v.bug != orderUnseen {
		n.order |= 2
		if v.bug != orderUnpaid {
			v.paysLate(s, n)
		}
	}
	return marks
}

// paysLate makes visible what came before. Sets and channels that have the queue learn of it: they
// rely on marks, and this one is taken already.
func (v *bell) paysLate(s, n *bellState) {
	n.flush(0)
	if n.unread[0] > 0 && v.bug != orderUntold {
		v.handOn(n, 1)
		if s.nw > 0 {
			v.stale(n)
			v.wakeDomain(n)
		}
	}
}

// mustPay tells whether a look that parks lanes has to run the barrier, if the bug is not that it
// does not.
func (v *bell) mustPay(s *bellState, omitted bug, lanes uint8) bool {
	if !v.pays(omitted) {
		return false
	}
	hot := s.cand & lanes &^ s.parked
	if v.mixed && s.order&2 == 0 {
		return hot&^1 != 0
	}
	return !v.lazy || hot != 0
}

// findLanes is how an heir learns which lanes there are: by their names, before it looks at marks.
func (v *bell) findLanes(s, n *bellState) {
	if v.attaches != 0 {
		n.cand = s.linked
		if v.bug == heirMaps {
			n.cand &= s.ready | v.start().cand
		}
	}
	if n.order&1 != 0 {
		n.order |= 2
	}
}

// getBegins is the first step of a get.
func (v *bell) getBegins() step {
	if v.summary && v.bug != leafBeforeSummary {
		return C1s
	}
	return C1
}

var thirdQueue = [laneCount]uint8{0, 1, 2}

// lanes are the variants in which lanes come and pass from one writer to the next, and those that
// combine what the other files have apart.
var lanes = []variant{
	{key: "s", text: "sread, a lane is taken over, 2 lanes x2 and x1", size: smallest,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, passes: true,
			roles: three(direct, absent, absent)}},
	{key: "s1", text: "the same, and the successor does not pay", size: smallest, plainOnly: true,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(direct, absent, absent)}},
	{key: "s2", text: "set, the same, x2 and x1", size: complete, plainOnly: true,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{1}}},
	{key: "s3", text: "channel, the same, x2", size: short, plainOnly: true,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, passes: true, mixed: true, channel: 1,
			mode: forAny, roles: three(getter, absent, absent)}},
	{key: "s4", text: "trywait, the same, x2 and x1", size: complete, plainOnly: true,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(poller, absent, absent)}},
	{key: "s5", text: "sread, lane and reader are taken over, x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(direct, heir, absent)}},
	{key: "s6", text: "set, lane and reader are taken over, x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(setter, heir, absent), masks: [taskCount]uint8{1}}},
	{key: "s7", text: "channel, lane and reader are taken over, x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, passes: true, mixed: true, channel: 1,
			mode: forAny, roles: three(getter, heir, absent)}},
	{key: "s8", text: "sread + set, a lane is taken over, x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), lazy: true, sift: true, passes: true, mixed: true,
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},

	{key: "t", text: "sread, a lane comes, 2 lanes x2 and x1", size: smallest,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, attaches: 2,
			roles: three(direct, absent, absent)}},
	{key: "t1", text: "set, a lane comes, 2 lanes x1", size: smallest,
		bell: &bell{publishes: four(1, 1, 0, 0), lazy: true, sift: true, attaches: 2,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{1}}},
	{key: "t2", text: "sread, a lane comes amid take-overs, x2 and x1", size: short,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, attaches: 2,
			roles: three(direct, heir, absent)}},
	{key: "t3", text: "set, a lane comes amid take-overs, 2 lanes x1", size: short,
		bell: &bell{publishes: four(1, 1, 0, 0), lazy: true, sift: true, attaches: 2,
			roles: three(setter, heir, absent), masks: [taskCount]uint8{1}}},
	{key: "t4", text: "channel, a lane comes amid take-overs, x1", size: complete,
		bell: &bell{publishes: four(1, 1, 0, 0), lazy: true, attaches: 2, channel: 1, mode: forAny,
			roles: three(getter, heir, absent)}},
	{key: "t5", text: "trywait, a lane comes while arming, x2 and x1", size: short,
		bell: &bell{publishes: four(2, 1, 0, 0), lazy: true, sift: true, attaches: 2,
			roles: three(poller, absent, absent)}},

	{key: "u", text: "channel with a summary word, 2 getters, x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), summary: true, channel: 1, mode: forAny,
			roles: three(getter, getter, absent)}},
	{key: "u1", text: "set and channel with a summary word, x1", size: short,
		bell: &bell{publishes: four(1, 0, 0, 0), sift: true, summary: true, channel: 1, mode: forAny,
			roles: three(setter, getter, absent), masks: [taskCount]uint8{1}}},
	{key: "u2", text: "set and channel with a summary word, x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), sift: true, summary: true, channel: 1, mode: forAny,
			roles: three(setter, getter, absent), masks: [taskCount]uint8{1}}},
	{key: "u3", text: "two queues on a channel with a summary, x1 each", size: complete,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue, summary: true, channel: 3,
			mode: forAny, roles: three(getter, absent, absent)}},
	{key: "u4", text: "three channels with a queue each, x1 in Q0", size: complete,
		bell: &bell{publishes: four(1, 0, 0, 0), queueOf: thirdQueue, channel: 7, mode: forAny,
			apart: true, roles: three(getter, getter, getter)}},
	{key: "u5", text: "set + channel + sread on one queue, 1 lane x1", size: complete,
		bell: &bell{sift: true, publishes: four(1, 0, 0, 0), channel: 1, mode: forAny,
			roles: three(direct, setter, getter), masks: [taskCount]uint8{0, 1}}},
	{key: "u6", text: "set + channel + signal latch, 1 lane x1", size: complete,
		bell: &bell{sift: true, publishes: four(1, 0, 0, 1), channel: 1, mode: forAny,
			roles: three(setter, getter, absent), masks: [taskCount]uint8{1}}},
}

var lanesMutants = []mutant{
	{bug: silentSuccessor, base: "s", text: "who takes a lane over does not ring"},
	{bug: orderUnseen, base: "s1", plain: true,
		text: "reader keeps the order of a lane's first writer"},
	{bug: orderUnpaid, base: "s1", plain: true, text: "reader learns the order and does not pay"},
	{bug: orderLate, base: "s1", plain: true, text: "successor rings before it says its order"},
	{bug: orderUnpaid, base: "s2", plain: true, size: short, text: "the same with a set"},
	{bug: orderUnpaid, base: "s3", plain: true, size: short, text: "the same with a channel"},
	{bug: noBarrierR4, base: "s1", plain: true, text: "no barrier in R4, a lane is taken over"},
	{bug: orderUntold, base: "s3", plain: true, size: short,
		text: "reader pays late and tells nobody"},
	{bug: heirMaps, base: "t2", size: short, text: "heir looks for no lanes"},
	{bug: heirMaps, base: "t3", size: short, text: "heir with a set looks for no lanes"},
	{bug: leafBeforeSummary, base: "u", size: short, text: "getter takes the bits before the summary"},
	{bug: summaryFirst, base: "u", size: short, text: "producer sets the summary before the bit"},
	{bug: domainLookSharedOnly, base: "u1", size: short, text: "second look: shared bits only"},
	{bug: setsOnly, base: "u1", size: short, text: "what a set takes is not handed to the channel"},
}

// birthsNotRequired: what comes after a birth is marked again, so that only the death of the new
// writer would go unnoticed.
var birthsNotRequired = []mutant{
	{bug: silentBirth, base: "t3", text: "a new lane is linked and not marked"},
	{bug: markedUnnamed, base: "t", text: "a new lane is marked before it can be found"},
	{bug: markedUnnamed, base: "t1", text: "the same with a set"},
}

func init() {
	variants = append(variants, lanes...)
	notRequired = append(notRequired, birthsNotRequired...)
	mutants = append(mutants, lanesMutants...)
}
