package model

import "slices"

// Long messages, explored: two sends of one sender, one after the other and with one operation id,
// of two segments each. Both may be cancelled, a receive may be, a message may be discarded, and
// either side may close or die at any step. The lane and the control rings have two places; one
// slot of the lane is kept for FIN. Each send has one final word {generation, how it ended}.
//
//	X1 header in the lane   X2 clear, owed until it fits   X3 segments, through the lane's own chunk
//	X4 the word, when the last segment is placed   X5 a cancel is a record in the control ring
//	X6 FIN, or a death that was proved: examine what was published, then end receives and headers
//	X7 the receiver is gone: read the word, then end the send

type transfersModel struct {
	deaths bool // and closing before the end
	deviant
}

// Deviations.
const (
	transfersCancelAny  = "a cancel names no generation"
	transfersClearAny   = "a clear names no generation"
	transfersClearAlone = "a clear names no generation, and a sender ends a send by itself"
	transfersEndAlone   = "a sender ends a published send by its cancel"
	transfersEndFirst   = "receives end at the proof of death, before the lane is drained"
	transfersKeep       = "headers of a sender that is gone stay"
	transfersWordEarly  = "the word is written before the last segment is placed"
)

type transfersState struct {
	// The sender's, the send at hand by its generation.
	at, is, segments, left uint8
	chunk                  bool
	cancel                 uint8 // 1 is owed, 2 is sent
	ends                   [3]uint8
	closed, dead           bool
	knows                  bool // that the receiver is gone

	lane, control, reply pair // control is from the sender, reply is from the receiver
	word                 uint8

	// The receiver's, by generation, and its receives.
	message, by, placed  [3]uint8
	receive, length      [2]uint8
	clear, ack           uint8 // generations owed
	proved, drained      bool
	discarded, unposted  bool
	otherDead, otherGone bool // otherGone: it has closed
	fault                fault
}

// Records and words are a kind and a generation.
const (
	transfersHeader = (1 + iota) << 4
	transfersFirst
	transfersSecond
	transfersFin
	transfersRecord // in a control ring: a cancel, or a clear
)

// States beyond those of a message and a receive.
const (
	dropped = 16
	failed  = 17
)

const (
	transfersSend    step = iota // X1 header
	transfersCancel              // X5 cancel
	transfersTell                // X5 the record of a cancel
	transfersCleared             // X2 examine a clear
	transfersSegment             // X3 segment
	transfersWord                // X4 read the word
	transfersLearn               // X7 the receiver is gone
	transfersClose               // X6 FIN
	transfersDies                // the sender dies
	transfersPost                // post a receive
	transfersUnpost              // cancel a receive
	transfersDiscard             // discard
	transfersClear               // X2 clear
	transfersAck                 // X4 the word
	transfersControl             // X5 examine a cancel
	transfersExamine             // examine the lane
	transfersProve               // X6 prove that the sender is dead
	transfersDrained             // X6 nothing is left
	transfersGone                // the receiver dies
	transfersLeaves              // the receiver closes
)

func (m transfersModel) names() []string { return []string{"transfersSend", "sender", "receiver"} }

func (m transfersModel) start() transfersState { return transfersState{left: 2} }

// transfer is the steps from a state.
type transfer struct {
	m transfersModel
	s *transfersState
	x *search[transfersState]
}

func (t transfer) does(at step, may bool, do func(n *transfersState)) {
	who := uint8(0)
	if at >= transfersPost {
		who = 1
	}
	t.x.does(t.s, who, at, may, do)
}

// end ends the send at hand.
func (t transfer) end(n *transfersState, how uint8) {
	g := n.at
	switch has := n.message[g]; {
	case n.ends[g] != 0:
		n.fault = endedTwice
	case how == delivered && has != delivered:
		n.fault = notThere
	case how == withdrawn && (has == matched || has == delivered) && t.m.bug != transfersClearAlone:
		n.fault = thereAfterAll
	}
	n.ends[g] = how
	n.at, n.is, n.cancel, n.segments = 0, 0, 0, 0
}

