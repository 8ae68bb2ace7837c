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
