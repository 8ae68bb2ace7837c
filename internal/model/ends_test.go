package model

import (
	"cmp"
	"slices"
)

// Two endpoints that send to each other, explored: each has a lane to the other one and a row for
// the other's lane, and sleeps when there is nothing to do. What a row returns (its head, its
// acknowledgements) wakes as a publish does: its reverse tail is a tail, and has a parked word of
// its own. Either side may die at any step, or leave between two rounds. Plain stores wait in a
// buffer of their processor for as long as they like, also after a death.
//
//	E1 take the marks, and a death notice   E2 un-park   E3 look at rev: then head and
//	acknowledgements   E4 examine   E5 flush a full batch   E6 send   E7 the end of a round: flush
//	E8 park both words, barrier, look at tail and rev   E9 load the epoch, arm, look again, sleep
//	F1 store head   F2 store acknowledgements   F3 store rev
//	P2 load parked  P3 mark  P4 load armed  P5 load rung, epoch++, wake, store rung
//	K1 notice  K2 epoch++  K3 wake, of the other's death
//
// The steps P are those of queues, and K as well. One mark stands for both: a side has one peer.
//
// Not in the model: several peers on one bell, messages of several slots, a lane that grows or
// ends, control records, chunks (their returns are taken as acknowledgements).

type endsModel struct {
	messages [2]uint8
	slots    uint8
	batch    uint8
	pays     endsPays
	kill     [2]bool
	leave    [2]bool
	oneWord  bool // one parked word for lane and returns
	half     bool // who waits for room alone is woken at half a ring
	ignores  bool // who has room neither looks at returns nor is rung for them: it sends injects
	deviant
}

// endsPays says who pays for the order of a store and a load: with a fence at each publish, or with
// a barrier that reaches all processors.
type endsPays uint8

const (
	endsReader endsPays = iota
	endsWriter
	endsBegins // the reader, until a writer begins to
	endsStops  // the writer, until it stops to
)

// Deviations.
const (
	endsNoLook      = "no look after parking"
	endsNoRevLook   = "the look leaves out rev"
	endsNoAgain     = "no second look after arming"
	endsLateRev     = "the word for rev is parked after the look"
	endsLateFlush   = "flush after the sleep"
	endsSilent      = "returns do not ring"
	endsNoBarrier   = "the reader pays and runs no barrier"
	endsNoFence     = "the writer pays and runs no fence"
	endsRevFirst    = "rev is stored before head and acknowledgements"
	endsRevLast     = "rev is loaded after head and acknowledgements"
	endsLateEpoch   = "the epoch is loaded after the second look"
	endsUnnoticed   = "the second look ignores a death notice"
	endsOnlyArmed   = "a death notice moves an armed epoch only, and the second look ignores it"
	endsReadFirst   = "lane and row of the dead are read before its notice is taken"
	endsDeadByRev   = "the row of the dead is read only if rev moved"
	endsKeeps       = "who leaves keeps returns back"
	endsEachBatch   = "half a ring: each batch is judged alone"
	endsHalfForAcks = "half a ring: also for one who waits for acknowledgements"
	endsPlainStop   = "who stops paying says so with a plain store"
	endsMidFlush    = "flush between parking and arming"
	endsArmedFlush  = "flush between arming and the second look"
	endsEarlyRung   = "rung is stored before the wake"
	endsArmedNotice = "a death notice moves an armed epoch only"
	endsIgnoresRoom = "returns are ignored also by who waits for room"
	endsLeavesQuiet = "who leaves rings for its last returns only if they are not ignored"
	endsMarkUnseen  = "who ignores returns does so also at a mark"
)

// end is one process with its endpoint.
type end struct {
	// What the other one reads, or writes. Plain stores to the first seven go through the buffer.
	tail, head, acks, rev   uint8
	parked, revParked, fees bool
	marked                  bool
	armed, rung             uint8
	half                    uint8 // returns below this head need no wake

	buffer   [4]uint8 // stores that are on their way, the oldest first
	buffered uint8

	at, back                  step // back is where a flush or a ring goes on
	sent, examined, flushed   uint8
	headSeen, acksSeen        uint8
	revSeen, loaded           uint8
	candidate, moved, returns bool  // returns: what is rung for
	ring                      uint8 // the other's arming
	fresh, asleep             bool  // fresh: the epoch is as it was loaded
	dead, left                bool
	notice                    bool
	news                      uint8 // how much of the notice has been given
	noticed, final            bool  // it was taken, and the row of the dead was read
	paying, changed           bool
}

type endsState [2]end