func (m transfersModel) next(s *transfersState, x *search[transfersState]) {
	t := transfer{m, s, x}
	if !s.dead && !s.closed {
		t.sender()
	}
	if !s.otherDead && !s.otherGone {
		t.receiver()
		t.leave()
	}
}

func (t transfer) sender() {
	s, m := t.s, t.m
	t.does(transfersSend, s.at == 0 && s.left > 0 && !s.knows && s.lane[1] == 0,
		func(n *transfersState) {
			n.at, n.is = 3-s.left, opened
			n.left--
			n.lane.push(transfersHeader | n.at)
		})
	t.does(transfersCancel, s.at == 1 && s.cancel == 0, func(n *transfersState) {
		n.cancel = 1
		if m.bug == transfersEndAlone || m.bug == transfersClearAlone {
			t.end(n, withdrawn)
		}
	})
	t.does(transfersTell, s.cancel == 1 && s.control[1] == 0, func(n *transfersState) {
		n.cancel = 2
		n.control.push(transfersRecord | s.at)
	})
	t.does(transfersCleared, s.reply[0] != 0, func(n *transfersState) {
		g := n.reply.pop() &^ transfersRecord
		any := m.bug == transfersClearAny || m.bug == transfersClearAlone
		if s.is == opened && (g == s.at || any) {
			if n.is = cleared; g != s.at {
				n.fault = otherOperation
			}
		}
	})
	t.does(transfersSegment, s.is == cleared && s.segments < 2 && !s.chunk && s.lane[1] == 0,
		func(n *transfersState) {
			n.chunk = true
			n.segments++
			n.lane.push(transfersFirst + s.segments<<4 | s.at)
		})
	mine := s.at != 0 && s.word&15 == s.at
	t.does(transfersWord, mine, func(n *transfersState) { t.end(n, s.word>>4) })
	t.does(transfersLearn, (s.otherDead || s.otherGone) && !s.knows, func(n *transfersState) {
		n.knows, n.chunk = true, false
		switch {
		case mine:
			t.end(n, s.word>>4)
		case s.at != 0:
			t.end(n, failed)
		}
	})
	t.does(transfersClose, (m.deaths || s.at == 0 && s.left == 0) && (s.lane[1] == 0 || s.knows),
		func(n *transfersState) {
			n.lane.push(transfersFin)
			if n.closed = true; s.at != 0 {
				t.end(n, failed)
			}
		})
	t.does(transfersDies, m.deaths, func(n *transfersState) { n.dead = true })
}

// finish ends a receive.
func (n *transfersState) finish(r, how, length uint8) {
	if n.receive[r] >= received {
		n.fault = endedTwice
	}
	n.receive[r], n.length[r] = how, length
}

// match gives what is stored to the first receive that is posted.
func (t transfer) match(n *transfersState) {
	for g := uint8(1); g <= 2; g++ {
		r := slices.Index(n.receive[:], posted)
		if n.message[g] != stored || r < 0 {
			continue
		}
		n.message[g], n.by[g], n.receive[r], n.clear = matched, uint8(r), taken, g
		if t.m.bug == transfersKeep && (t.s.drained || t.s.proved && t.s.lane[0] == 0) {
			n.fault = senderGone
		}
	}
}

// orphan ends what the sender left: it is gone, and the lane is drained.
func (t transfer) orphan(n *transfersState) {
	for g := uint8(1); g <= 2; g++ {
		switch has := n.message[g]; {
		case (has == stored || has == forewarned) && t.m.bug != transfersKeep:
			n.message[g] = dropped
		case has == matched:
			n.finish(n.by[g], failed, n.placed[g])
			n.message[g] = dropped
		}
	}
	n.clear = 0
}

