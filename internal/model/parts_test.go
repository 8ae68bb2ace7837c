package model

import "slices"

// The end of a lane whose receiver has left a group, explored: both look. The sender ends the lane
// when it finds the member gone and nothing is under way there, and has another one if the member
// is back before that end was examined. The receiver examines the first to its end before it takes
// the second. Two places of the outbox and two rows are used again and again, each lane has a
// message at most, and either side may die at any step.
//
//	X1 leave: no member any more   X2 tell all senders: rev   X3 join again
//	X4 a place is filled, its number last   X5 claim a row, load rev   X6 publish a message
//	X7 look at rev, then at owner and head, and whether the member is there
//	X8 publish the end, if nothing is under way and no other end is
//	X9 the end is examined: the place is nobody's   X10 the receiver is proved dead
//	Y1 open what is claimed, head = 0; beside another lane, if it ends unused: tell that
//	Y2 owner   Y3 examine   Y4 head   Y5 rev
//	Y6 the end: head past it   Y7 rev   Y8 owner = 0   Y9 the claim is 0
//	Y10 the sender is proved dead, then the lane is looked at again

type partsModel struct {
	lanes, leaves uint8
	dies          [2]bool // the sender, the receiver
	deviant
}

// Deviations.
const (
	partsAtOnce    = "a place is used again when the end of its lane is published"
	partsAnyRev    = "whatever is told after an end says that it was examined"
	partsSecond    = "a second lane is taken before the first was examined"
	partsClaimSoon = "a row is free before the end that was in it is told"
	partsTwoEnds   = "a lane ends while the end before it is not examined"
	partsUnderWay  = "a lane ends while a message is under way, which counts as examined"
	partsTellFirst = "who leaves tells that before it has left"
	partsNoTell    = "who leaves tells nobody"
	partsKeepsRow  = "the row of a sender that died stays its own"
	partsKeepsLane = "a lane to a dead receiver keeps its place"
	partsRefused   = "a lane that ends unused is refused beside the one after it"
	partsUnlooked  = "a lane is given up at the proof of a death, with what is in it"
)

type partsPlace struct {
	id, tail, row, rev, seen uint8 // row: its number and one
	end, unused              bool
}

type partsRow struct{ claim, owner, head, rev uint8 }

type partsState struct {
	member, dead, otherDead, proved bool
	leaves, tells                   uint8
	place                           [2]partsPlace
	row                             [2]partsRow
	out, leaving, begun             uint8 // of places, and one; lanes

	in, id, at, pos, head uint8 // the row that is open, and one; its lane; its place
	adopts                uint8 // a row, and one
	dirty                 bool
	frees                 step
	last                  uint8 // lane whose message was examined last
	fault                 fault
}

const (
	partsLeave   step = iota // X1 leave
	partsTell                // X2 tell
	partsJoin                // X3 join again
	partsOpen                // Y1 head = 0
	partsOwn                 // Y2 owner
	partsExamine             // Y3 examine
	partsHead                // Y4 head
	partsRev                 // Y5 rev
	partsEndHead             // Y6 head past the end
	partsEndRev              // Y7 rev
	partsDisown              // Y8 owner = 0
	partsFree                // Y9 the claim is 0
	partsProve               // Y10 prove that the sender is dead
	partsGone                // the receiver dies
	partsFill                // X4 fill a place
	partsClaim               // X5 claim
	partsPublish             // X6 publish
	partsLook                // X7 look
	partsEnd                 // X8 publish the end
	partsAgain               // X9 the place is nobody's
	partsLearn               // X10 prove that the receiver is dead
	partsDies                // the sender dies
)

func (m partsModel) names() []string { return []string{"partsLeave", "sender", "receiver"} }

func (m partsModel) start() partsState { return partsState{member: true} }

func (m partsModel) next(s *partsState, x *search[partsState]) {
	if !s.dead {
		m.sender(s, x)
	}
	if !s.otherDead {
		m.member(s, x)
		m.receiver(s, x)
	}
}

