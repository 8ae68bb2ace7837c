package model

import "slices"

const (
	countAdders  = 3
	countWaiters = 3
)

const (
	cIdle    step = iota // adds next, if it has any left
	cJoin                // announce: the number of handles grows
	cJoin2               // ring all
	c1                   // add
	c2                   // load armed
	c3                   // load rung
	c4                   // load threshold
	c5                   // epoch++
	c6                   // wake
	c7                   // rung = a
	cDead                // is dead
	cNotice              // a watcher kicks: epoch++
	cNotice2             // wake
	cGone                // done

	w0  // calls, or leaves
	w1  // threshold
	w1b // follower: second look
	w2  // load epoch
	w3  // arm
	w4  // second look
	w5  // futex wait
	wAsleep
	wParked // behind the leader of its seat
	w6      // leave
	wGone   // left
)

// Deviations.
const (
	cRungFirst          = "rung before wake"
	cNoLook             = "no second look after arming"
	cLateEpoch          = "epoch loaded after the second look"
	cLateThreshold      = "threshold stored after the second look"
	cSameArming         = "armed once for several sleeps"
	cWakeOne            = "wake one"
	cWaiterDisarms      = "a waiter that leaves marks the arming rung"
	cLeaveForgetsOthers = "the seat's threshold goes with the first who leaves"
	cNoHandOn           = "a leader leaves without naming another"
	cSilentJoin         = "a handle comes without waking"
	cScanFirst          = "handles looked for before arming"
	cServeSelfOnly      = "the leader looks for itself only"
	cNoFollowerLook     = "a follower parks without a look"
)

type countAdder struct {
	at   step
	left uint8
	v, a uint8
	seat uint8 // next to look at in C4
	died bool
	all  bool // ring whatever the thresholds: an announcement
}

type countWaiter struct {
	at     step
	fresh  bool // no epoch++ since W2
	done   bool // served by the leader
	knows  bool // watches the adder that joins late
	leads  bool
	inList bool
	again  bool // has armed before
}

type countState struct {
	value, armed, rung uint8
	threshold          [2]uint8
	finished           uint8 // highest value of a finished add
	adder              [countAdders]countAdder
	waiter             [countWaiters]countWaiter
}

// countModel is one variant. adds is what each adder does, want each waiter's threshold (0: no such
// waiter), seat where it sits. The last adder may join late.
type countModel struct {
	adds   [countAdders]uint8
	want   [countWaiters]uint8
	seat   [countWaiters]uint8
	deaths bool
	joins  bool
	deviant
}

const idleThreshold = 15

func (m *countModel) start() countState {
	s := countState{threshold: [2]uint8{idleThreshold, idleThreshold}}
	for i, n := range m.adds {
		s.adder[i] = countAdder{at: cIdle, left: n}
		if n == 0 {
			s.adder[i].at = cGone
		}
	}
	if m.joins {
		s.adder[countAdders-1].at = cJoin
	}
	for i, t := range m.want {
		s.waiter[i].at = w0
		if t == 0 {
			s.waiter[i].at = wGone
		}
	}
	return s
}

func (m *countModel) next(s *countState, x *search[countState]) {
	for i := range s.adder {
		x.by(uint8(i), s.adder[i].at)
		if n := x.fork(s); m.adderSteps(s, n, i) {
			x.emit(n)
		}
		if a := s.adder[i]; m.deaths && a.at > cIdle && a.at < cDead {
			x.does(s, uint8(i), cDead, true,
				func(n *countState) { n.adder[i].at, n.adder[i].died = cDead, true })
		}
	}
	for i := range s.waiter {
		x.by(uint8(countAdders+i), s.waiter[i].at)
		m.waiterSteps(s, i, x)
	}
}