func (t transfer) receiver() {
	s, m := t.s, t.m
	for r := range s.receive {
		t.does(transfersPost, s.receive[r] == 0 && (r == 0 || s.receive[0] != 0),
			func(n *transfersState) {
				n.receive[r] = posted
				t.match(n)
			})
	}
	t.does(transfersUnpost, s.receive[0] == posted && !s.unposted, func(n *transfersState) {
		n.unposted = true
		n.finish(0, canceled, 0)
	})
	for g := uint8(1); g <= 2; g++ {
		t.does(transfersDiscard, !s.discarded && s.message[g] == stored,
			func(n *transfersState) {
				n.discarded, n.message[g], n.word = true, discarded, discarded<<4|g
			})
	}
	t.does(transfersClear, s.clear != 0 && s.reply[1] == 0, func(n *transfersState) {
		n.clear = 0
		n.reply.push(transfersRecord | s.clear)
	})
	t.does(transfersAck, s.ack != 0, func(n *transfersState) {
		n.word, n.ack = delivered<<4|s.ack, 0
	})
	t.does(transfersControl, s.control[0] != 0, func(n *transfersState) {
		named := n.control.pop() &^ transfersRecord
		g := named
		if i := slices.Index(s.message[:], stored); i > 0 && m.bug == transfersCancelAny {
			g = uint8(i) // the id names whatever is there
		}
		switch s.message[g] {
		case stored:
			if n.message[g], n.word = withdrawn, withdrawn<<4|g; g != named {
				n.fault = otherOperation
			}
		case 0:
			n.message[g] = forewarned
		}
	})
	t.does(transfersExamine, s.lane[0] != 0 && s.ack == 0 &&
		(m.bug != transfersEndFirst || !s.drained), t.examine)
}

func (t transfer) examine(n *transfersState) {
	record := n.lane.pop()
	g := record & 15
	switch {
	case record == transfersFin:
		n.drained = true
		t.orphan(n)
	case record&^15 != transfersHeader:
		if n.chunk = false; n.message[g] != matched {
			break
		}
		n.placed[g]++
		if t.m.bug == transfersWordEarly && n.placed[g] == 1 {
			n.word = delivered<<4 | g
		}
		if n.placed[g] == 2 {
			n.message[g], n.ack = delivered, g
			n.finish(n.by[g], received, 2)
		}
	case n.message[g] == forewarned:
		n.message[g], n.word = withdrawn, withdrawn<<4|g
	default:
		n.message[g] = stored
		t.match(n)
	}
}

// leave is death on either side.
func (t transfer) leave() {
	s, m := t.s, t.m
	t.does(transfersProve, s.dead && !s.proved && !s.drained, func(n *transfersState) {
		if n.proved = true; m.bug != transfersEndFirst {
			return
		}
		t.orphan(n)
		for _, record := range s.lane { // what lies there was published
			data := record&^15 == transfersFirst || record&^15 == transfersSecond
			if data && n.message[record&15] == dropped {
				n.fault = wrongLength
			}
		}
	})
	t.does(transfersDrained, s.proved && s.lane[0] == 0 && !s.drained && s.ack == 0,
		func(n *transfersState) {
			t.orphan(n)
			n.drained = true
		})
	t.does(transfersGone, m.deaths, func(n *transfersState) { n.otherDead = true })
	t.does(transfersLeaves, m.deaths && s.ack == 0, func(n *transfersState) {
		n.otherGone = true
		for r, is := range s.receive {
			if is == posted || is == taken {
				n.finish(uint8(r), canceled, 0)
			}
		}
		for g, has := range s.message {
			if has == stored || has == matched {
				n.message[g] = dropped
			}
		}
	})
}

// judge: in the end the sender is gone, nothing hangs in a transfer, and no header is left of it.
func (m transfersModel) judge(s *transfersState) verdict {
	gone := s.otherDead || s.otherGone
	switch {
	case s.fault != fine:
		return lost
	case !s.dead && !s.closed, !s.dead && s.at != 0,
		!gone && (slices.Contains(s.receive[:], taken) || slices.Contains(s.message[:], stored)),
		!gone && s.lane[0] != 0, !s.dead && !gone && s.chunk:
		return moving
	}
	return resting
}

// A write that the target executes goes through the control ring, a send through the lane. Each
// header carries the tail of the other ring at its publish.