func (m partsModel) sender(s *partsState, x *search[partsState]) {
	does := func(at step, may bool, do func(n *partsState)) { x.does(s, 0, at, may, do) }
	does(partsDies, m.dies[0], func(n *partsState) { n.dead = true })
	does(partsLearn, s.otherDead && (s.out != 0 || s.leaving != 0) && m.bug != partsKeepsLane,
		func(n *partsState) {
			n.out, n.leaving, n.place = 0, 0, [2]partsPlace{}
		})
	for i := range s.place {
		p := &s.place[i]
		does(partsFill, p.id == 0 && s.out == 0 && s.member && s.begun < m.lanes && !s.otherDead,
			func(n *partsState) {
				n.begun++
				n.place[i] = partsPlace{id: n.begun}
				n.out = uint8(i) + 1
			})
	}
	for i := range s.row {
		does(partsClaim, s.out != 0 && s.place[s.out-1].row == 0 && s.row[i].claim == 0,
			func(n *partsState) {
				p := &n.place[n.out-1]
				n.row[i].claim, p.row, p.rev = p.id, uint8(i)+1, n.row[i].rev
			})
	}
	for _, i := range [...]uint8{s.out, s.leaving} {
		if i == 0 || s.place[i-1].row == 0 {
			continue
		}
		p := &s.place[i-1]
		does(partsPublish, !p.end && p.tail == 0 && !p.unused && i == s.out,
			func(n *partsState) { n.place[i-1].tail = 1 })
		r := &s.row[p.row-1]
		does(partsLook, r.rev != p.rev, func(n *partsState) { m.looks(n, &n.place[i-1], r) })
		does(partsLook, i == s.out && !s.member && !p.unused && p.tail == 0,
			func(n *partsState) { n.place[i-1].unused = true }) // before a send
		idle := p.seen == p.tail || m.bug == partsUnderWay
		does(partsEnd, i == s.out && p.unused && idle && (s.leaving == 0 || m.bug == partsTwoEnds),
			func(n *partsState) {
				n.place[i-1].end, n.leaving, n.out = true, i, 0
				if m.bug == partsAtOnce {
					n.leaving, n.place[i-1] = 0, partsPlace{}
				}
			})
		does(partsAgain, p.end && p.seen == p.tail+1, func(n *partsState) {
			if s.last < p.id && p.tail > 0 {
				n.fault = neverRead
			}
			n.leaving, n.place[i-1] = 0, partsPlace{}
		})
	}
}

// looks is X7.
func (m partsModel) looks(n *partsState, p *partsPlace, r *partsRow) {
	p.rev = r.rev
	switch {
	case p.end && m.bug == partsAnyRev:
		p.seen = p.tail + 1
	case r.owner == p.id:
		p.seen = r.head
	case p.end: // nothing else moves rev before it has the row
		p.seen = p.tail + 1
	}
	if p.unused = p.unused || !n.member; p.seen > p.tail+1 {
		n.fault = notThere
	}
}

func (m partsModel) member(s *partsState, x *search[partsState]) {
	does := func(at step, may bool, do func(n *partsState)) { x.does(s, 1, at, may, do) }
	first := m.bug == partsTellFirst
	tell := func(n *partsState) {
		n.tells++
		for i := range n.row {
			if n.in == uint8(i)+1 && n.frees == 0 {
				n.row[i].head = n.pos
				n.row[i].rev++
			}
		}
	}
	does(partsLeave, s.member && s.leaves < m.leaves && (!first || s.tells > s.leaves),
		func(n *partsState) {
			n.member = false
			n.leaves++
		})
	does(partsTell, s.adopts == 0 && (first && s.member && s.tells == s.leaves && s.tells < m.leaves ||
		!first && s.tells < s.leaves && m.bug != partsNoTell), tell)
	does(partsJoin, !s.member && (s.tells == s.leaves || m.bug == partsNoTell),
		func(n *partsState) { n.member = true })
	does(partsGone, m.dies[1], func(n *partsState) { n.otherDead = true })
}

// has reports whether there is a record in the lane that is open.
func (s *partsState) has() bool {
	p := &s.place[s.at]
	return p.id != s.id || s.pos < p.tail || p.end
}

