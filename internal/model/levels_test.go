package model

import (
	"math/bits"
	"slices"
)

// What a sender hears of its messages, explored: that they are in the receiver's memory, by the
// head of the lane, or that they have their receives, by a bit of one word each, or by being asked
// for the bytes. The receiver matches in any order, or drops; it tells by words, and may die
// between any two. A lane has two slots. A send with a fence, and those behind it, wait for those
// before it; one of level match waits for their receives too, which the grants tell.
//
//	V1 a send is accepted   V2 it goes: with a bit, or by its header if there is none
//	V3 look at the row: rev, or the proof of a death, then V4 head, V5 the word of matches; complete
//	V6 the bytes of what was asked for   V7 the dead was looked at: fail the rest
//	V8 the row is given to the lane: the word is 0
//	V9 examine   V10 match, or drop: the bit is to change   V11 the bytes are in the buffer
//	V12 tell: head   V13 the word   V14 rev

type levelsModel struct {
	sends []levelsSend
	bits  int
	last  bool // the last message is wanted first
	dies  bool
	deviant
}

type levelsSend struct{ match, fence bool }

// Deviations.
const (
	levelsAtExamine = "a match is told when a message is examined"
	levelsAtOnce    = "a match is told before the bytes are in the buffer"
	levelsRevFirst  = "rev is stored before the words"
	levelsNotZero   = "a row has the word of a former lane"
	levelsDeadRev   = "the row of a dead receiver is looked at if rev has moved"
	levelsBitSooner = "a bit is used again when its message was examined"
	levelsSilent    = "nothing is told of a message that is dropped"
	levelsNoHeader  = "who has no bit waits for one"
	levelsSets      = "a bit is set at a match, and not changed"
	levelsPasses    = "what is behind a fence goes before it"
	levelsExamined  = "a fence waits until all before it is examined"
	levelsOwn       = "a fence of level match waits for no matches of others"
	levelsNoProof   = "a death is proved after the words were loaded"
)

// What lies in a slot, above the number of its send.
const (
	levelsNow = (1 + iota) << 4
	levelsHeader
	levelsBytes
	levelsKind = 7 << 4
)

// Where a message is at its receiver.
const (
	levelsStored = 1 + iota
	levelsMatched
	levelsPlaced
	levelsDropped
)

// How a send ended; opened before.
const (
	levelsDone   = ended
	levelsFailed = ended + 1
)

type levelsRow struct{ head, granted, word, clear, rev uint8 }

type levelsState struct {
	accepted, gone uint8 // sends
	lane           [8]uint8
	bit            [4]uint8 // of each send, one more
	send, at       [4]uint8
	header         [4]bool

	now           levelsRow // what the receiver is to tell
	row           levelsRow // what it told
	tells         step
	adopted, dead bool
	asked         bool // it had something to say in the word

	look             step
	proved           bool
	read             levelsRow
	sent, seen, rev  uint8
	open, heard, ask uint8
	atOnce, granted  uint8 // sends that went at once, and those of them that have receives
	fault            fault
}

const (
	levelsAccepts  step = iota // V1 a send is accepted
	levelsGoes                 // V2 it goes
	levelsLooks                // V3 rev
	levelsHead                 // V4 head
	levelsWord                 // V5 the word, complete
	levelsSegment              // V6 bytes
	levelsFails                // V7 fail the rest
	levelsAdopts               // V8 the row is given
	levelsExamine              // V9 examine
	levelsMatch                // V10 match
	levelsDrop                 // V10 drop
	levelsPlace                // V11 place
	levelsTellHead             // V12 head
	levelsTellWord             // V13 the word
	levelsTellRev              // V14 rev
	levelsDies                 // dies
)

func (m levelsModel) names() []string { return []string{"levelsAccepts", "sender", "receiver"} }

func (m levelsModel) start() levelsState {
	return levelsState{look: levelsLooks, tells: levelsTellHead, row: levelsRow{word: 1}}
}

func (m levelsModel) next(s *levelsState, x *search[levelsState]) {
	m.sender(s, x)
	if !s.dead {
		m.receiver(s, x)
	}
}

