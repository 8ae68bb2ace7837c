package model

import "slices"

// Waits on queues that endpoints feed, explored: two readers of a process each wait on a queue of
// their own, or one of them on a set that has its queue. Whoever comes to it makes progress for
// both, under a try-lock of the endpoint, and may leave in the middle: its budget is used up, its
// deadline has passed, or it has what it wanted. A remote sender publishes, and may stop for ever.
//
//	W1 of each endpoint: try-lock, take the marks, un-park, examine and post, unlock
//	W2 read the queue   W4 of each endpoint with candidates: try-lock and park, look, unlock
//	W5 load the epochs  W6 arm the queue and the endpoints  W7 look again   W8 sleep, disarm
//	V1 leave: candidates or marks, without the lock?  V2 tell the set  V3 waiters? epoch++, wake
//	V4 the set armed? epoch++, wake
//	P1 publish; P2 to P7 as of queues, for the endpoint's bell, then the set's domain
//
// Queues are private to the process: a post and a read are critical sections of their lock, one
// step each. What waits is a message to queue 0 (m) or an acknowledgement to queue 1 (a).
//
// Not in the model: more than two readers, several rows on one bell, store buffers and deaths,
// which are explored with two endpoints, and several waiters of a set.

type feedModel struct {
	sends    [2]string // of each endpoint's remote side
	room     uint8     // of a queue; 0 is no limit
	stops    bool      // remote sides may stop for ever
	budget   bool
	deadline bool
	alone    bool // the second reader is not there
	set      bool // the second reader waits on a set
	coarse   bool // some steps of a waiter are one
	deviant
}

// Deviations.
const (
	feedNoLookF     = "no second look at endpoints"
	feedNoLookX     = "no second look at the queue"
	feedNoParkLook  = "no look after parking"
	feedLoser       = "who lost the try-lock sleeps without its look"
	feedFirst       = "the first waiter disarms"
	feedLateEpoch   = "the epochs are loaded after the second look"
	feedNoBump      = "who leaves wakes nobody"
	feedNoBumpGot   = "who leaves with an entry wakes nobody"
	feedNoBumpLate  = "who leaves at its deadline wakes nobody"
	feedBumpLocked  = "who leaves wakes before it unlocks"
	feedCandidates  = "who leaves looks at candidates, not at marks"
	feedEpochOnly   = "who leaves moves the epoch, and does not wake"
	feedQuietPost   = "a post to the queue of another does not wake it"
	feedUnarmed     = "endpoints are not armed"
	feedNoMark      = "a read that makes room does not mark the endpoint"
	feedStalledWork = "what a full queue holds up counts as work"
	feedSameArming  = "a second arming keeps the number"
	feedWakeOne     = "a ring wakes one"
	feedSetByF      = "set: who leaves moves the endpoint's epoch only"
	feedSetQuiet    = "set: a post to its queue does not tell the domain"
	feedSetNoLook   = "set: no second look"
	feedUnlessRung  = "who leaves does not wake if the arming was rung"
	feedEarlyRung   = "rung is stored before the wake"
	feedStrict      = "who lost the try-lock does not trust the holder with marks"
)

// feeder is an endpoint and its remote side.
type feeder struct {
	tail, examined            uint8
	parked, marked, candidate bool
	holder                    uint8 // of the lock: reader plus one
	waiters                   uint8
	armed, rung               uint8
	stalled                   uint8 // by a full queue: that plus one
	at                        step  // of the remote side
	ring                      uint8 // the arming that it loaded
	stopped                   bool
}

type feedQueue struct {
	entries [2]uint8 // by endpoint
	armed   bool
}

type feedReader struct {
	at                step
	f                 uint8
	moved, quit, late bool
	lost              [2]bool
	asleep, gone      bool
	fresh             [3]bool // epochs: of the endpoints, and of the queue or the domain
}

const feedX = 2 // in fresh

type feedState struct {
	f           [2]feeder
	x           [2]feedQueue
	r           [2]feedReader
	ready, todo uint8 // of the set: bits of the endpoints, and of its queue
	armed       bool  // the domain
}

const feedSetQueue = 1 << 2 // in ready and todo

