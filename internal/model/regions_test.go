package model

import "slices"

// A region that is revoked and used for something else, explored: an initiator copies into it by
// itself, so its target must know when the last copy ended. Two threads of one initiator and one of
// another have a word each; stores of words wait in a buffer of their processor, and what a
// non-temporal copy wrote may reach memory after later stores. Any process may die.
//
//	G1 publish: the word names the region   G2 fence   G3 check the generation   G4 copy
//	G5 a store fence if the copy was non-temporal   G6 clear the word
//	H1 the target moves the generation   H2 fence, or a barrier that reaches all   H3 scan the words:
//	only a death skips one   H4 use the region again
//	D1 it clears the word of one that is dead   D2 the row is the next one's, who has its word then

type regionsModel struct {
	streams bool // copies are non-temporal
	barrier bool // the target pays for the initiators' order
	heirs   bool // the row of a dead one has another one then
	deviant
}

// Deviations.
const (
	regionsNoScan      = "used again without a scan"
	regionsNoFence     = "an initiator runs no fence"
	regionsNoFenceHere = "the target runs no fence"
	regionsCheckFirst  = "checked before published"
	regionsScanFirst   = "scanned before the generation moves"
	regionsImpatient   = "who stands still is taken for dead"
	regionsSharedWord  = "two threads share a word"
	regionsNoStored    = "a non-temporal copy without a store fence before the clear"
	regionsNoCheck     = "the generation is not checked again"
	regionsLeft        = "a word of the dead is left to the next one of its row"
	regionsLate        = "a word of the dead is cleared when the next one has the row"
)

type initiator struct {
	word     bool
	buffer   [2]uint8 // stores of the word, the oldest first: regionsSet, regionsCleared
	at       step
	streamed bool // what it wrote has not reached memory
	dead     bool
	heir     bool // of one that died
	late     bool // its word will be cleared by the target
}

// Stores of a word.
const (
	regionsSet = 1 + iota
	regionsCleared
)

type regionsState struct {
	by            [3]initiator
	moved         bool // the generation
	moving        bool // it waits in the buffer
	target        step
	scanned       uint8
	again, broken bool
}

const (
	regionsPublish step = iota // G1 publish
	regionsFence               // G2 fence
	regionsCheck               // G3 check
	regionsCopy                // G4 copy
	regionsCopies              // G4 the copy goes on
	regionsStored              // G5 store fence
	regionsClear               // G6 clear
	regionsEnd                 // has ended
	regionsMove                // H1 move the generation
	regionsReach               // H2 fence
	regionsScan                // H3 scan
	regionsUse                 // H4 use it again
	regionsUsed                // has used it
	regionsVisible             // a store becomes visible
	regionsArrives             // what was copied arrives
	regionsDies                // dies
	regionsIdle                // D2 the next one has the row, and reaches nothing
	regionsHeir                // D2 the next one has the row
	regionsForget              // D1 clear the word of the dead
)

func (m regionsModel) names() []string {
	return []string{"regionsPublish", "thread 0", "thread 1", "other", "target"}
}

func (m regionsModel) start() regionsState { return regionsState{target: regionsMove} }

// visible carries the oldest store of a thread out.
func (m regionsModel) visible(n *regionsState, i int) {
	b := &n.by[i]
	if i == 1 && m.bug == regionsSharedWord {
		n.by[0].word = b.buffer[0] == regionsSet
	} else {
		b.word = b.buffer[0] == regionsSet
	}
	b.buffer = [2]uint8{b.buffer[1]}
}

func (m regionsModel) next(s *regionsState, x *search[regionsState]) {
	for i := range s.by {
		b := &s.by[i]
		if m.heirs && i == 2 {
			m.inherit(s, x, b)
		}
		if b.dead {
			continue
		}
		does := func(at step, do func(n *regionsState, b *initiator)) {
			x.does(s, uint8(i), at, true, func(n *regionsState) { do(n, &n.by[i]) })
		}
		if b.buffer[0] != 0 {
			does(regionsVisible, func(n *regionsState, _ *initiator) { m.visible(n, i) })
		}
		if b.streamed {
			does(regionsArrives, func(n *regionsState, b *initiator) {
				b.streamed, n.broken = false, s.again
			})
		}
		if i != 1 && !b.heir { // the second thread dies with the first, and one who stands may not
			does(regionsDies, func(n *regionsState, b *initiator) {
				b.dead, b.buffer, b.streamed = true, [2]uint8{}, false
				if other := &n.by[1]; i == 0 {
					other.dead, other.buffer, other.streamed = true, [2]uint8{}, false
				}
			})
		}
		if m.ready(b) {
			does(b.at, func(n *regionsState, b *initiator) { m.step(n, b) })
		}
	}
	x.does(s, 3, regionsVisible, s.moving, func(n *regionsState) { n.moving, n.moved = false, true })
	x.by(3, s.target)
	if n := x.fork(s); m.aim(n) {
		x.emit(n)
	}
}

