package model

func (s *othersState) nonEmpty(lanes uint8) (m uint8) {
	for l := range s.unread {
		if lanes>>l&1 != 0 && s.unread[l] > 0 {
			m |= 1 << l
		}
	}
	return m
}

// look goes on with a look at the queue: lock, H1 for each lane, R1.
func (v *othersModel) look(s, n *othersState, i int) {
	t := &n.task[i]
	switch s.task[i].at {
	case oR0:
		if v.shared() {
			n.lock = uint8(i) + 1
		}
		t.at, t.lane = oH1, 0
	case oH1:
		if bit := uint8(1) << t.lane; s.newBell&bit != 0 {
			n.newBell &^= bit
			n.ready |= bit
			n.heard[t.lane] = s.count[t.lane]
		}
		if t.lane++; t.lane == othersLanes {
			t.at, t.lane = oR1, 0
		}
	case oR1:
		n.cand |= s.ready
		n.ready = 0
		t.at = oR2
		if t.parking {
			t.at = oR4
		}
	}
}

// act is the next step of a goroutine of the reader's process.
func (v *othersModel) act(s, n *othersState, i int) {
	t, r := &n.task[i], v.roles[i]
	switch s.task[i].at {
	case oR0, oH1, oR1:
		v.look(s, n, i)
	case oR2:
		n.parked &^= s.cand
		t.at = oR3
	case oR3:
		got := s.nonEmpty(s.cand)
		for l := range n.unread {
			if got>>l&1 != 0 {
				n.unread[l] = 0
			}
		}
		n.cand &^= s.parked
		n.lock = 0
		t.at, t.parking = oR0, got == 0 || r == oPoller
		if r == oSetter {
			t.at, t.parking = oS1, false
		}
	case oR4:
		n.parked |= s.cand
		t.at = oR4t
	case oR4t:
		if v.bug == oNoTailsAgain {
			n.cand = 0
		} else {
			n.cand = s.nonEmpty(s.cand)
		}
		n.lock = 0
		v.looked(s, n, i, n.cand != 0)
	case oR5, oR6, oR7, oR8, oR8l, oR9:
		v.sleep(s, n, i)
	case oT4, oT6, oT7, oT8:
		v.trywait(s, n, i)
	default:
		v.wait(s, n, i)
	}
}

// looked goes on after a look that parked the lanes.
func (v *othersModel) looked(_, n *othersState, i int, more bool) {
	t := &n.task[i]
	switch {
	case v.roles[i] == oSetter:
		n.todo = n.todo || more
		t.at, t.parking = oS3, false
		if more {
			t.at = oR0 // the user reads
		}
	case more:
		t.at, t.parking = oR0, false
	case v.roles[i] == oPoller:
		t.at, t.lane = oT4, 0
		if v.bug == oResetAfterArm || v.bug == oResetAfterLook {
			t.at = oT6
		}
	default:
		t.at = oR5
	}
}

// unheard is the second look: marks, rings that nobody turned into one yet, and what is in hand.
func (v *othersModel) unheard(s *othersState) bool {
	return s.ready|s.newBell|s.cand != 0
}

// sleep is R5 to R9.
func (v *othersModel) sleep(s, n *othersState, i int) {
	t := &n.task[i]
	switch t.at {
	case oR5:
		t.fresh, t.at = true, oR6
	case oR6:
		if v.shared() {
			n.lock = uint8(i) + 1
		}
		n.waiters++
		v.number(n)
		n.bits |= armDirect
		t.at = oR7
	case oR7:
		n.lock = 0
		t.at = oR8
		switch {
		case v.bug == oNoSecondLook:
		case v.unheard(s):
			t.at = oR9
		}
		if t.at == oR8 && v.bug == oFreshWords {
			t.at = oR8l
		}
	case oR8l:
		n.newBell, t.at = 0, oR8
	case oR8:
		t.at = oR9
		words := v.roles[i] == oDirect && v.bug != oNoWords && s.newBell != 0
		t.asleep = s.task[i].fresh && !words
	case oR9:
		t.fresh = false
		if n.waiters--; n.waiters == 0 {
			n.bits &^= armDirect
			if n.bits == 0 {
				n.armed = 0
			}
		}
		t.at, t.parking = oR0, false
	}
}

