package model

// step is one step of the process i, in n.
func (m endsModel) step(n *endsState, i int) {
	e, o := &n[i], &n[1-i]
	switch {
	case e.at < ePark:
		m.goRound(e, o, i)
	case e.at < eF1:
		m.goToSleep(e, o, i)
	case e.at < eP2:
		m.giveBack(e)
	default:
		m.ringFor(e, o)
	}
}

// goRound looks at all that there may be, and does it.
func (m endsModel) goRound(e, o *end, i int) {
	switch e.at {
	case eTop:
		e.candidate, e.marked = e.candidate || e.marked, false
		if e.notice && !e.noticed && m.bug != endsReadFirst {
			e.noticed, e.candidate = true, true // first this, then a look at all
		}
		if e.at = eRev; e.candidate {
			e.at = eUnpark
		}
	case eUnpark:
		e.store(endsParked, 0)
		if !m.oneWord {
			e.store(endsRevParked, 0)
		}
		e.at = eRev
	case eRev:
		e.at = eExamine
		last := e.noticed && !e.final && m.bug != endsDeadByRev
		heeds := !m.quiet(e) || e.candidate && m.bug != endsMarkUnseen
		// The dead may have died between an acknowledgement and rev.
		if last || heeds && o.rev != e.revSeen {
			e.loaded, e.at = o.rev, eHead
		}
		e.final = e.final || last
	case eHead:
		e.headSeen, e.at = o.head, eAcks
	case eAcks:
		e.acksSeen, e.moved = o.acks, true
		e.revSeen, e.loaded, e.at = e.loaded, 0, eExamine
		if m.bug == endsRevLast {
			e.at = eRevAfter
		}
	case eRevAfter:
		e.revSeen, e.at = o.rev, eExamine
	case eExamine:
		if o.tail > e.examined {
			e.examined++
			e.moved = true
		}
		e.at = eBatch
	case eBatch:
		if e.at = eSend; e.examined-e.flushed >= m.batch {
			m.flush(e, eSend)
		}
	case eSend:
		e.at = eRound
		if e.sent < m.messages[i] && e.sent-e.headSeen < m.slots && !e.noticed {
			e.sent++
			e.store(endsTail, e.sent)
			e.moved, e.back = true, eRound
			m.begin(e, false)
		}
	case eRound:
		late := m.bug == endsLateFlush || m.bug == endsMidFlush || m.bug == endsArmedFlush
		switch {
		case e.moved:
			e.moved, e.at = false, eTop
		case e.examined > e.flushed && !late:
			m.flush(e, ePark)
		default:
			e.at = ePark
		}
	}
}

// flush begins to give back what was examined.
func (m endsModel) flush(e *end, back step) {
	e.back = back
	if e.at = eF1; m.bug == endsRevFirst {
		e.at = eF3
	}
}

// giveBack stores head, acknowledgements, then rev, which counts what was given back.
func (m endsModel) giveBack(e *end) {
	switch e.at {
	case eF1:
		e.store(endsHead, e.examined)
		e.at = eF2
	case eF2:
		e.store(endsAcks, e.examined)
		e.flushed, e.at = e.examined, eF3
		if m.bug == endsRevFirst {
			m.begin(e, true)
		}
	case eF3:
		e.store(endsRev, e.examined)
		switch m.bug {
		case endsRevFirst:
			e.at = eF1
		case endsSilent:
			e.at, e.back = e.back, 0
		default:
			m.begin(e, true)
		}
	case eLeft:
		e.left = true
	}
}

// begin starts to ring: for returns, or for a publish.
func (m endsModel) begin(e *end, returns bool) { e.at, e.returns = eP2, returns }

