package model

import "slices"

// othersLanes is how many producers of other users there are.
const othersLanes = 2

// othersRole is what a goroutine of the reader's process does all the time.
type othersRole uint8

const (
	oAbsent othersRole = iota
	oDirect            // blocking reads of a queue that is its own: it sleeps on the lanes' words
	oSharer            // blocking reads of one that is shared: it sleeps on the queue's word
	oSetter            // waits on a set, then reads
	oPoller            // trywait, then epoll on the pipes
)

type othersModel struct {
	publishes [othersLanes]uint8
	roles     [2]othersRole
	keeper    bool // a relay listens
	deaths    bool // producer 0 may die anywhere, which is noticed
	// How many values numbers have that wrap, see wrap_test.go: 0 is as many as there are.
	values   uint8 // of the count of a lane's rings
	numbers  uint8 // of armings
	capacity uint8 // of a lane then
	deviant
}

type othersTask struct {
	at      step
	lane    uint8 // next one to hear, or whose pipe to reset
	parking bool  // the look that parks, not the one that drains
	asleep  bool
	fresh   bool // the epoch has not moved since it was loaded
}

// othersState: a lane's rung matters only in whether it is what the bell, or the keeper, heard
// last, unless it has few values.
type othersState struct {
	unread, left         [othersLanes]uint8
	parked, ready, cand  uint8
	newBell, newKeeper   uint8
	lock                 uint8
	armed, bits, rung    uint8
	waiters              uint8
	pipe                 uint8 // a bit per lane; bit 7 is the eventfd
	at                   [othersLanes]step
	w, wBits, rang       [othersLanes]uint8
	task                 [2]othersTask
	k                    step
	kLane, kw, kBits     uint8
	kAsleep              bool
	dready, todo, dfresh bool
	darmed, drung, kdw   uint8
	u                    step
	count, heard         [othersLanes]uint8
	seq                  uint8
}

func (v *othersModel) start() (s othersState) {
	s.left = v.publishes
	s.parked = 1<<othersLanes - 1 // born so
	s.cand = s.parked
	s.u, s.k = oDone, oK1
	if v.deaths {
		s.u = oU1
	}
	for l := range s.at {
		s.at[l] = oP1
	}
	for i, r := range v.roles {
		s.task[i].at = oR0
		if r == oSetter {
			s.task[i].at, s.todo = oS1, true
		}
		s.task[i].parking = r == oPoller
	}
	return s
}

func (v *othersModel) has(r othersRole) bool { return v.roles[0] == r || v.roles[1] == r }

func (v *othersModel) names() []string {
	return append(tenOfEach("oP1", "producer", "reader"), "keeper", "undertaker")
}

func (v *othersModel) same(n *othersState) {
	if v.numbers == 0 {
		relabel(&n.armed, &n.rung, &n.w[0], &n.w[1], &n.rang[0], &n.rang[1], &n.kw)
	}
	relabel(&n.darmed, &n.drung, &n.kdw)
}

func (v *othersModel) next(s *othersState, x *search[othersState]) {
	for l := range s.at {
		full := v.capacity > 0 && s.unread[l] >= v.capacity
		if s.at[l] == oP1 && (s.left[l] == 0 || full) || l == 0 && s.dead() {
			continue
		}
		x.does(s, uint8(l), s.at[l], true, func(n *othersState) { v.produce(s, n, l) })
	}
	for i := range s.task {
		t := &s.task[i]
		x.by(uint8(10+i), t.at)
		n := x.fork(s)
		switch {
		case v.roles[i] == oAbsent:
		case t.asleep: // a deadline
			n.task[i].asleep = false
			x.emit(n)
		case t.at == oT8 && s.pipe == 0:
		case v.locks(t.at) && v.shared() && s.lock != 0 && s.lock != uint8(i)+1:
		default:
			if t.at == oR2 { // the first look after a parking leaves lanes parked
				left := x.fork(s)
				left.task[i].at = oR3
				x.emit(left)
			}
			v.act(s, n, i)
			x.emit(n)
		}
	}
	x.does(s, 20, s.k, v.keeper && !s.kAsleep, func(n *othersState) { v.keep(s, n) })
	x.does(s, 21, s.u, s.u != oDone, func(n *othersState) { v.bury(s, n) })
}

func (v *othersModel) shared() bool { return v.roles[1] != oAbsent || v.has(oSharer) }

// locks tells whether a step begins a critical section.
func (v *othersModel) locks(at step) bool {
	return at == oR0 || at == oR6 || at == oR9 || at == oS2
}

func (s *othersState) dead() bool {
	return s.u > oU1 && s.u != oDone || s.u == oDone && s.at[0] == oDone
}