// adderSteps is false while the adder has nothing to do.
func (m *countModel) adderSteps(s, n *countState, i int) bool {
	a := &n.adder[i]
	switch a.at {
	case cIdle:
		a.at = c1
	case cJoin: // from here on a waiter that looks sees it
		a.at, a.all = cJoin2, true
	case cJoin2:
		a.at = c2
		if m.bug == cSilentJoin {
			a.at, a.all = cIdle, false
		}
	case c1:
		n.value++
		a.left--
		a.v, a.at = n.value, c2
	case c2:
		a.a, a.at = s.armed, c3
	case c3:
		a.at, a.seat = c4, 0
		if s.rung == a.a {
			n.finish(i)
		}
	case c4:
		if t := s.threshold[a.seat]; a.v >= t || a.all && t != idleThreshold {
			a.at = c5
		} else if a.seat++; a.seat == 2 {
			n.finish(i)
		}
		if m.bug == cRungFirst && a.at == c5 {
			n.rung = a.a
		}
	case c5, cNotice:
		for j := range n.waiter {
			n.waiter[j].fresh = false
		}
		a.at++
	case c6, cNotice2:
		for j := range n.waiter {
			if n.waiter[j].at == wAsleep {
				n.waiter[j].at = w2
				if m.bug == cWakeOne {
					break
				}
			}
		}
		a.at++
	case c7:
		n.rung = a.a
		n.finish(i)
	case cDead:
		if !m.noticed(s, i) {
			return false
		}
		a.at = cNotice
	default:
		return false
	}
	return true
}

// noticed tells whether a waiter watches the adder. All know the adders of before.
func (m *countModel) noticed(s *countState, i int) bool {
	if !m.joins || i != countAdders-1 {
		return true
	}
	for _, w := range s.waiter {
		if w.knows && w.at != wGone {
			return true
		}
	}
	return false
}

func (s *countState) finish(i int) {
	a := &s.adder[i]
	s.finished = max(s.finished, a.v)
	a.a, a.seat, a.all, a.at = 0, 0, false, cIdle
	if a.left == 0 {
		a.at = cGone
	}
}

// lowest is what the list of a seat's waiters makes of its threshold.
func (m *countModel) lowest(s *countState, seat uint8) uint8 {
	low := uint8(idleThreshold)
	for j, w := range s.waiter {
		if w.inList && m.seat[j] == seat {
			low = min(low, m.want[j])
		}
	}
	return low
}

func (m *countModel) leader(s *countState, seat uint8) bool {
	for j, w := range s.waiter {
		if w.leads && m.seat[j] == seat {
			return true
		}
	}
	return false
}

func (m *countModel) same(n *countState) {
	relabel(&n.armed, &n.rung, &n.adder[0].a, &n.adder[1].a, &n.adder[2].a)
}

// judge looks at states in which every waiter sleeps or has left.
func (m *countModel) judge(s *countState) verdict {
	owed, sleeping := false, false
	for i, a := range s.adder {
		half := a.at > cIdle && a.at < cGone && a.at != cJoin
		// One that nobody watches any more can only be one that nobody has to.
		owed = owed || half && (a.at != cDead || m.noticed(s, i))
	}
	v := over
	for i, w := range s.waiter {
		switch w.at {
		case wGone:
			continue
		case wAsleep:
		case wParked:
			if w.done || w.leads {
				return moving
			}
		default:
			return moving
		}
		sleeping = true
		if s.value < m.want[i] {
			continue
		}
		if !owed {
			v = lost
		} else if s.finished >= m.want[i] && v != lost {
			v = muted
		}
	}
	if v == over && sleeping {
		return resting
	}
	return v
}

func (m *countModel) names() []string {
	return []string{"cIdle", "adder 0", "adder 1", "adder 2", "waiter 0", "waiter 1", "waiter 2"}
}