// ringFor is P2 to P5, for the other one. The fence of a writer that pays stands before the load in
// one step with it: stores become visible by themselves as well.
func (m endsModel) ringFor(e, o *end) {
	done := func() { e.at, e.back, e.ring, e.returns = e.back, 0, 0, false }
	switch e.at {
	case eP2:
		if e.paying && m.bug != endsNoFence {
			e.fence()
		}
		parked := o.parked
		if e.returns && !m.oneWord {
			parked = o.revParked || m.ignores && e.back == eLeft && m.bug != endsLeavesQuiet
		}
		if e.at = eP3; !parked {
			done()
		}
	case eP3: // an atomic step is a fence as well
		e.fence()
		o.marked, e.at = true, eP4
	case eP4:
		e.ring, e.at = o.armed, eP5
		below := e.flushed < o.half
		if m.bug == endsEachBatch {
			below = o.half > 0
		}
		if o.armed == 0 || e.returns && below {
			done()
		}
	case eP5:
		if e.at = eP5e; o.rung == e.ring {
			done()
		} else if m.bug == endsEarlyRung {
			o.rung = e.ring
		}
	case eP5e:
		o.fresh, e.at = false, eP5w
	case eP5w:
		o.asleep, e.at = false, eP5r
	case eP5r:
		o.rung = e.ring
		done()
	}
}

// goToSleep parks, looks, arms and looks again.
func (m endsModel) goToSleep(e, o *end, i int) {
	switch e.at {
	case ePark:
		e.store(endsParked, 1)
		switch {
		case m.quiet(e):
			e.store(endsRevParked, 0)
		case !m.oneWord && m.bug != endsLateRev:
			e.store(endsRevParked, 1)
		}
		e.at = eBarrier
	case eBarrier:
		e.fence()
		if m.pays == endsReader && m.bug != endsNoBarrier {
			o.fence()
		}
		if e.at = eLookTail; m.pays >= endsBegins {
			e.at = eFees
		}
	case eFees:
		if e.at = eLookTail; !o.fees {
			e.at = eReach
		}
	case eReach:
		o.fence()
		e.at = eLookTail
	case eLookTail:
		if e.at = eLookRev; o.tail > e.examined && m.bug != endsNoLook {
			e.candidate, e.at = true, eTop
		}
	case eLookRev:
		m.lookAtRev(e, o)
	case eParkLate:
		e.store(endsRevParked, 1)
		e.fence()
		e.at = eEpoch
	case eEpoch:
		e.fresh, e.at = true, eArm
		if m.half {
			e.half = m.room(e, i)
		}
	case eEpochLate:
		e.fresh, e.at = true, eWait
	default:
		m.armed(e)
	}
}

func (m endsModel) lookAtRev(e, o *end) {
	e.candidate = o.rev != e.revSeen && !m.quiet(e) && m.bug != endsNoRevLook && m.bug != endsNoLook
	switch {
	case e.candidate:
		e.at = eTop
	case m.bug == endsLateRev:
		e.at = eParkLate
	case m.bug == endsMidFlush && e.examined > e.flushed:
		m.flush(e, eEpoch)
	case m.bug == endsLateEpoch:
		e.at = eArm
	default:
		e.at = eEpoch
	}
}

// quiet reports that a sender of injects ignores what the other one gives back: it has room.
func (m endsModel) quiet(e *end) bool {
	return m.ignores && (e.sent-e.headSeen < m.slots || m.bug == endsIgnoresRoom)
}

// room is the head at which a sender wants to be woken: half a ring more than it knows of if it
// waits for room, any if for acknowledgements.
func (m endsModel) room(e *end, i int) uint8 {
	if e.sent < m.messages[i] || m.bug == endsHalfForAcks {
		return e.headSeen + (m.slots+1)/2
	}
	return 0
}

// armed is what follows the load of the epoch.
func (m endsModel) armed(e *end) {
	switch e.at {
	case eArm: // atomic, hence a fence
		e.fence()
		e.armed, e.at = newSeq, eAgain
		if m.bug == endsArmedFlush && e.examined > e.flushed {
			m.flush(e, eAgain)
		}
	case eAgain:
		if e.at = eWait; m.bug == endsLateEpoch {
			e.at = eEpochLate
		}
		told := e.notice && !e.noticed
		if m.bug == endsReadFirst && told {
			e.noticed = true
		}
		unheeded := m.bug == endsUnnoticed || m.bug == endsOnlyArmed || m.bug == endsReadFirst
		if (e.marked || told && !unheeded) && m.bug != endsNoAgain {
			e.at = eDisarm
		}
	case eWait:
		e.asleep, e.at = e.fresh, eDisarm
	case eDisarm:
		e.armed, e.fresh, e.at = 0, false, eTop
		if m.bug == endsLateFlush && e.examined > e.flushed {
			m.flush(e, eTop)
		}
	}
}