// inherit has the row of one that died be another one's, who comes to use it or does not.
func (m regionsModel) inherit(s *regionsState, x *search[regionsState], b *initiator) {
	heir := initiator{heir: true, word: b.word && m.bug == regionsLeft, late: m.bug == regionsLate}
	x.does(s, 3, regionsHeir, b.dead && !b.heir, func(n *regionsState) { n.by[2] = heir })
	x.does(s, 3, regionsIdle, b.dead && !b.heir, func(n *regionsState) {
		n.by[2], n.by[2].at = heir, regionsEnd
	})
	x.does(s, 3, regionsForget, b.late, func(n *regionsState) {
		n.by[2].word, n.by[2].late = false, false
	})
}

// ready: a fence ends when the buffer is empty, a store fence when the copy has arrived.
func (m regionsModel) ready(b *initiator) bool {
	switch b.at {
	case regionsFence:
		return b.buffer[0] == 0 || m.barrier || m.bug == regionsNoFence
	case regionsStored:
		return !b.streamed || m.bug == regionsNoStored
	}
	return b.at < regionsEnd
}

func (m regionsModel) step(n *regionsState, b *initiator) {
	at := b.at
	b.at++
	store := func(v uint8) { b.buffer[slices.Index(b.buffer[:], 0)] = v }
	switch at {
	case regionsPublish:
		if m.bug != regionsCheckFirst {
			store(regionsSet)
		} else if n.moved {
			b.at = regionsEnd
		}
	case regionsFence:
		if m.bug == regionsCheckFirst {
			store(regionsSet)
		}
	case regionsCheck:
		if n.moved && m.bug != regionsCheckFirst && m.bug != regionsNoCheck {
			b.at = regionsClear
		}
	case regionsCopy, regionsCopies:
		n.broken = n.broken || n.again
		b.streamed = b.streamed || m.streams && at == regionsCopy
	case regionsClear:
		store(regionsCleared)
	}
}

// aim is a step of the target.
func (m regionsModel) aim(n *regionsState) bool {
	switch n.target {
	case regionsMove:
		n.moving = m.bug != regionsScanFirst
		if n.target = regionsReach; !n.moving {
			n.target = regionsScan
		}
	case regionsReach:
		if n.moving && m.bug != regionsNoFenceHere {
			return false
		}
		for i := range n.by {
			for m.barrier && n.by[i].buffer[0] != 0 {
				m.visible(n, i)
			}
		}
		n.target = regionsScan
	case regionsScan:
		if m.bug == regionsNoScan || int(n.scanned) == len(n.by) {
			n.target, n.moved = regionsUse, n.moved || m.bug == regionsScanFirst
			return true
		}
		if b := &n.by[n.scanned]; b.word && !b.dead && m.bug != regionsImpatient {
			return false
		}
		n.scanned++
	case regionsUse:
		n.again, n.target = true, regionsUsed
	default:
		return false
	}
	return true
}

// judge: nothing is copied into what is used again, and it comes to that.
func (m regionsModel) judge(s *regionsState) verdict {
	switch {
	case s.broken:
		return lost
	case s.again:
		return resting
	}
	return moving
}

var regions = family{
	title: "Regions that are used again",
	variants: []variant{
		form("copies", regionsModel{}),
		form("non-temporal copies", regionsModel{streams: true}),
		form("the target pays", regionsModel{barrier: true}),
		form("rows with heirs", regionsModel{heirs: true}),
	},
	mutants: slices.Concat(
		on("copies", regionsNoScan, regionsNoFence, regionsNoFenceHere, regionsCheckFirst,
			regionsScanFirst, regionsImpatient, regionsSharedWord, regionsNoCheck),
		on("non-temporal copies", regionsNoStored), on("rows with heirs", regionsLate)),
	traps: on("rows with heirs", regionsLeft),
}