const (
	eTop       step = iota // E1 take the marks
	eUnpark                // E2 un-park
	eRev                   // E3 load rev
	eHead                  // E3 load head
	eAcks                  // E3 load acknowledgements
	eRevAfter              // E3 load rev once more
	eExamine               // E4 load tail, examine
	eBatch                 // E5 flush?
	eSend                  // E6 send?
	eRound                 // E7 anything more?
	ePark                  // E8 park
	eBarrier               // E8 barrier
	eFees                  // E8 load who pays
	eReach                 // E8 barrier that reaches the other
	eLookTail              // E8 look at tail
	eLookRev               // E8 look at rev
	eParkLate              // E8 park the word for rev
	eEpoch                 // E9 load the epoch
	eArm                   // E9 arm
	eAgain                 // E9 look again
	eEpochLate             // E9 load the epoch
	eWait                  // E9 sleep
	eDisarm                // E9 disarm
	eF1                    // F1 store head
	eF2                    // F2 store acknowledgements
	eF3                    // F3 store rev
	eLeft                  // leaves
	eP2                    // P2 load parked
	eP3                    // P3 mark
	eP4                    // P4 load armed
	eP5                    // P5 load rung
	eP5e                   // P5 epoch++
	eP5w                   // P5 wake
	eP5r                   // P5 store rung
	eVisible               // a store becomes visible
	eDies                  // dies
	eNotice                // K notice of the other's death
	eChanges               // changes who pays
)

// What a buffered store is to.
const (
	endsTail uint8 = iota
	endsHead
	endsAcks
	endsRev
	endsParked
	endsRevParked
	endsFees
)

func (m endsModel) names() []string { return []string{"eTop", "one", "other"} }

func (m endsModel) start() (s endsState) {
	for i := range s {
		s[i].parked, s[i].revParked, s[i].candidate = true, true, true
		s[i].fees = m.pays == endsStops
		s[i].paying = m.pays == endsStops || m.pays == endsWriter
	}
	return s
}

// same makes armings small.
func (endsModel) same(n *endsState) {
	relabel(&n[0].armed, &n[0].rung, &n[1].ring)
	relabel(&n[1].armed, &n[1].rung, &n[0].ring)
}

// store puts a plain store into the buffer; a full one gives its oldest away.
func (e *end) store(word, v uint8) {
	if e.buffered == uint8(len(e.buffer)) {
		e.visible()
	}
	e.buffer[e.buffered] = word<<4 | v
	e.buffered++
}

// visible carries the oldest store out.
func (e *end) visible() {
	v := e.buffer[0] & 15
	switch e.buffer[0] >> 4 {
	case endsTail:
		e.tail = v
	case endsHead:
		e.head = v
	case endsAcks:
		e.acks = v
	case endsRev:
		e.rev = v
	case endsParked:
		e.parked = v != 0
	case endsRevParked:
		e.revParked = v != 0
	case endsFees:
		e.fees = v != 0
	}
	copy(e.buffer[:], e.buffer[1:])
	e.buffer[len(e.buffer)-1] = 0
	e.buffered--
}

// fence carries all of them out.
func (e *end) fence() {
	for e.buffered > 0 {
		e.visible()
	}
}

func (m endsModel) next(s *endsState, x *search[endsState]) {
	for i := range s {
		who, e, o := uint8(i), &s[i], &s[1-i]
		if e.buffered > 0 {
			x.by(who, eVisible)
			n := x.fork(s)
			n[i].visible()
			x.emit(n)
		}
		if e.dead || e.left {
			continue
		}
		if m.kill[i] {
			x.by(who, eDies)
			n := x.fork(s)
			n[i].dead, n[i].asleep = true, false
			x.emit(n)
		}
		x.does(s, who, eNotice, o.dead && o.buffered == 0 && e.news < endsTold,
			func(n *endsState) { m.tell(&n[i]) })
		if e.asleep {
			continue
		}
		x.does(s, who, e.at, true, func(n *endsState) { m.step(n, i) })
		x.does(s, who, eChanges, e.at == eTop && !e.changed && m.pays >= endsBegins,
			func(n *endsState) { m.change(&n[i]) })
		if e.at == eRound && m.leave[i] {
			x.by(who, eLeft)
			n := x.fork(s)
			if n[i].at = eLeft; e.examined > e.flushed && m.bug != endsKeeps {
				m.flush(&n[i], eLeft)
			} else if m.ignores && e.flushed > 0 { // given back before, and perhaps ignored
				n[i].back = eLeft
				m.begin(&n[i], true)
			}
			x.emit(n)
		}
	}
}

// endsTold is news that has been given whole.
const endsTold = 3

// tell is a step of the notice that the other one died, by a goroutine of its own.
func (m endsModel) tell(e *end) {
	switch e.news++; e.news {
	case 1:
		e.notice = true
		if (m.bug == endsOnlyArmed || m.bug == endsArmedNotice) && e.armed == 0 {
			e.news = endsTold
		}
	case 2:
		e.fresh = false
	case endsTold:
		e.asleep = false
	}
}

// change: paying begins with a plain store behind the publishes that were not paid for, and ends
// with a fence before the first that is not.
func (m endsModel) change(e *end) {
	e.changed, e.paying = true, !e.paying
	switch {
	case e.paying:
		e.store(endsFees, 1)
	case m.bug == endsPlainStop:
		e.store(endsFees, 0)
	default:
		e.fence()
		e.fees = false
	}
}