const (
	fTry        step = iota // W1 try-lock
	fTake                   // W1 take the marks
	fUnpark                 // W1 un-park
	fExamine                // W1 examine and post
	fUnlock                 // W1 unlock
	fBumpLocked             // V3 epoch++ under the lock
	fWakeLocked             // V3 wake under the lock
	fRead                   // W2 read
	fPark                   // W4 try-lock and park
	fLook                   // W4 look
	fParked                 // W4 unlock
	fEpochX                 // W5 load the queue's epoch
	fEpochF                 // W5 load an endpoint's
	fArmX                   // W6 arm the queue
	fArmF                   // W6 arm an endpoint
	fLookX                  // W7 look at the queue
	fLookF                  // W7 look at an endpoint
	fEpochLate              // W5 load all epochs
	fSleep                  // W8 sleep
	fDisarmX                // W8 disarm the queue
	fDisarmF                // W8 disarm an endpoint
	fLeave                  // V1 anything left?
	fWaiters                // V2 tell the set, V3 any waiters?
	fBump                   // V3 epoch++
	fWake                   // V3 wake
	fDomain                 // V4 is the domain armed?
	fDomainE                // V4 epoch++
	fDomainW                // V4 wake
	fGone                   // leaves for good
	fDeadline               // its deadline
	rPublish                // P1 publish
	rP2                     // P2 load parked
	rP3                     // P3 mark
	rP4                     // P4 load armed
	rP5                     // P5 load rung
	rP5e                    // P5 epoch++
	rP5w                    // P5 wake
	rP5r                    // P5 store rung
	rP6                     // P6 tell the domain
	rP7                     // P7 is it armed?
	rP7e                    // P7 epoch++
	rP7w                    // P7 wake
	rStops                  // stops
)

func (m feedModel) names() []string {
	return []string{"fTry", "reader 0", "reader 1", "remote 0", "remote 1"}
}

func (m feedModel) start() (s feedState) {
	for i := range s.f {
		s.f[i].parked, s.f[i].at = true, rPublish
	}
	s.r[1].gone = m.alone
	if m.set {
		s.todo = 1<<m.endpoints() - 1
	}
	return s
}

func (m feedModel) endpoints() uint8 {
	if m.sends[1] == "" {
		return 1
	}
	return 2
}

// to is the queue that message k of an endpoint completes on.
func (m feedModel) to(f, k uint8) int {
	if m.sends[f][k] == 'a' {
		return 1
	}
	return 0
}

func (feedModel) same(n *feedState) {
	for i := range n.f {
		f := &n.f[i]
		relabel(&f.armed, &f.rung, &f.ring)
	}
}

func (m feedModel) next(s *feedState, x *search[feedState]) {
	for i := range m.endpoints() {
		m.remote(s, i, x)
	}
	for j := range s.r {
		switch r := &s.r[j]; {
		case r.gone:
		case r.asleep && m.deadline:
			x.does(s, uint8(j), fDeadline, true,
				func(n *feedState) { n.r[j].asleep, n.r[j].late = false, true })
		case !r.asleep:
			m.reader(s, uint8(j), x)
		}
	}
}

// bump moves the epoch of an endpoint's bell.
func (s *feedState) bump(f uint8) {
	for j := range s.r {
		s.r[j].fresh[f] = false
	}
}

// wake wakes who sleeps on an endpoint: who waits on a set sleeps on the domain.
func (m feedModel) wake(s *feedState) {
	s.r[0].asleep = false
	if !m.set {
		s.r[1].asleep = false
	}
}