// judge: what is finished must have been heard of, and all that the dead had published once their
// death was noticed.
func (v *othersModel) judge(s *othersState) verdict {
	if v.keeper && !s.kAsleep || s.u != oDone && s.u != oU1 {
		return moving
	}
	bad := false
	for i, r := range v.roles {
		if t := &s.task[i]; r != oAbsent && !t.asleep && (t.at != oT8 || s.pipe != 0) {
			return moving
		}
	}
	halfWay := false
	for l := range s.at {
		switch {
		case s.at[l] == oP1 || s.at[l] == oDone:
			bad = bad || s.unread[l] > 0
		default:
			halfWay = true
		}
	}
	switch {
	case bad && halfWay:
		return muted
	case bad:
		return lost
	}
	return resting
}

// produce is a writer of another user: it writes to its own lane only.
func (v *othersModel) produce(s, n *othersState, l int) {
	bit := uint8(1) << l
	publish := func() { n.left[l]--; n.unread[l]++ }
	done := func() {
		n.at[l], n.w[l], n.wBits[l] = oP1, 0, 0
		if v.bug == oRingFirst {
			publish()
		}
	}
	switch s.at[l] {
	case oP1:
		n.at[l] = oP2
		if v.bug != oRingFirst {
			publish()
		}
	case oP2:
		n.at[l] = oQ3
		if s.parked&bit == 0 {
			done()
		} else if v.bug == oArmedFirst {
			n.w[l], n.wBits[l] = s.armed, s.bits
		} else if v.bug == oWakeFirst {
			v.wakeWord(s, n)
		}
	case oQ3:
		v.counts(n, l)
		n.at[l] = oQ4
	case oQ4:
		if v.bug != oArmedFirst {
			n.w[l], n.wBits[l] = s.armed, s.bits
		}
		n.at[l] = oQ6
		relayed := v.has(oSetter) && v.bug != oMuteRelayed
		switch {
		case n.w[l] == s.rang[l] && !relayed, n.wBits[l] == 0 && !v.has(oSetter):
			done()
		case n.wBits[l]&armFD != 0 && n.w[l] != s.rang[l]:
			n.at[l] = oQ5
		case n.wBits[l]&armDirect == 0 && !relayed && n.w[l] == s.rang[l]:
			done()
		}
	case oQ5:
		n.pipe |= bit
		n.at[l] = oQ6
	case oQ6:
		n.at[l] = oQ7
		if v.bug != oCountOnce {
			v.counts(n, l)
		}
	case oQ7:
		if v.bug != oWakeFirst {
			v.wakeWord(s, n)
		}
		n.rang[l] = s.w[l]
		done()
	}
}

// wakeWord wakes who sleeps on a lane's word: a reader that has the queue to itself, and the
// keeper.
func (v *othersModel) wakeWord(_, n *othersState) {
	n.kAsleep = false
	for i, r := range v.roles {
		if r == oDirect && v.bug != oNoWords {
			n.task[i].asleep = false
		}
	}
}

// bury is the death of producer 0, wherever it stands, and the notice of it.
func (v *othersModel) bury(_, n *othersState) {
	next := n.u + 1
	switch n.u {
	case oU1:
		if v.bug == oNoNotice {
			next = oDone
		}
	case oU2:
		if v.bug != oNoticeNoMark {
			n.ready |= 1
		}
	case oU3:
		for i := range n.task {
			n.task[i].fresh = false
		}
	case oU4:
		for i, r := range v.roles {
			if r == oDirect || r == oSharer {
				n.task[i].asleep = false
			}
		}
		n.pipe |= 1 << 7
		if !v.has(oSetter) {
			next = oDone
		}
	case oU5:
		n.todo = true
	case oU6:
		n.dfresh = false
	case oU7:
		for i, r := range v.roles {
			if r == oSetter {
				n.task[i].asleep = false
			}
		}
		next = oDone
	}
	if next == oDone {
		n.at[0], n.w[0], n.wBits[0], n.rang[0] = oDone, 0, 0, 0
	}
	n.u = next
}

// Steps of the bell between users. The names are those of the doc of package wake.
const (
	oP1  step = iota // store tail
	oP2              // load parked; 0: done
	oQ3              // rung++ in the own lane
	oQ4              // load armed
	oQ5              // write the pipe
	oQ6              // rung++ once more, behind the load of armed
	oQ7              // wake the own word
	oR0              // lock
	oH1              // load rung of a lane, mark it
	oR1              // swap ready into cand
	oR2              // un-park
	oR3              // drain, unlock
	oR4              // park
	oR4t             // tails again, unlock
	oR5              // load epoch
	oR6              // lock, arm
	oR7              // second look, unlock
	oR8              // sleep on epoch, and on the words of the lanes
	oR8l             // mutant: load the words to sleep on just now
	oR9              // disarm
	oT4              // reset the pipe of a lane
	oT6              // arm the descriptor
	oT7              // second look
	oT8              // epoll_wait
	oS1              // take D.ready
	oS2              // queue off the list, lock
	oS3              // load D.epoch
	oS4              // arm D
	oS5              // second look
	oS6              // sleep on D.epoch
	oS7              // disarm D
	oK1              // keeper: load rung of a lane
	oK2m             // mark it
	oK2a             // load armed
	oK2e             // epoch++
	oK2w             // wake
	oK2r             // store rung
	oK2d             // set D.ready
	oK2D             // load D.armed, D.rung
	oK2E             // D.epoch++
	oK2W             // wake
	oK2R             // store D.rung
	oK3              // sleep on the words of the lanes
	oU1              // a producer dies
	oU2              // its notice marks the lane
	oU3              // epoch++
	oU4              // wake all, write the eventfd
	oU5              // the queue goes on the list
	oU6              // D.epoch++
	oU7              // wake all
	oDone
)

