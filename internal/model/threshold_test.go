package model

import "slices"

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
	n.missing, n.task[i].at = v.want-waits, R5
	switch {
	case waits >= v.want || full && v.bug != fullIgnored:
		v.has(n, i)
	case v.publishes[signaller] > 0:
		n.task[i].at = R4l
	}
}

// ends is R4l: a signal ends the wait, too.
func (v *bell) ends(s, n *bellState, i int) {
	if n.task[i].at = R5; s.latch {
		n.takeLatch()
		v.has(n, i)
	}
}

// has is the end of a wait for many.
func (v *bell) has(n *bellState, i int) {
	n.missing, n.seen, n.task[i] = 0, [counted]uint8{}, task{at: gone}
	if v.reads {
		n.task[i] = task{at: R1, call: read}
	}
}

// leaves is the end of R9: the counter counts anew, or its time is over.
func (v *bell) leaves(n *bellState, i int, x *search[bellState]) {
	if v.bug == countTakesDomain {
		n.dom = 0
	}
	if v.reads {
		late := x.fork(n)
		v.has(late, i)
		x.emit(late)
	}
	n.task[i] = task{at: R1, call: count}
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

// A read that waits for many entries, a wait set and the signal latch, all on one queue: each two
// of them are explored beside more of each elsewhere (gx and o), here the three meet. So that it
// stays small, steps are one here where what comes in between can only wake somebody once more, or
// commutes with one of them: marks taken and lanes parked, or un-parked and drained; the rings of
// one bell, from the load of what rings it last to the store; an epoch loaded and its bell armed; a
// second look and the sleep; a disarming and the look that follows. In the variants above they are
// apart, for each two of the three.
func withSetAndSignal(publishes entries, plain bool) *bell {
	return &bell{publishes: publishes, roles: tasks{counter, setter}, masks: sets{0, 1}, want: 2,
		slots: 9, reads: true, coarse: true, lazy: true, sift: true, plain: plain}
}

// goOn takes the steps that are one with the step before, of who took that.
func (v *bell) goOn(n *bellState, x *search[bellState]) {
	if !v.coarse {
		return
	}
	switch who := int(x.who); {
	case who <= signaller && v.joins(n.at[who], x.at):
		to := x.fork(n)
		v.produce(n, to, who)
		x.emit(to)
	case who >= 10 && who < 10+taskCount && v.joins(n.task[who-10].at, x.at):
		v.act(n, who-10, x)
	}
}

// joins tells whether a step is one with those before it, the first of which is given.
func (v *bell) joins(at, first step) bool {
	switch at {
	case P3:
		return first == P2f
	case P5:
		return first == P5i
	case P7e:
		return v.bug != drungBeforeWake
	case R1:
		return first == R9
	case P5e, P5w, P5r, P7c, P7w, P7r, R2, R2e, R2w, R3, R4, R5i, R6, R8, S2l, S2p, S2r, S4, S6:
		return true
	}
	return false
}

var many = family{
	title: "Many, a set and the latch",
	variants: []variant{
		form("1 lane x3, a signal", withSetAndSignal(entries{3, 0, 0, 1}, false)),
		form("1 lane x3, a signal, reader pays", withSetAndSignal(entries{3, 0, 0, 1}, true)),
		form("2 lanes x1, a signal", withSetAndSignal(entries{1, 1, 0, 1}, false)),
		form("2 lanes x1, a signal, reader pays", withSetAndSignal(entries{1, 1, 0, 1}, true)),
	},
	mutants: slices.Concat(
		on("1 lane x3, a signal", signalWaits, thresholdGatesSet, oneRungWord, countTakesDomain,
			takesIgnored, lookIgnoresLatch, latchUnseen, signalQueueOnly, unparksSilently, edgeList,
			drungBeforeWake),
		on("1 lane x3, a signal, reader pays", noBarrierS2, noBarrierR4),
		on("2 lanes x1, a signal", wholeIndex)),
}
