package model

import (
	"cmp"
	"slices"
)

// Payload by reference, explored: a piece of a sender's pool that two receivers read in place. Its
// user has it, sends it to both, more than once, and gives it up whenever it likes. A receiver
// copies it to a buffer, in two steps, or lends it to its own user. Two operations of a lane share
// one place in the control ring. The first receiver may die, close, or be faulty; in one form the
// sender dies or closes.
//
//	Y1 the user gets the piece, when nobody has it   Y2 the header goes: one reference more
//	Y3 the user gives it up: it is free when no reference is left
//	Y4 examine: stored; match: copied, or lent   Y5 the copy has ended, or the loan is given back: a
//	record is owed, and put into the control ring when there is room
//	Y6 take the record: it counts if operation and generation agree; else the peer is cut off
//	Y7 the receiver is proved dead, or has closed: end its sends, drop its references
//	Y8 the sender is gone: examine what it published, drop what has no receive; the memory stays
//	mapped while there is a loan

type referencesModel struct {
	sends  uint8
	again  bool // the first receiver returns once more what it returned
	leaves bool // the sender may die or close
	deviant
}

// Deviations.
const (
	referencesAnyReturn = "a return counts whatever the operation and its generation"
	referencesAtMatch   = "a loan is returned when it is handed out"
	referencesEarly     = "a message is returned before the copy has ended"
	referencesSilence   = "references of a receiver are dropped because it is silent"
	referencesCut       = "references of a peer that was cut off are dropped while it lives"
	referencesReuse     = "what its user gives up is free, whoever reads it"
	referencesDropped   = "a return that finds no room is dropped"
	referencesUnmapped  = "the memory of a sender that is gone is unmapped under a loan"
	referencesKept      = "headers of a sender that is gone stay, and are matched"
	referencesNoReclaim = "references of a receiver that is dead stay"
)

// What a receiver does with a message.
const (
	referenceStored = 1 + iota
	referenceCopied
	referenceLent
)

type reader struct {
	open [2]uint8 // the sender's: generation of each operation, 0 is none
	kept uint8    // references of ended sends, since it was cut off
	cut  bool
	gone bool // the sender has dropped what it had

	lane      pair // operation and generation
	is, of    [2]uint8
	owed      [2]uint8 // generations
	ring      uint8
	repeated  bool
	dead      bool
	closed    bool
	drained   bool // the sender's end is known, and its lane is empty
	generates [2]uint8
}

type referencesState struct {
	r     [2]reader
	user  bool // has the piece
	left  uint8
	over  bool // the sender is dead, or has closed
	fault fault
}

const (
	referencesGets    step = iota // Y1 the user gets the piece
	referencesSends               // Y2 send
	referencesFrees               // Y3 the user gives it up
	referencesTakes               // Y6 take a record
	referencesReclaim             // Y7 reclaim
	referencesGone                // Y8 the sender is gone
	referencesExamine             // Y4 examine
	referencesCopies              // Y4 copy
	referencesLends               // Y4 lend
	referencesReturn              // Y5 the copy has ended, or the loan
	referencesTells               // Y5 the record
	referencesDies                // dies
	referencesCloses              // closes
	referencesAgain               // returns once more
	referencesDrained             // Y8 drop what has no receive
)

func (m referencesModel) names() []string {
	return []string{"referencesGets", "receiver 0", "receiver 1", "sender"}
}

func (m referencesModel) start() referencesState { return referencesState{left: m.sends} }

// lentTo counts the references of a receiver.
func (r *reader) lentTo() uint8 {
	return r.kept + min(r.open[0], 1) + min(r.open[1], 1)
}

// idle reports that no reference is left.
func (s *referencesState) idle() bool { return s.r[0].lentTo()+s.r[1].lentTo() == 0 }

// written notes that the piece is written: nobody who lives may read it.
func (s *referencesState) written() {
	if slices.ContainsFunc(s.r[:], func(r reader) bool {
		return !r.dead && !r.closed && (r.lane[0] != 0 || r.is != [2]uint8{})
	}) {
		s.fault = readByOther
	}
}

func (m referencesModel) next(s *referencesState, x *search[referencesState]) {
	if !s.over {
		m.sender(s, x)
	}
	for p := range s.r {
		if r := &s.r[p]; !r.dead && !r.closed {
			m.receiver(s, p, x)
		}
	}
}

