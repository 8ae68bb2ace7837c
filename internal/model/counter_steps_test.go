package model

import "fmt"

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
	bug    string
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

func (m *countModel) steps() string { return "cIdle" }

func (m *countModel) next(s *countState, x *search[countState]) {
	for i := range s.adder {
		x.by(uint8(i), s.adder[i].at)
		if n := x.fork(s); m.adderSteps(s, n, i) {
			x.emit(n)
		}
		if a := s.adder[i]; m.deaths && a.at > cIdle && a.at < cDead {
			x.by(uint8(i), cDead)
			n := x.fork(s)
			n.adder[i].at, n.adder[i].died = cDead, true
			x.emit(n)
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

func (m *countModel) actor(who uint8) string {
	if who < countAdders {
		return fmt.Sprint("adder ", who)
	}
	return fmt.Sprint("waiter ", who-countAdders)
}
