package model

// The count of rings in the lane of another user's writer, explored with few values where the code
// has 32 bits. The reader compares it with what it heard last, for being another one, and sleeps on
// it: as many rings as it has values, between two looks, would look like none. A writer rings at
// most twice for a publish, in Q3 and Q6, and cannot publish more between two looks than the lane
// takes, once before the reader drains it and once after. So four times a lane's capacity has to be
// less than 2^32; cq allows much less.
//
// A writer remembers for which arming it rang last, by the arming's number alone. One that did not
// ring for 2^32 armings in a row would take the next for that one, and not wake its reader for a
// publish in just that one: this is a bound, and nothing in the code keeps to it.

type ringsModel struct {
	publishes, capacity uint8
	values              uint8 // of the count
	numbers             uint8 // of armings; 0 is as many as there are
	bug                 string
}

type ringsState struct {
	unread, left   uint8
	parked, cand   bool
	rung, heard    uint8
	armed, rang, w uint8 // 0 is none: numbers are one more here
	seq            uint8
	writer, reader step
	asleep         bool
}

const (
	ringsP1  step = iota // store tail
	ringsP2              // load parked
	ringsQ3              // rung++
	ringsQ4              // load armed
	ringsQ6              // rung++
	ringsQ7              // wake
	ringsH1              // load rung
	ringsR2              // un-park
	ringsR3              // drain
	ringsR4              // park
	ringsR4t             // R4 tails again
	ringsR6              // arm
	ringsR7              // second look
	ringsR8              // sleep
	ringsR9              // disarm
)

// Deviations.
const (
	ringsFew  = "as many rings between two looks as their count has values"
	ringsLess = "a count is heard if it is more than the one heard last"
	ringsOld  = "a writer rang last for an arming a whole round ago"
)

func (m ringsModel) actor(who uint8) string { return [...]string{"writer", "reader"}[who] }

func (m ringsModel) start() ringsState {
	return ringsState{left: m.publishes, parked: true, reader: ringsH1}
}

func (m ringsModel) steps() string { return "ringsP1" }

func (m ringsModel) same(n *ringsState) {
	if m.numbers == 0 {
		relabel(&n.armed, &n.rang, &n.w)
	}
}

func (m ringsModel) next(s *ringsState, x *search[ringsState]) {
	if s.writer != ringsP1 || s.left > 0 && s.unread < m.capacity {
		x.by(0, s.writer)
		n := x.fork(s)
		m.write(s, n)
		x.emit(n)
	}
	x.by(1, s.reader)
	n := x.fork(s)
	if s.asleep { // a deadline
		n.asleep = false
	} else {
		m.read(s, n)
	}
	x.emit(n)
}

func (m ringsModel) write(s, n *ringsState) {
	n.writer = s.writer + 1
	ring := func() {
		n.rung = (s.rung + 1) % m.values
	}
	switch s.writer {
	case ringsP1:
		n.left--
		n.unread++
	case ringsP2:
		if !s.parked {
			n.writer = ringsP1
		}
	case ringsQ3:
		ring()
	case ringsQ4:
		if n.w = s.armed; s.armed == 0 || s.armed == s.rang {
			n.w, n.writer = 0, ringsP1
		}
	case ringsQ6:
		ring()
	case ringsQ7:
		n.asleep = false
		n.rang, n.w, n.writer = s.w, 0, ringsP1
	}
}

// news tells whether a ring was not heard yet.
func (m ringsModel) news(s *ringsState) bool {
	if m.bug == ringsLess {
		return s.rung > s.heard
	}
	return s.rung != s.heard
}

func (m ringsModel) read(s, n *ringsState) {
	n.reader = s.reader + 1
	switch s.reader {
	case ringsH1:
		if m.news(s) {
			n.heard, n.cand = s.rung, true
		}
	case ringsR2:
		n.parked = s.parked && !s.cand
	case ringsR3:
		if s.cand && s.unread > 0 {
			n.unread, n.reader = 0, ringsH1
		}
	case ringsR4:
		n.parked = s.parked || s.cand
	case ringsR4t:
		if n.cand = s.cand && s.unread > 0; n.cand {
			n.reader = ringsR2
		}
	case ringsR6:
		if n.armed = newSeq; m.numbers > 0 {
			n.seq = (s.seq + 1) % m.numbers
			n.armed = n.seq + 1
		}
	case ringsR7:
		if m.news(s) {
			n.reader = ringsR9
		}
	case ringsR8:
		n.asleep = s.rung == s.heard
	case ringsR9:
		n.armed, n.reader = 0, ringsH1
	}
}

func (m ringsModel) judge(s *ringsState) verdict {
	switch {
	case !s.asleep || s.writer != ringsP1:
		return moving
	case s.unread > 0:
		return lost
	}
	return resting
}

func (m ringsModel) with(bug string) protocol[ringsState] {
	switch m.bug = bug; bug {
	case ringsFew:
		m.values = 2
	case ringsOld:
		m.numbers = 3
	}
	return m
}

var rings = family{
	title: "Counts of rings that wrap",
	variants: []variant{
		form("1 slot x5, 5 values", ringsModel{publishes: 5, capacity: 1, values: 5}.with),
		form("2 slots x12, 9 values", ringsModel{publishes: 12, capacity: 2, values: 9}.with),
	},
	mutants: on("1 slot x5, 5 values", ringsFew, ringsLess, ringsOld),
}