// remote is a step of a sender.
func (m feedModel) remote(s *feedState, i uint8, x *search[feedState]) {
	f := &s.f[i]
	if f.stopped || f.at == rPublish && int(f.tail) == len(m.sends[i]) {
		return
	}
	x.does(s, 2+i, rStops, m.stops, func(n *feedState) { n.f[i].stopped, n.f[i].ring = true, 0 })
	x.by(2+i, f.at)
	n := x.fork(s)
	g := &n.f[i]
	g.at = f.at + 1
	rung := func() {
		if g.at, g.ring = rPublish, 0; m.set {
			g.at = rP6
		}
	}
	switch f.at {
	case rPublish:
		g.tail++
	case rP2:
		if !f.parked {
			g.at = rPublish
		}
	case rP3:
		g.marked = true
	case rP4:
		if g.ring = f.armed; g.ring == 0 {
			rung()
		}
	case rP5:
		if f.rung == f.ring {
			rung()
		} else if m.bug == feedEarlyRung {
			g.rung = f.ring
		}
	case rP5e:
		n.bump(i)
	case rP5w:
		if m.bug == feedWakeOne && s.r[0].asleep && s.r[1].asleep {
			o := x.fork(n)
			o.r[1].asleep = false
			x.emit(o)
			n.r[0].asleep = false
		} else {
			m.wake(n)
		}
	case rP5r:
		g.rung = f.ring
		rung()
	case rP6:
		n.ready |= 1 << i
	case rP7:
		if !s.armed {
			g.at = rPublish
		}
	case rP7e:
		n.r[1].fresh[feedX] = false
	case rP7w:
		n.r[1].asleep = false
		g.at = rPublish
	}
	x.emit(n)
}

// judge: nobody sleeps beside an entry, or beside what would become one.
func (m feedModel) judge(s *feedState) verdict {
	for i := range m.endpoints() {
		if f := &s.f[i]; !f.stopped && (f.at != rPublish || int(f.tail) < len(m.sends[i])) {
			return moving
		}
	}
	for j := range s.r {
		if !s.r[j].asleep && !s.r[j].gone {
			return moving
		}
	}
	if s.r[0].gone && s.r[1].gone {
		return over
	}
	for j := range s.r {
		if s.r[j].asleep && s.x[j].entries != [2]uint8{} {
			return lost
		}
	}
	for i := range m.endpoints() {
		f := &s.f[i]
		tail := f.tail
		if f.at != rPublish {
			tail-- // it stopped half way
		}
		if f.holder != 0 || tail > f.examined && !m.full(s, i, m.to(i, f.examined)) {
			return lost
		}
	}
	return resting
}

// full tells whether a queue has no room for more of an endpoint.
func (m feedModel) full(s *feedState, f uint8, to int) bool {
	return m.room > 0 && s.x[to].entries[f] >= m.room
}

var feeders = family{
	title: "Waits on what endpoints feed",
	variants: []variant{
		form("two readers, stops", feedModel{sends: [2]string{"ma"}, budget: true, deadline: true,
			stops: true}),
		form("two readers", feedModel{sends: [2]string{"ma"}, budget: true, deadline: true}),
		form("two readers, x4",
			feedModel{sends: [2]string{"mama"}, budget: true, deadline: true}),
		form("two readers, x4, no deadline", feedModel{sends: [2]string{"mama"}, budget: true}),
		form("full queues",
			feedModel{sends: [2]string{"aaam"}, budget: true, deadline: true, room: 1}),
		form("full queues, three and no deadline",
			feedModel{sends: [2]string{"aaa"}, room: 1}),
		form("full queues, no deadline",
			feedModel{sends: [2]string{"aaam"}, budget: true, room: 1}),
		form("two endpoints, one reader",
			feedModel{sends: [2]string{"am", "m"}, budget: true, deadline: true, alone: true}),
		form("two endpoints, two readers",
			feedModel{sends: [2]string{"a", "m"}, coarse: true}),
		form("a set", feedModel{sends: [2]string{"ma"}, budget: true, deadline: true, set: true}),
		form("a set, no deadline", feedModel{sends: [2]string{"ma"}, budget: true, set: true}),
		form("a set, x4",
			feedModel{sends: [2]string{"mama"}, budget: true, deadline: true, set: true}),
	},
	mutants: slices.Concat(
		on("two readers", feedNoLookF, feedNoLookX, feedNoParkLook, feedLoser, feedFirst,
			feedLateEpoch, feedNoBump, feedNoBumpGot, feedBumpLocked, feedCandidates, feedEpochOnly,
			feedQuietPost, feedUnarmed),
		on("two readers, x4", feedNoBumpLate, feedWakeOne, feedSameArming),
		on("full queues", feedNoMark),
		on("a set", feedSetByF, feedSetQuiet, feedSetNoLook)),
	traps: on("full queues, three and no deadline", feedStalledWork),
	spare: slices.Concat(
		on("two readers", feedStrict),
		on("two readers, x4", feedUnlessRung),
		on("two readers, stops", feedEarlyRung)),
}