func (m *countModel) waiterSteps(s *countState, i int, x *search[countState]) {
	n := x.fork(s)
	w, seat := &n.waiter[i], m.seat[i]
	switch w.at {
	case w0:
		n.waiter[i].at = w1
		x.emit(n)
		w.at = wGone
	case w1: // under the handle's lock
		w.inList = true
		if m.bug != cLateThreshold {
			n.threshold[seat] = m.lowest(n, seat)
		}
		w.at = w1b
		if !m.leader(s, seat) {
			w.leads, w.at = true, w2
		}
	case w1b:
		w.at = wParked
		if (m.bug != cNoFollowerLook && s.value >= m.want[i]) || w.done || w.leads {
			w.at = w6
			if w.leads && !w.done {
				w.at = w2
			}
		}
	case w2:
		w.fresh, w.at = true, w3
		if m.bug == cScanFirst && s.adder[countAdders-1].at != cJoin {
			w.knows = true
		}
	case w3:
		if m.bug != cSameArming || !w.again {
			n.armed = newSeq
		}
		w.again, w.at = true, w4
	case w4:
		m.look(s, n, i)
	case w5:
		if m.bug == cLateThreshold {
			n.threshold[seat] = m.lowest(s, seat)
		}
		w.at = w2
		if w.fresh {
			w.at = wAsleep
		}
	case wAsleep, wParked: // deadline or context
		w.at = w6
		if s.waiter[i].at == wAsleep {
			w.fresh = false
		}
	case w6:
		m.leave(n, i)
	default:
		return
	}
	x.emit(n)
	if w := s.waiter[i]; w.at == wParked && (w.done || w.leads) {
		n := x.fork(s)
		n.waiter[i].at = w6
		if !w.done {
			n.waiter[i].at = w2
		}
		x.emit(n)
	}
}

// look is W4, by the leader of a seat for all of its waiters.
func (m *countModel) look(s, n *countState, i int) {
	w := &n.waiter[i]
	if m.bug != cScanFirst && s.adder[countAdders-1].at != cJoin {
		w.knows = true
	}
	if m.bug == cLateEpoch {
		w.fresh = true
	}
	w.at = w5
	if m.bug == cNoLook {
		return
	}
	for j := range n.waiter {
		other := &n.waiter[j]
		if !other.inList || m.seat[j] != m.seat[i] || s.value < m.want[j] {
			continue
		}
		if j == i {
			w.at = w6
		} else if m.bug != cServeSelfOnly {
			other.done = true
		}
	}
}

// leave is W6, under the handle's lock: the last act of a leader is to name another one.
func (m *countModel) leave(n *countState, i int) {
	seat, led := m.seat[i], n.waiter[i].leads
	n.waiter[i] = countWaiter{at: w0}
	n.threshold[seat] = m.lowest(n, seat)
	if m.bug == cLeaveForgetsOthers {
		n.threshold[seat] = idleThreshold
	}
	if m.bug == cWaiterDisarms {
		n.rung = n.armed
	}
	for j := range n.waiter {
		if led && m.bug != cNoHandOn && n.waiter[j].inList && m.seat[j] == seat {
			n.waiter[j].leads, led = true, false
		}
	}
}

// The bell of a counter, explored like that of a queue: adders may stop after any step or die
// there, waiters may leave at every return, a waiter's seat is shared by a second one that follows
// it. Only finished adds must have been heard, and those of the dead once their death is noticed.
//
// Not in the model: several adds by one process at once, a value that is set back, wrap of the
// value and of the numbers, seats that change hands.
var counters = family{
	title: "Counters",
	variants: []variant{
		form("an adder dies",
			&countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 1},
				seat: [3]uint8{0, 1}, deaths: true}),
		form("dies, one seat",
			&countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 2},
				seat: [3]uint8{0, 0}, deaths: true}),
		form("joins and dies",
			&countModel{adds: [3]uint8{0, 0, 2}, want: [3]uint8{2, 1},
				seat: [3]uint8{0, 1}, deaths: true, joins: true}),
		form("leader is low",
			&countModel{adds: [3]uint8{2, 1}, want: [3]uint8{1, 3}, seat: [3]uint8{0, 0}}),
		form("one seat",
			&countModel{adds: [3]uint8{2, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 0}}),
		form("three adders",
			&countModel{adds: [3]uint8{1, 1, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 1}}),
		form("three waiters",
			&countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 1, 2},
				seat: [3]uint8{0, 0, 1}}),
		form("two seats",
			&countModel{adds: [3]uint8{2, 1}, want: [3]uint8{2, 1}, seat: [3]uint8{0, 1}}),
	},
	mutants: slices.Concat(
		on("two seats", cRungFirst, cNoLook, cLateEpoch, cLateThreshold, cSameArming, cWakeOne,
			cWaiterDisarms),
		on("one seat", cLeaveForgetsOthers, cNoHandOn, cServeSelfOnly, cNoFollowerLook),
		on("joins and dies", cSilentJoin, cScanFirst)),
}
