package model

// judge never needs a flag for "stopped for ever": a producer that stops is one that is not
// scheduled again, so every state in which all of the reader's process sleeps is final for the
// steps that are still missing. A store buffer, in contrast, always drains.
func (v *bell) judge(s *bellState) verdict {
	if s.owes > 200 || s.owed[0] > 200 || s.owed[1] > 200 || s.owed[2] > 200 {
		return twice
	}
	for l := range laneCount {
		if s.buffered[l] > 0 {
			return moving
		}
	}
	bad, sleeper := false, false
	unread := v.finishedUnread(s)
	signaled := s.latch && s.left[signaller] == 0 && s.at[signaller] == P1
	for i, r := range v.roles {
		t := &s.task[i]
		if r == absent || t.at == gone || t.at == K1 {
			continue
		}
		if !v.blocked(s, t) {
			return moving
		}
		sleeper = sleeper || r != keeper
		switch r {
		case direct, poller:
			bad = bad || unread&1 != 0 || signaled
		case setter, setPoller:
			bad = bad || unread&s.mask[i] != 0 || signaled && s.mask[i]&1 != 0
		case getter, eventPoller:
			bad = bad || v.eventMissing(s, i)
		}
	}
	switch {
	case bad && v.halfWay(s):
		return muted
	case bad:
		return lost
	case sleeper:
		return resting
	}
	return over
}

func (v *bell) blocked(s *bellState, t *task) bool {
	readable := s.face
	if v.edges {
		readable = s.edge
	}
	return t.asleep || t.at == T8 && !s.eventfd || t.at == F8 && !readable
}

// running tells whether producer l is inside a publish, or a signaller inside a signal.
func (s *bellState) running(l int) bool { return s.at[l] != P1 && (l != 0 || !s.dead) }

func (v *bell) halfWay(s *bellState) bool {
	for l := range s.at {
		if s.running(l) {
			return true
		}
	}
	return false
}

// finished is the lane's tail without an entry whose publish is not finished.
func (v *bell) finished(s *bellState, l int) uint8 {
	t := v.tail(s, l)
	if s.begun>>l&1 != 0 { // nothing of its own is published yet
		if l == 0 && s.cutOff {
			t--
		}
	} else if s.running(l) && s.at[l] != P1t {
		t-- // the buffers are empty here
	}
	return t
}

func (v *bell) tail(s *bellState, l int) uint8 {
	return v.publishes[l] - s.left[l] - s.buffered[l]
}

func (v *bell) head(s *bellState, l int) uint8 { return v.tail(s, l) - s.unread[l] }

// finishedUnread returns the queues with entries whose publishes are finished, as bits.
func (v *bell) finishedUnread(s *bellState) (queues uint8) {
	for l := range laneCount {
		if v.finished(s, l) > v.head(s, l) {
			queues |= 1 << v.queueOf[l]
		}
	}
	return queues
}

// eventMissing: with all getters asleep no event may wait, no arming may be gone without its event,
// and while one stands its user has read what was there at its end, and is owed an event for what
// came since, read or not.
func (v *bell) eventMissing(s *bellState, i int) bool {
	mine := func(q uint8) bool { return !v.apart || int(q) == i }
	for q := range uint8(3) {
		if !mine(q) {
			continue
		}
		if s.pending[q] > 0 || s.owed[q] != min(1, s.notify[q]) {
			return true
		}
	}
	for l := range laneCount {
		if !mine(v.queueOf[l]) {
			continue
		}
		from := min(v.head(s, l), s.since[l])
		switch s.notify[v.queueOf[l]] {
		case forAny:
			if v.finished(s, l) > from {
				return true
			}
		case forSolicited:
			if v.lastSolicited(s, l) > from {
				return true
			}
		}
	}
	return false
}

// lastSolicited returns the index after the last entry that is solicited and finished.
func (v *bell) lastSolicited(s *bellState, l int) (last uint8) {
	for k := range v.finished(s, l) {
		if v.solicited[l]>>k&1 != 0 {
			last = k + 1
		}
	}
	return last
}