// trywait is the user of the descriptor: it resets, arms, looks again, and waits on the pipes.
func (v *othersModel) trywait(s, n *othersState, i int) {
	t := &n.task[i]
	again := func() { t.at, t.parking = oR0, false }
	switch t.at {
	case oT4:
		n.pipe &^= 1 << t.lane
		if t.lane++; t.lane < othersLanes {
			return
		}
		n.pipe &^= 1 << 7
		t.lane, t.at = 0, oT6
		switch v.bug {
		case oResetAfterArm:
			t.at = oT7
		case oResetAfterLook:
			t.at = oT8
		}
	case oT6:
		n.armed, n.bits, t.at = newSeq, armFD, oT7
		if v.bug == oResetAfterArm {
			t.at = oT4
		}
	case oT7:
		t.at = oT8
		switch {
		case v.bug == oNoPipeSecondLook:
		case v.unheard(s):
			again()
		case v.bug == oResetAfterLook:
			t.at = oT4
		}
	case oT8:
		again()
	}
}

// wait is S1 to S7.
func (v *othersModel) wait(s, n *othersState, i int) {
	t := &n.task[i]
	switch t.at {
	case oS1:
		n.todo = s.todo || s.dready
		n.dready = false
		t.at = oS3
		if n.todo {
			t.at = oS2
		}
	case oS2:
		n.todo = false
		t.parking = true
		v.lockFor(n, i)
		t.at, t.lane = oH1, 0
	case oS3:
		n.dfresh, t.at = true, oS4
	case oS4:
		n.darmed, t.at = newSeq, oS5
	case oS5:
		t.at = oS6
		if s.dready || s.todo {
			t.at = oS7
		}
	case oS6:
		t.at, t.asleep = oS7, s.dfresh
	case oS7:
		n.darmed, n.dfresh, t.at = 0, false, oS1
	}
}

func (v *othersModel) lockFor(n *othersState, i int) {
	if v.shared() {
		n.lock = uint8(i) + 1
	}
}

// keep is the relay's keeper, which rings as the producer would have.
func (v *othersModel) keep(s, n *othersState) {
	next := func() {
		n.kw, n.kBits, n.kdw = 0, 0, 0
		n.k = oK1
		if n.kLane++; n.kLane == othersLanes {
			n.kLane, n.k = 0, oK3
		}
	}
	domain := func() {
		n.k = oK2d
		if !v.has(oSetter) {
			next()
		}
	}
	switch s.k {
	case oK1:
		if s.newKeeper>>s.kLane&1 == 0 {
			next()
			return
		}
		n.newKeeper &^= 1 << s.kLane
		n.k = oK2m
	case oK2m:
		n.ready |= 1 << s.kLane
		n.k = oK2a
	case oK2a:
		if v.bug != oKeeperArmed {
			n.kw, n.kBits = s.armed, s.bits
		}
		n.k = oK2e
		if n.kBits&armDirect == 0 || s.rung == n.kw {
			domain()
		}
	case oK2e:
		for i, r := range v.roles {
			if r == oSharer {
				n.task[i].fresh = false
			}
		}
		n.k = oK2w
	case oK2w:
		for i, r := range v.roles {
			if r == oSharer {
				n.task[i].asleep = false
			}
		}
		n.k = oK2r
	case oK2r:
		n.rung = s.kw
		domain()
	default:
		v.keepDomain(s, n, next)
	}
}

func (v *othersModel) keepDomain(s, n *othersState, next func()) {
	switch s.k {
	case oK2d:
		n.dready, n.k = true, oK2D
	case oK2D:
		n.kdw, n.k = s.darmed, oK2E
		if s.darmed == 0 || s.drung == s.darmed {
			next()
		}
	case oK2E:
		n.dfresh, n.k = false, oK2W
	case oK2W:
		for i, r := range v.roles {
			if r == oSetter {
				n.task[i].asleep = false
			}
		}
		n.k = oK2R
	case oK2R:
		n.drung = s.kdw
		next()
	case oK3:
		if v.bug == oKeeperForgets {
			n.newKeeper = 0
		}
		if v.bug == oKeeperArmed {
			n.kw, n.kBits = s.armed, s.bits
		}
		n.k = oK1
		n.kAsleep = n.newKeeper == 0
	}
}