func (m referencesModel) sender(s *referencesState, x *search[referencesState]) {
	does := func(at step, may bool, do func(n *referencesState)) { x.does(s, 2, at, may, do) }
	free := s.idle() || m.bug == referencesReuse
	does(referencesGets, !s.user && free && s.left > 0, func(n *referencesState) {
		n.user = true
		n.written()
	})
	does(referencesFrees, s.user, func(n *referencesState) { n.user = false })
	does(referencesGone, m.leaves, func(n *referencesState) { n.over = true })
	for p := range s.r {
		was := &s.r[p]
		for op := range was.open {
			may := s.user && s.left > 0 && !was.cut && !was.gone && was.open[op] == 0
			does(referencesSends, may && was.lane[1] == 0, func(n *referencesState) {
				if s.idle() { // it may be filled anew
					n.written()
				}
				r := &n.r[p]
				n.left--
				r.generates[op]++
				r.open[op] = r.generates[op]
				r.lane.push(uint8(op)<<4 | r.open[op])
			})
		}
		does(referencesTakes, was.ring != 0 && !was.cut && !was.gone,
			func(n *referencesState) { m.take(n, &n.r[p]) })
		gone := (was.dead && m.bug != referencesNoReclaim) || was.closed ||
			m.bug == referencesSilence
		does(referencesReclaim, gone && !was.gone && (was.ring == 0 || was.cut),
			func(n *referencesState) {
				r := &n.r[p]
				r.gone, r.open, r.kept = true, [2]uint8{}, 0
			})
	}
}

// take is Y6.
func (m referencesModel) take(n *referencesState, r *reader) {
	op, generation := r.ring>>4, r.ring&15
	r.ring = 0
	switch {
	case r.open[op] == generation:
		if is := r.is[op]; r.of[op] == generation && (is == referenceCopied || is == referenceLent) {
			n.fault = notThere
		}
		r.open[op] = 0
	case m.bug == referencesAnyReturn:
		// The user counts one reference less, though it is another's.
		other := &n.r[1]
		if i := slices.IndexFunc(other.open[:], func(g uint8) bool { return g != 0 }); i >= 0 {
			other.open[i] = 0
		} else if r.open[op] != 0 {
			r.open[op] = 0
		} else {
			n.fault = endedTwice
		}
	default:
		r.cut = true
		if r.kept = r.lentTo(); m.bug == referencesCut {
			r.kept = 0
		}
		r.open = [2]uint8{}
	}
}

func (m referencesModel) receiver(s *referencesState, p int, x *search[referencesState]) {
	was := &s.r[p]
	does := func(at step, may bool, do func(n *referencesState, r *reader)) {
		x.does(s, uint8(p), at, may, func(n *referencesState) { do(n, &n.r[p]) })
	}
	does(referencesExamine, was.lane[0] != 0, func(_ *referencesState, r *reader) {
		record := r.lane.pop()
		r.is[record>>4], r.of[record>>4] = referenceStored, record&15
	})
	copying := slices.Contains(was.is[:], referenceCopied)
	for op, is := range was.is {
		match := func(as uint8, returns bool) func(n *referencesState, r *reader) {
			return func(n *referencesState, r *reader) {
				if r.is[op] = as; was.drained {
					n.fault = senderGone
				}
				if returns {
					r.owed[op] = r.of[op]
				}
			}
		}
		matches := is == referenceStored && !copying
		does(referencesCopies, matches, match(referenceCopied, m.bug == referencesEarly))
		does(referencesLends, matches, match(referenceLent, m.bug == referencesAtMatch))
		does(referencesReturn, is == referenceCopied || is == referenceLent,
			func(_ *referencesState, r *reader) {
				if r.is[op] = 0; !m.returnsFirst() && !was.drained {
					r.owed[op] = r.of[op]
				}
			})
		room := was.ring == 0
		does(referencesTells, was.owed[op] != 0 && !was.drained &&
			(room || m.bug == referencesDropped), func(_ *referencesState, r *reader) {
			if room {
				r.ring = uint8(op)<<4 | was.owed[op]
			}
			r.owed[op] = 0
		})
		does(referencesAgain, p == 0 && m.again && !was.repeated && room && !was.drained &&
			is == 0 && was.owed[op] == 0 && was.of[op] != 0, func(_ *referencesState, r *reader) {
			r.ring, r.repeated = uint8(op)<<4|was.of[op], true
		})
	}
	if p == 0 {
		does(referencesDies, true, func(_ *referencesState, r *reader) { r.dead = true })
		does(referencesCloses, !copying, func(_ *referencesState, r *reader) {
			r.closed, r.is, r.lane = true, [2]uint8{}, pair{}
		})
	}
	does(referencesDrained, s.over && !was.drained && was.lane[0] == 0 && !copying,
		func(n *referencesState, r *reader) {
			r.drained, r.owed = true, [2]uint8{}
			for op, is := range r.is {
				if is == referenceStored && m.bug != referencesKept {
					r.is[op] = 0
				}
				if is == referenceLent && m.bug == referencesUnmapped {
					n.fault = unmapped
				}
			}
		})
}

func (m referencesModel) returnsFirst() bool {
	return m.bug == referencesAtMatch || m.bug == referencesEarly
}