func (m levelsModel) sender(s *levelsState, x *search[levelsState]) {
	does := func(at step, may bool, do func(n *levelsState)) { x.does(s, 0, at, may, do) }
	does(levelsAccepts, int(s.accepted) < len(m.sends), func(n *levelsState) { n.accepted++ })
	room := s.sent-s.seen < flowSlots && !s.failed()
	for k := s.gone; k < s.accepted; k++ {
		if k == s.gone || m.bug == levelsPasses {
			does(levelsGoes, room && s.send[k] == 0 && m.mayGo(s, k),
				func(n *levelsState) { m.goes(n, k) })
		}
	}
	moved := s.row.rev != s.rev || s.dead && m.bug != levelsDeadRev
	does(levelsLooks, s.look == levelsLooks && s.adopted && moved, func(n *levelsState) {
		n.proved = n.dead && m.bug != levelsNoProof
		n.rev, n.look = n.row.rev, levelsHead
	})
	does(levelsHead, s.look == levelsHead, func(n *levelsState) {
		n.read, n.granted, n.look = n.row, n.row.granted, levelsWord
	})
	does(levelsWord, s.look == levelsWord, func(n *levelsState) {
		n.proved = n.proved || m.bug == levelsNoProof && n.dead
		m.completes(n)
	})
	for k := range s.send {
		does(levelsSegment, s.ask&(1<<k) != 0 && room, func(n *levelsState) {
			n.ask &^= 1 << k
			n.lane[n.sent] = levelsBytes | uint8(k)
			n.sent++
		})
	}
	proved := s.proved || s.dead && (!s.adopted || m.bug == levelsDeadRev && !moved)
	does(levelsFails, proved && s.look == levelsLooks && !s.finished(m), func(n *levelsState) {
		for k := range m.sends {
			if n.send[k] >= ended {
				continue
			}
			if n.told(m, uint8(k)) {
				n.fault = thereAfterAll
			}
			n.send[k] = levelsFailed
		}
		n.accepted, n.gone = uint8(len(m.sends)), uint8(len(m.sends))
	})
}

// mayGo: a fence waits until all before it has ended, and a match for a bit in one mutant.
func (m levelsModel) mayGo(s *levelsState, k uint8) bool {
	o := m.sends[k]
	if m.bug == levelsNoHeader && o.match && m.free(s) < 0 {
		return false
	}
	if o.fence && o.match && s.granted < s.atOnce && m.bug != levelsOwn {
		return false
	}
	return !o.fence || !slices.ContainsFunc(s.send[:k], func(is uint8) bool {
		return is < ended
	}) || m.bug == levelsExamined && s.seen == s.sent
}

func (m levelsModel) free(s *levelsState) int {
	if i := bits.TrailingZeros8(^s.open); i < m.bits {
		return i
	}
	return -1
}

func (m levelsModel) goes(n *levelsState, k uint8) {
	for fenced := range m.sends[:k+1] { // nothing before a fence is open
		for j := range fenced {
			if m.sends[fenced].fence && n.send[j] < ended {
				n.fault = messageOrder
			}
		}
	}
	n.send[k] = opened
	record := levelsNow | k
	if m.sends[k].match {
		if i := m.free(n); i >= 0 {
			n.open |= 1 << i
			n.bit[k] = uint8(i) + 1
		} else {
			record, n.header[k] = levelsHeader|k, true
		}
	}
	if !n.header[k] {
		n.atOnce++
	}
	n.lane[n.sent] = record
	n.sent++
	for n.gone < n.accepted && n.send[n.gone] != 0 {
		n.gone++
	}
}

// completes is what follows when head and word are loaded. The word is that of now.
func (m levelsModel) completes(n *levelsState) {
	n.look = levelsLooks
	for ; n.seen < n.read.head; n.seen++ {
		switch k := n.lane[n.seen] &^ levelsKind; {
		case n.lane[n.seen]&levelsKind == levelsBytes,
			n.lane[n.seen]&levelsKind == levelsNow && !m.sends[k].match:
			m.ends(n, k)
		case m.bug == levelsBitSooner && n.bit[k] > 0:
			n.open &^= 1 << (n.bit[k] - 1)
		}
	}
	done := (n.row.word ^ n.heard) & n.open
	n.heard = n.row.word
	n.open &^= done
	for k := range m.sends {
		if b := n.bit[k]; b > 0 && done&(1<<(b-1)) != 0 && n.send[k] == opened {
			m.ends(n, uint8(k))
		}
		if n.row.clear&(1<<k) != 0 && n.send[k] == opened && n.header[k] {
			n.send[k] = cleared
			n.ask |= 1 << k
		}
	}
}

// ends: a send succeeds.
func (m levelsModel) ends(n *levelsState, k uint8) {
	if n.send[k] >= ended {
		n.fault = endedTwice
	}
	if is := n.at[k]; is == 0 || m.sends[k].match && is < levelsPlaced {
		n.fault = notThere
	}
	for _, is := range n.at[:k] {
		if o := m.sends[k]; o.fence && o.match && is < levelsPlaced {
			n.fault = notThere
		}
	}
	n.send[k] = levelsDone
}

// told says whether the row says that a send has succeeded.
func (n *levelsState) told(m levelsModel, k uint8) bool {
	for i := range n.row.head {
		switch r := n.lane[i]; {
		case r&^levelsKind != k:
		case r&levelsKind == levelsBytes, r&levelsKind == levelsNow && !m.sends[k].match:
			return true
		}
	}
	b := n.bit[k]
	return n.adopted && b > 0 && (n.row.word^n.heard)&n.open&(1<<(b-1)) != 0
}

