package model

// A read that wants many entries, and drains nothing before. It counts what waits in the lanes,
// and stores for each lane the index below which its producer need not wake it. It is over two
// lanes, of which one may be idle.

// counted is how many lanes there are.
const counted = 2

// sum is what a counter knows. Without one it is zero.
type sum struct {
	idx, seen [counted]uint8 // absolute: seen is the tail that went into the count
	missing   uint8
	taken     bool  // another took marks or un-parked since the counter began to look
	opened    uint8 // lanes that the reader knows, if some attach
}

// full tells whether a lane has no room for another entry.
func (v *bell) full(s *bellState, l int) bool {
	return v.slots > 0 && s.unread[l]+s.buffered[l] >= v.slots
}

// heats is the end of R2: who counted a lane that got hot without a mark is woken, and parks it
// again.
func (v *bell) heats(s, n *bellState) step {
	if v.want == 0 || s.parked&^n.parked == 0 {
		return R3
	}
	n.taken = true
	if s.armBits&armDirect != 0 && v.bug != unparksSilently {
		return R2e
	}
	return R3
}

// opens notes lanes that the reader knows now.
func (v *bell) opens(n *bellState, lanes uint8) {
	if v.want > 0 {
		n.opened |= lanes
	}
}

// isKnown tells whether the reader knows a lane.
func (v *bell) isKnown(s *bellState, l int) bool {
	return v.attaches>>l&1 == 0 || s.opened>>l&1 != 0
}

// counts is R4t of a counter: enough of it, or a full lane, ends the wait.
func (v *bell) counts(s, n *bellState, i int) {
	n.cand = s.nonEmpty(s.cand)
	waits, full := uint8(0), false
	for l := range counted {
		if v.isKnown(s, l) {
			n.seen[l] = v.tail(s, l)
			waits += s.unread[l]
			full = full || s.unread[l] >= v.slots
		}
	}
	n.unlock(0, i)
	n.task[i].at = R5
	if waits >= v.want || full && v.bug != fullIgnored {
		n.task[i], n.seen = task{at: gone}, [counted]uint8{}
		return
	}
	n.missing = v.want - waits
}

// storeIndices spreads what is missing: when enough is there, some lane reached its share, counted
// from the tails that went into the sum.
func (v *bell) storeIndices(s, n *bellState, i int) {
	missing, seen := s.missing, s.seen
	n.missing, n.seen, n.task[i].at = 0, [counted]uint8{}, R6
	if v.bug == heirIndices && s.idx != [counted]uint8{} {
		return
	}
	lanes := uint8(0)
	for l := range counted {
		if v.isKnown(s, l) {
			lanes++
		}
	}
	share := (missing + lanes - 1) / lanes
	if v.bug == wholeIndex {
		share = missing
	}
	for l := range counted {
		if !v.isKnown(s, l) {
			continue
		}
		from := seen[l]
		if v.bug == indexFromNow {
			from = v.tail(s, l)
		}
		n.idx[l] = from + max(1, share)
		if v.bug != indexUnclamped {
			n.idx[l] = min(n.idx[l], v.head(s, l)+v.slots)
		}
	}
	if v.bug == indexAfterLook {
		n.unlock(0, i)
		n.task[i].at = R8
	}
}

// enough tells whether a counter has something to wake for: what is finished is enough, or a lane
// stands still because it is full.
func (v *bell) enough(s *bellState) bool {
	sum, full := uint8(0), false
	for l := range counted {
		if s.unread[l] > 0 {
			sum += v.finished(s, l) - v.head(s, l)
		}
		full = full || !s.running(l) && v.full(s, l) && s.left[l] > 0
	}
	return sum >= v.want || full
}
