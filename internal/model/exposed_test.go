package model

// Payload that a receiver reads where its sender has it, explored: one send, whose memory its user
// writes as soon as it has ended. The receiver copies in two steps. The sender may close or cut the
// receiver off, which ends the send without a record; and die, after which another process may have
// its number.
//
//	V1 copy   V2 are the sender's sends still open?   V3 does its process live?
//	V4 both: the message has come, a record says so; else the bytes are asked for
//	W1 take the record: the send ends   W2 send the bytes that are asked for: the send ends
//	W3 withdraw   W4 the send ends without a record   W5 its user writes the memory

type exposedModel struct{ deviant }

// Deviations.
const (
	exposedNoLook    = "what was read is believed, whatever became of the send"
	exposedLookFirst = "it is asked whether sends are open before the copy"
	exposedEndFirst  = "a sender withdraws when the send has ended"
	exposedNoLife    = "what was read is believed, whatever became of the process"
	exposedLifeFirst = "it is asked whether the process lives before the copy"
	exposedTellFirst = "the record goes before the copy"
)

const (
	exposedCopies    step = iota // V1 copy, twice
	exposedOpen                  // V2 are sends open?
	exposedLives                 // V3 does the process live?
	exposedDecides               // V4 believe, or ask
	exposedTells                 // the record
	exposedGivesUp               // the sender is gone
	exposedTakes                 // W1 take the record
	exposedAnswers               // W2 send the bytes
	exposedWithdraws             // W3 withdraw
	exposedEnds                  // W4 end the send
	exposedWrites                // W5 write the memory
	exposedDies                  // dies
	exposedReused                // another process has the number
)

// Whose bytes stand somewhere.
const (
	exposedNothing = iota
	exposedMessage
	exposedUser
	exposedOther
)

type exposedState struct {
	memory         uint8 // of the sender: whose bytes
	ended, exposes bool
	dead, reused   bool
	told, asked    bool
	at             uint8 // of the receiver's steps
	got            [2]uint8
	open, lives    bool
	over           bool // the receive has ended
	fault          fault
}

func (m exposedModel) names() []string { return []string{"exposedCopies", "receiver", "sender"} }

func (m exposedModel) start() exposedState {
	return exposedState{memory: exposedMessage, exposes: true}
}

// order is that of the receiver's steps.
func (m exposedModel) order() []step {
	switch m.bug {
	case exposedLookFirst:
		return []step{exposedOpen, exposedCopies, exposedCopies, exposedLives, exposedDecides}
	case exposedLifeFirst:
		return []step{exposedLives, exposedCopies, exposedCopies, exposedOpen, exposedDecides}
	case exposedTellFirst:
		return []step{exposedTells, exposedCopies, exposedCopies, exposedOpen, exposedLives,
			exposedDecides}
	}
	return []step{exposedCopies, exposedCopies, exposedOpen, exposedLives, exposedDecides}
}

// seen is whose bytes a copy gets now.
func (s *exposedState) seen() uint8 {
	switch {
	case s.reused:
		return exposedOther
	case s.dead:
		return exposedNothing
	}
	return s.memory
}

func (m exposedModel) next(s *exposedState, x *search[exposedState]) {
	if order := m.order(); int(s.at) < len(order) {
		x.does(s, 0, order[s.at], true, func(n *exposedState) { m.receives(n, order[s.at]) })
	}
	gone := s.dead || s.ended || !s.exposes
	x.does(s, 0, exposedGivesUp, s.asked && !s.over && gone, func(n *exposedState) { n.over = true })
	x.does(s, 1, exposedDies, !s.dead, func(n *exposedState) { n.dead = true })
	x.does(s, 1, exposedReused, s.dead && !s.reused, func(n *exposedState) { n.reused = true })
	if s.dead {
		return
	}
	x.does(s, 1, exposedTakes, s.told && !s.ended, func(n *exposedState) { n.ended = true })
	x.does(s, 1, exposedAnswers, s.asked && !s.over && !gone, func(n *exposedState) {
		if n.ended, n.over = true, true; n.memory != exposedMessage {
			n.fault = notThere
		}
	})
	late := m.bug == exposedEndFirst
	x.does(s, 1, exposedWithdraws, s.exposes && (!late || s.ended),
		func(n *exposedState) { n.exposes = false })
	x.does(s, 1, exposedEnds, !s.ended && (late || !s.exposes),
		func(n *exposedState) { n.ended = true })
	x.does(s, 1, exposedWrites, s.ended && s.memory == exposedMessage,
		func(n *exposedState) { n.memory = exposedUser })
}

func (m exposedModel) receives(n *exposedState, at step) {
	n.at++
	switch at {
	case exposedCopies:
		i := 0
		if n.got[0] != exposedNothing {
			i = 1
		}
		if n.got[i] = n.seen(); n.got[i] == exposedNothing { // the call says so
			n.at, n.asked = uint8(len(m.order())), true
		}
	case exposedOpen:
		n.open = n.exposes
	case exposedLives:
		n.lives = !n.dead
	case exposedTells:
		n.told = true
	case exposedDecides:
		if !n.open && m.bug != exposedNoLook || !n.lives && m.bug != exposedNoLife {
			n.asked = true
			return
		}
		n.told, n.over = true, true
		if n.got != [2]uint8{exposedMessage, exposedMessage} {
			n.fault = notThere
		}
	}
}

// judge: the receive ends, with the message or an error.
func (m exposedModel) judge(s *exposedState) verdict {
	switch {
	case s.fault != fine:
		return lost
	case s.over && (s.ended || s.dead):
		return resting
	}
	return moving
}

var exposures = family{
	title:    "Reads of a sender's memory",
	variants: []variant{form("one send", exposedModel{})},
	mutants: on("one send", exposedNoLook, exposedLookFirst, exposedEndFirst, exposedNoLife,
		exposedLifeFirst, exposedTellFirst),
}
