package model

// sleep is R5 to R9 of a direct read and what trywait has in their place.
func (v *bell) sleep(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	switch t.at {
	case R5:
		t.fresh, t.at = true, R6
	case R6:
		v.arm(s, n, t)
	case R7:
		v.secondLook(s, n, i, x)
		return
	case R8:
		t.asleep, t.fresh, t.at = t.fresh, false, R9
	case R9:
		n.waiters--
		if n.waiters == 0 || v.bug == eachDisarms {
			n.armBits &^= armDirect
			if v.bug == disarmTakesFD {
				n.armBits = 0
			}
			if n.armBits == 0 {
				n.armed = 0
			}
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

// arm is R6. The direct bit goes with the last sleeper; the descriptor's bit stays.
func (v *bell) arm(s, n *bellState, t *task) {
	bit := uint8(armDirect)
	if t.call == trywait {
		bit = armFD
	} else {
		n.waiters++
	}
	if v.bug == sameSeq && s.armBits != 0 || v.bug == heirCountsAnew && s.armed != 0 {
		n.armed = s.armed
	} else {
		n.armed = newSeq
	}
	n.armBits |= bit
	if v.bug == armForgetsFD {
		n.armBits = bit
	}
	t.at = R7
	if t.call == trywait && v.bug == resetAfterArm {
		t.at = T4
	}
}

// secondLook is R7, under q.mu.
func (v *bell) secondLook(s, n *bellState, i int, x *search[bellState]) {
	t := &n.task[i]
	if s.lock[0] != 0 && v.bug != lookUnlocked {
		return
	}
	lanes := v.lanesOf(0)
	some := s.ready&lanes != 0
	if v.bug != lookSharedOnly {
		some = some || s.cand&lanes != 0
	}
	if v.bug != lookIgnoresLatch {
		some = some || s.latch
	}
	if v.bug == noSecondLook {
		some = false
	}
	switch {
	case t.call == sread && some:
		t.fresh, t.at = false, R9
	case t.call == sread:
		t.at = R8
	case some:
		*t = task{at: app}
	case v.bug == resetAfterLook:
		t.at = T4
	default:
		*t = task{at: T8}
	}
	x.emit(n)
}