// judge: in the end the piece is free, and no receiver that lives has anything of it.
func (m referencesModel) judge(s *referencesState) verdict {
	if s.fault != fine {
		return lost
	}
	for i := range s.r {
		if r := &s.r[i]; !r.dead && !r.closed && (r.lane[0] != 0 || r.is != [2]uint8{} ||
			r.owed != [2]uint8{} || s.over && !r.drained) {
			return moving
		}
	}
	if s.over || s.left == 0 && !s.user && s.idle() {
		return resting
	}
	return moving
}

// Returns that find no room, explored: the receiver says that it owes some, and sleeps; the sender
// takes what is there, and wakes it. The ring has one place; three returns are to go.
//
//	Z1 store the record   Z2 say whether more are owed   Z3 park   Z4 look for room   Z5 sleep
//	Z6 take the record: store the head   Z7 is more owed?   Z8 is it parked? wake it

type returnsModel struct{ deviant }

// Deviations.
const (
	returnsNotSaid  = "nobody says that returns are owed"
	returnsSaidLate = "it is said after the look for room"
	returnsAskFirst = "the sender asks whether returns are owed before it makes room"
	returnsNoLook   = "a receiver that owes returns looks for no room before it sleeps"
)

type returnsState struct {
	left           uint8 // returns
	tail, head     uint8 // of the ring
	said, parked   bool
	asleep         bool
	receiver, send step
	asked          bool
}

const (
	returnsStore step = iota // Z1 store the record
	returnsSay               // Z2 say whether more are owed
	returnsPark              // Z3 park
	returnsLook              // Z4 look for room
	returnsSleep             // Z5 sleep
	returnsTake              // Z6 take
	returnsAsk               // Z7 is more owed?
	returnsWake              // Z8 wake
)

func (m returnsModel) names() []string { return []string{"returnsStore", "receiver", "sender"} }

func (m returnsModel) start() returnsState {
	s := returnsState{left: 3, send: returnsTake}
	if m.bug == returnsAskFirst {
		s.send = returnsAsk
	}
	return s
}

func (m returnsModel) next(s *returnsState, x *search[returnsState]) {
	x.does(s, 0, s.receiver, !s.asleep && s.left > 0, func(n *returnsState) { m.receives(n) })
	x.does(s, 1, s.send, s.send != m.start().send || s.head != s.tail,
		func(n *returnsState) { m.takes(n) })
}

func (m returnsModel) receives(n *returnsState) {
	say := func() { n.said = n.left > 0 && m.bug != returnsNotSaid }
	room := n.tail == n.head
	switch n.receiver {
	case returnsStore:
		if n.parked = false; room {
			n.tail++
			n.left--
		}
		if n.receiver = returnsSay; n.left == 0 {
			n.said = false
		}
	case returnsSay:
		if n.receiver = returnsPark; m.bug != returnsSaidLate {
			say()
		}
	case returnsPark:
		n.parked, n.receiver = true, returnsLook
	case returnsLook:
		if n.receiver = returnsSleep; room && m.bug != returnsNoLook {
			n.receiver = returnsStore
		}
	case returnsSleep:
		if m.bug == returnsSaidLate {
			say()
		}
		n.asleep, n.receiver = true, returnsStore
	}
}

func (m returnsModel) takes(n *returnsState) {
	first := m.bug == returnsAskFirst
	switch n.send {
	case returnsTake:
		if n.head, n.send = n.tail, returnsAsk; first {
			n.send = returnsWake
		}
	case returnsAsk:
		if n.asked, n.send = n.said, returnsWake; first {
			n.send = returnsTake
		}
	case returnsWake:
		if n.send = m.start().send; n.asked && n.parked {
			n.parked, n.asleep = false, false
			n.receiver = returnsStore
		}
	}
}

// judge: all returns arrive.
func (m returnsModel) judge(s *returnsState) verdict {
	if s.left == 0 && s.head == s.tail {
		return resting
	}
	return moving
}

func (m *referencesModel) deviate(bug string) { m.bug, m.sends = bug, cmp.Or(m.sends, 2) }

var references = family{
	title: "References and loans",
	variants: []variant{
		form("two sends", referencesModel{sends: 2}),
		form("three sends", referencesModel{sends: 3}),
		form("three sends, one returned twice", referencesModel{sends: 3, again: true}),
		form("three sends, and the sender leaves", referencesModel{sends: 3, leaves: true}),
		form("returns without room", returnsModel{}),
	},
	mutants: slices.Concat(
		on("three sends", referencesAtMatch, referencesEarly, referencesSilence, referencesReuse,
			referencesDropped, referencesNoReclaim),
		on("three sends, one returned twice", referencesAnyReturn, referencesCut),
		on("three sends, and the sender leaves", referencesUnmapped, referencesKept),
		on("returns without room", returnsNotSaid, returnsSaidLate, returnsAskFirst, returnsNoLook)),
}