// judge: whoever sleeps has nothing left to do, and what has left or died owes nothing.
func (m endsModel) judge(s *endsState) verdict {
	for i := range s {
		e, o := &s[i], &s[1-i]
		if e.buffered > 0 || !e.asleep && !e.dead && !e.left ||
			o.dead && !e.dead && !e.left && e.news < endsTold {
			return moving
		}
	}
	for i := range s {
		e, o := &s[i], &s[1-i]
		if !e.asleep {
			continue
		}
		wants := e.sent < m.messages[i]
		hears := !m.ignores || o.left
		if o.tail > e.examined || hears && o.acks != e.acksSeen || o.dead && !e.noticed ||
			!o.dead && wants && e.sent-o.head < m.slots ||
			o.left && o.examined != o.acks ||
			o.asleep && (wants || hears && e.acksSeen < m.messages[i]) {
			return lost
		}
	}
	return resting
}

func (m *endsModel) deviate(bug string) {
	m.bug, m.slots, m.batch = bug, cmp.Or(m.slots, 2), cmp.Or(m.batch, 2)
}

var ends = family{
	title: "Two endpoints",
	variants: []variant{
		form("1 and none", endsModel{messages: [2]uint8{1, 0}}),
		form("1 and none, both may die or leave", endsModel{messages: [2]uint8{1, 0},
			kill: [2]bool{true, true}, leave: [2]bool{true, true}, oneWord: true}),
		form("1 and 1", endsModel{messages: [2]uint8{1, 1}, oneWord: true, batch: 1}),
		form("2 and 1", endsModel{messages: [2]uint8{2, 1}}),
		form("2 and 1, the writer pays", endsModel{messages: [2]uint8{2, 1}, pays: endsWriter}),
		form("3 and 1", endsModel{messages: [2]uint8{3, 1}}),
		form("3 and 1, the writer pays", endsModel{messages: [2]uint8{3, 1}, pays: endsWriter}),
		form("3 and 1, one parked word", endsModel{messages: [2]uint8{3, 1}, oneWord: true}),
		form("3 and none", endsModel{messages: [2]uint8{3, 0}}),
		form("both may die",
			endsModel{messages: [2]uint8{1, 1}, kill: [2]bool{true, true}}),
		form("both may die, the writer pays", endsModel{messages: [2]uint8{1, 1}, pays: endsWriter,
			kill: [2]bool{true, true}}),
		form("its reader may die",
			endsModel{messages: [2]uint8{3, 0}, kill: [2]bool{false, true}}),
		form("its writer may die",
			endsModel{messages: [2]uint8{3, 0}, kill: [2]bool{true, false}}),
		form("its reader may leave",
			endsModel{messages: [2]uint8{3, 0}, leave: [2]bool{false, true}}),
		form("writers may stop paying", endsModel{messages: [2]uint8{2, 0}, pays: endsStops}),
		form("writers may begin to pay", endsModel{messages: [2]uint8{2, 0}, pays: endsBegins}),
		form("injects", endsModel{messages: [2]uint8{3, 0}, ignores: true,
			leave: [2]bool{false, true}}),
		form("injects, the writer pays", endsModel{messages: [2]uint8{3, 0}, ignores: true,
			pays: endsWriter, leave: [2]bool{false, true}}),
		form("injects, 3 and 1", endsModel{messages: [2]uint8{3, 1}, ignores: true}),
		form("injects, both may die", endsModel{messages: [2]uint8{2, 1}, ignores: true,
			kill: [2]bool{true, true}}),
		form("half a ring",
			endsModel{messages: [2]uint8{4, 0}, slots: 3, batch: 1, half: true}),
		form("half a ring of four",
			endsModel{messages: [2]uint8{5, 0}, slots: 4, batch: 1, half: true}),
	},
	mutants: slices.Concat(
		on("2 and 1", endsNoLook, endsNoRevLook, endsNoAgain, endsLateRev, endsNoBarrier,
			endsLateEpoch),
		on("2 and 1, the writer pays", endsNoFence),
		on("3 and none", endsLateFlush, endsSilent, endsRevFirst, endsRevLast),
		on("both may die", endsUnnoticed, endsOnlyArmed, endsReadFirst, endsDeadByRev),
		on("its reader may leave", endsKeeps),
		on("injects", endsIgnoresRoom, endsLeavesQuiet, endsMarkUnseen, endsNoRevLook),
		on("injects, 3 and 1", endsIgnoresRoom, endsNoLook),
		on("half a ring", endsEachBatch, endsHalfForAcks),
		on("writers may stop paying", endsPlainStop)),
	spare: slices.Concat(
		on("3 and none", endsMidFlush, endsArmedFlush),
		on("both may die", endsEarlyRung, endsArmedNotice)),
}