type overtakeModel struct{ deviant }

type overtakeState struct {
	begun      uint8
	tail, head [2]uint8 // of the control ring, of the lane
	other      [4]uint8 // what a header carries
	done       [4]bool
	overtaken  bool
}

// Deviations.
const (
	overtakeSends  = "a send carries no tail, and the control ring comes first"
	overtakeWrites = "a write carries no tail"
)

const (
	overtakePublish step = iota // write, or send
	overtakeExamine             // examine either ring
)

func (m overtakeModel) names() []string { return []string{"overtakePublish", "sender", "receiver"} }

func (m overtakeModel) start() (s overtakeState) { return s }

func (m overtakeModel) next(s *overtakeState, x *search[overtakeState]) {
	if s.begun < 4 {
		x.by(0, overtakePublish)
		n := x.fork(s)
		n.other[s.begun] = s.tail[1-s.begun%2]
		n.tail[s.begun%2]++
		n.begun++
		x.emit(n)
	}
	for ring, carries := range [2]bool{m.bug != overtakeWrites, m.bug != overtakeSends} {
		k := 2*s.head[ring] + uint8(ring)
		if s.head[ring] == s.tail[ring] || carries && s.head[1-ring] < s.other[k] {
			continue
		}
		x.by(1, overtakeExamine)
		n := x.fork(s)
		n.head[ring]++
		n.overtaken = slices.Contains(s.done[:k], false)
		n.done[k] = true
		x.emit(n)
	}
}

func (m overtakeModel) judge(s *overtakeState) verdict {
	switch {
	case s.overtaken:
		return lost
	case s.done == [4]bool{true, true, true, true}:
		return resting
	}
	return moving
}

// Requests go both ways through control rings of two places, and examining one answers it.

type repliesModel struct {
	inRing bool // a reply is a record too; a request reserved its place
	deviant
}

const repliesUnreserved = "a reply takes the place that a request may have"

type repliesState struct {
	left, open [2]uint8
	ring       [2]pair // to the other: 1 is a request, 2 a reply
}

const (
	repliesRequest step = iota // request
	repliesExamine             // examine, and answer
)

func (m repliesModel) names() []string { return []string{"repliesRequest", "one", "other"} }

func (m repliesModel) start() repliesState { return repliesState{left: [2]uint8{4, 4}} }

func (m repliesModel) next(s *repliesState, x *search[repliesState]) {
	for i := range s.ring {
		x.by(uint8(i), repliesRequest)
		reserves := m.inRing && m.bug != repliesUnreserved
		if n := x.fork(s); s.left[i] > 0 && (!reserves || s.open[i] == 0) && n.ring[i].push(1) {
			n.left[i]--
			n.open[i]++
			x.emit(n)
		}
		x.by(uint8(i), repliesExamine)
		n := x.fork(s)
		switch record := n.ring[1-i].pop(); {
		case record == 0:
		case record == 2:
			n.open[i]--
			x.emit(n)
		case !m.inRing:
			n.open[1-i]-- // a word of the one who asked
			x.emit(n)
		case n.ring[i].push(2):
			x.emit(n)
		}
	}
}

func (m repliesModel) judge(s *repliesState) verdict {
	if s.left == [2]uint8{} && s.open == [2]uint8{} {
		return resting
	}
	return moving
}

var transfers = family{
	title: "Transfers",
	variants: []variant{
		form("two long ones", transfersModel{}),
		form("two long ones, and deaths", transfersModel{deaths: true}),
		form("writes and sends through two rings", overtakeModel{}),
		form("replies that are words", repliesModel{}),
		form("replies in the ring", repliesModel{inRing: true}),
	},
	mutants: slices.Concat(
		on("two long ones, and deaths", transfersCancelAny, transfersClearAlone, transfersEndAlone,
			transfersEndFirst, transfersKeep, transfersWordEarly),
		on("writes and sends through two rings", overtakeSends, overtakeWrites),
		on("replies in the ring", repliesUnreserved)),
	spare: on("two long ones, and deaths", transfersClearAny),
}