func (m levelsModel) receiver(s *levelsState, x *search[levelsState]) {
	does := func(at step, may bool, do func(n *levelsState)) { x.does(s, 1, at, may, do) }
	does(levelsAdopts, !s.adopted && s.sent > 0, func(n *levelsState) {
		if n.adopted = true; m.bug != levelsNotZero {
			n.row.word = 0
		}
	})
	does(levelsDies, m.dies, func(n *levelsState) { n.dead = true })
	placing := slices.Contains(s.at[:], levelsMatched)
	acts := s.adopted && s.tells == levelsTellHead && !placing
	does(levelsExamine, acts && s.now.head < s.sent, func(n *levelsState) {
		record := n.lane[n.now.head]
		n.now.head++
		if k := record &^ levelsKind; record&levelsKind != levelsBytes {
			if n.at[k] = levelsStored; m.bug == levelsAtExamine {
				m.answers(n, k)
			}
		} else if n.at[k] != levelsDropped {
			n.at[k] = levelsPlaced
		}
	})
	for k, is := range s.at {
		k := uint8(k)
		wanted := !m.last || int(k) == len(m.sends)-1 || s.at[len(m.sends)-1] > levelsStored
		may := acts && is == levelsStored && wanted && s.now.clear&(1<<k) == 0
		does(levelsMatch, may, func(n *levelsState) {
			if n.header[k] {
				n.now.clear |= 1 << k
				return
			}
			n.now.granted++
			if n.at[k] = levelsMatched; m.bug != levelsAtExamine {
				m.answers(n, k)
			}
		})
		does(levelsDrop, may, func(n *levelsState) {
			n.at[k] = levelsDropped
			if n.header[k] {
				n.now.clear |= 1 << k
				return
			}
			if n.now.granted++; m.bug != levelsAtExamine && m.bug != levelsSilent {
				m.answers(n, k)
			}
		})
		does(levelsPlace, is == levelsMatched, func(n *levelsState) { n.at[k] = levelsPlaced })
	}
	m.tell(s, does, acts)
}

// answers: the bit of a message is to change.
func (m levelsModel) answers(n *levelsState, k uint8) {
	b := n.bit[k]
	if b == 0 {
		return
	}
	n.asked = true
	if n.now.word ^= 1 << (b - 1); m.bug == levelsSets {
		n.now.word |= 1 << (b - 1)
	}
	if m.bug == levelsAtOnce {
		n.row.word = n.now.word
		n.row.rev++
		n.now.rev++
	}
}

func (m levelsModel) tell(s *levelsState, does func(step, bool, func(n *levelsState)), acts bool) {
	rev := func(n *levelsState) {
		n.now.rev++
		n.row.rev = n.now.rev
	}
	told := s.row
	if !s.asked {
		told.word = 0
	}
	dirty := s.now != told
	does(levelsTellHead, acts && dirty, func(n *levelsState) {
		n.tells = levelsTellWord
		if m.bug == levelsRevFirst {
			rev(n)
		}
		n.row.head, n.row.granted, n.row.clear = n.now.head, n.now.granted, n.now.clear
	})
	does(levelsTellWord, s.tells == levelsTellWord, func(n *levelsState) {
		if n.tells = levelsTellRev; n.asked {
			n.row.word = n.now.word
		}
	})
	does(levelsTellRev, s.tells == levelsTellRev, func(n *levelsState) {
		if n.tells = levelsTellHead; m.bug != levelsRevFirst {
			rev(n)
		}
	})
}

func (n *levelsState) failed() bool { return slices.Contains(n.send[:], levelsFailed) }

// finished: every send has ended.
func (n *levelsState) finished(m levelsModel) bool {
	return !slices.ContainsFunc(n.send[:len(m.sends)], func(is uint8) bool { return is < ended })
}

func (m levelsModel) judge(s *levelsState) verdict {
	switch {
	case s.fault != fine:
		return lost
	case s.finished(m):
		return resting
	}
	return moving
}

var levels = family{
	title: "Levels and fences",
	variants: []variant{
		form("three, each at its own time", levelsModel{bits: 2,
			sends: []levelsSend{{match: true}, {}, {match: true}}}),
		form("three, one bit, and the receiver dies", levelsModel{bits: 1, dies: true,
			sends: []levelsSend{{match: true}, {match: true}, {}}}),
		form("the last is wanted first", levelsModel{bits: 1, last: true,
			sends: []levelsSend{{match: true}, {match: true}, {match: true}}}),
		form("a fence, and the receiver dies", levelsModel{bits: 1, dies: true,
			sends: []levelsSend{{match: true}, {}, {fence: true}, {match: true}}}),
		form("a fence of level match", levelsModel{bits: 2,
			sends: []levelsSend{{match: true}, {}, {match: true, fence: true}, {}}}),
	},
	mutants: slices.Concat(
		on("three, each at its own time", levelsAtExamine, levelsAtOnce, levelsRevFirst,
			levelsNotZero, levelsSilent, levelsSets),
		on("three, one bit, and the receiver dies", levelsDeadRev, levelsBitSooner,
			levelsNoProof),
		on("the last is wanted first", levelsNoHeader),
		on("a fence, and the receiver dies", levelsPasses, levelsExamined),
		on("a fence of level match", levelsOwn)),
}