func (m partsModel) receiver(s *partsState, x *search[partsState]) {
	does := func(at step, may bool, do func(n *partsState)) { x.does(s, 1, at, may, do) }
	for i := range s.row {
		r := &s.row[i]
		may := s.adopts == 0 && s.frees == 0 && r.claim != 0 && s.in != uint8(i)+1
		does(partsOpen, may && (s.in == 0 || !s.has() || m.bug == partsSecond), func(n *partsState) {
			at := 0
			if n.place[1].id == r.claim {
				at = 1
			}
			p := &n.place[at]
			if p.id == r.claim && s.in != 0 && p.end && p.tail == 0 && m.bug != partsRefused {
				n.row[i].rev++
				n.row[i].claim = 0
				return
			}
			if p.id != r.claim || s.in != 0 { // who is honest is refused
				n.fault = usedByHeir
			}
			n.adopts, n.at, n.id, n.pos, n.row[i].head = uint8(i)+1, uint8(at), r.claim, 0, 0
		})
	}
	does(partsOwn, s.adopts != 0, func(n *partsState) {
		n.in, n.adopts, n.row[n.adopts-1].owner = n.adopts, 0, n.id
	})
	does(partsProve, s.dead && !s.proved, func(n *partsState) { n.proved = true })
	if s.in == 0 || s.adopts != 0 {
		return
	}
	p, r := &s.place[s.at], s.in-1
	does(partsExamine, s.frees == 0 && s.has(), func(n *partsState) {
		switch {
		case p.id != n.id:
			n.fault = freedRead
		case n.pos < p.tail:
			if n.last >= n.id {
				n.fault = messageOrder
			}
			n.pos, n.last, n.dirty = n.pos+1, n.id, true
		default:
			n.pos, n.dirty, n.frees = n.pos+1, false, partsEndHead
			if m.bug == partsClaimSoon {
				n.frees = partsDisown
			}
		}
	})
	given := s.proved && (!s.has() || m.bug == partsUnlooked) && m.bug != partsKeepsRow
	does(partsExamine, given && s.frees == 0, func(n *partsState) {
		if n.dirty = false; s.has() {
			n.fault = neverRead
		}
		n.frees = partsEndHead
	})
	does(partsHead, s.dirty, func(n *partsState) { n.dirty, n.row[r].head, n.head = false, n.pos, 1 })
	does(partsRev, s.head == 1 && s.frees == 0, func(n *partsState) {
		n.row[r].rev++
		n.head = 0
	})
	m.frees(s, does, r)
}

// frees is Y6 to Y9.
func (m partsModel) frees(s *partsState, does func(step, bool, func(n *partsState)), r uint8) {
	does(partsEndHead, s.frees == partsEndHead, func(n *partsState) {
		n.row[r].head, n.frees = n.pos, partsEndRev
	})
	does(partsEndRev, s.frees == partsEndRev, func(n *partsState) {
		n.row[r].rev++
		if n.frees, n.head = partsDisown, 0; m.bug == partsClaimSoon {
			n.frees, n.in = 0, 0
		}
	})
	does(partsDisown, s.frees == partsDisown, func(n *partsState) {
		n.row[r].owner, n.frees = 0, partsFree
	})
	does(partsFree, s.frees == partsFree, func(n *partsState) {
		if n.row[r].claim == n.id {
			n.row[r].claim = 0
		}
		if n.frees = 0; m.bug == partsClaimSoon {
			n.frees = partsEndHead
			return
		}
		n.in = 0
	})
}

// judge: each message comes, in order, and in the end no place or row is somebody's who has no use
// for it.
func (m partsModel) judge(s *partsState) verdict {
	places, rows := 0, 0
	for i := range s.place {
		places += int(min(s.place[i].id, 1))
		rows += int(min(s.row[i].claim, 1))
	}
	uses := int(min(s.out, 1))
	switch {
	case s.fault != fine:
		return lost
	case s.dead && s.otherDead:
		return resting
	case s.dead && rows == 0 && s.in == 0, s.otherDead && places == 0:
		return resting
	case s.dead, s.otherDead, s.adopts != 0, s.frees != 0, s.dirty, s.head != 0,
		!s.member && (places > 0 || rows > 0):
		return moving
	case places == uses && rows == uses && (uses == 0 || s.in != 0) && s.leaving == 0 &&
		(uses == 0 || s.place[s.out-1].seen == 1):
		return resting
	}
	return moving
}

var parts = family{
	title: "Lanes to members that leave",
	variants: []variant{
		form("two lanes, left once", partsModel{lanes: 2, leaves: 1}),
		form("four lanes, left twice", partsModel{lanes: 4, leaves: 2}),
		form("three lanes, left twice, the sender may die",
			partsModel{lanes: 3, leaves: 2, dies: [2]bool{true, false}}),
		form("three lanes, left twice, the receiver may die",
			partsModel{lanes: 3, leaves: 2, dies: [2]bool{false, true}}),
		form("three lanes, left twice, both may die",
			partsModel{lanes: 3, leaves: 2, dies: [2]bool{true, true}}),
	},
	mutants: slices.Concat(
		on("two lanes, left once", partsAtOnce, partsSecond, partsRefused),
		on("four lanes, left twice", partsAnyRev, partsClaimSoon, partsTwoEnds),
		on("three lanes, left twice, the sender may die", partsKeepsRow, partsUnlooked),
		on("three lanes, left twice, the receiver may die", partsKeepsLane)),
	// A send looks too, and the end stands behind what is under way.
	spare: on("two lanes, left once", partsTellFirst, partsNoTell, partsUnderWay),
}