// Deviations.
const (
	oRingFirst        = "rings before it publishes"
	oArmedFirst       = "armed loaded before the ring is counted"
	oWakeFirst        = "wakes before it counts the ring"
	oCountOnce        = "counts once, before it loads armed, and mutes the next"
	oNoTailsAgain     = "no second look at the tail after parking"
	oFreshWords       = "words to sleep on loaded after the look, not what was heard"
	oNoWords          = "sleeps on the queue's word alone"
	oNoSecondLook     = "no second look after arming"
	oMuteRelayed      = "wakes muted although a keeper listens"
	oKeeperForgets    = "keeper sleeps on what rung is now, not on what it passed on"
	oKeeperArmed      = "keeper loads armed before it sleeps"
	oResetAfterArm    = "pipe reset between arming and second look"
	oResetAfterLook   = "pipe reset after the second look"
	oNoPipeSecondLook = "trywait without second look"
	oNoNotice         = "a death goes unnoticed"
	oNoticeNoMark     = "a death wakes and marks nothing"
)

// The bell of a queue for other users, explored like that of a queue of one user: producers may
// stop for ever after any step, or die there; what is finished must have been heard of, and all
// that the dead had published once their death is noticed.
//
// A producer of another user writes to its lane and its pipe only. A reader that has the queue to
// itself sleeps on the words of the lanes; for goroutines that share a queue, and for sets, a
// keeper passes rings on. A lane's count of rings is modelled as whether it is what the bell, or
// the keeper, heard last.
//
// What survives and so is not required: that the keeper marks the lane in the queue's ready word
// before it rings, or at all, since every look hears the lanes itself; and the order in which it
// wakes and marks the domain rung, since it never stops in between.
//
// Not in the model: thresholds and channels, which look at the same marks; pauses for those who
// ring for nothing; a keeper's pass by somebody who is about to look at a set. Wrap of the count
// is explored in wrap_test.go.
var others = family{
	title: "Queues between users",
	variants: []variant{
		form("descriptor",
			&othersModel{publishes: [2]uint8{2, 1}, roles: [2]othersRole{oPoller}}),
		form("descriptor, a death",
			&othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oPoller}, deaths: true}),
		form("direct",
			&othersModel{publishes: [2]uint8{2, 2}, roles: [2]othersRole{oDirect}}),
		form("direct, a death",
			&othersModel{publishes: [2]uint8{2, 1},
				roles: [2]othersRole{oDirect}, deaths: true}),
		form("set",
			&othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSetter}, keeper: true}),
		form("set, a death",
			&othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSetter}, keeper: true, deaths: true}),
		form("set, one dies",
			&othersModel{publishes: [2]uint8{1, 0},
				roles: [2]othersRole{oSetter}, keeper: true, deaths: true}),
		form("set, x2",
			&othersModel{publishes: [2]uint8{2, 2},
				roles: [2]othersRole{oSetter}, keeper: true}),
		form("shared",
			&othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer}, keeper: true}),
		form("shared and set",
			&othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer, oSetter}, keeper: true}),
		form("shared, 2 lanes",
			&othersModel{publishes: [2]uint8{2, 1},
				roles: [2]othersRole{oSharer}, keeper: true}),
		form("two share",
			&othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer, oSharer}, keeper: true}),
		form("two share, 2 lanes",
			&othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSharer, oSharer}, keeper: true}),
	},
	mutants: slices.Concat(
		on("direct", oRingFirst, oArmedFirst, oWakeFirst, oCountOnce, oNoTailsAgain, oFreshWords,
			oNoWords),
		on("shared", oKeeperForgets, oKeeperArmed, oNoSecondLook, oCountOnce),
		on("direct, a death", oNoNotice, oNoticeNoMark),
		on("set", oMuteRelayed, oKeeperForgets),
		on("descriptor", oResetAfterArm, oResetAfterLook, oNoPipeSecondLook),
		on("descriptor, a death", oNoNotice)),
}
