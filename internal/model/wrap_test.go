package model

// Numbers that wrap, explored with very few values where the code has 32 bits: that of an arming in
// the armed word and in rung, and the epoch. (Indices and what a domain and a counter number have
// 64 bits and never wrap.) Other models name an arming whatever has not been seen yet; this one
// counts, so that an arming can have the number of a former one.
//
// Within these bounds nothing is lost. A producer stands still between P4 and P5r for fewer
// armings than there are numbers, less the one that is left out: 2^32-1. Producers ring fewer times
// between R5 and R8 than the epoch has values: each rings once for an arming that it knows of. With
// one reader those are two, and more only while other readers of the same process arm.
//
// A rung that stands there since a whole round ago needs no bound: an arming never takes the number
// that was rung last (Bell.renumber), however long nobody has rung.

type wrapModel struct {
	publishes [2]uint8
	numbers   uint8 // values of an arming's number
	epochs    uint8
	deviant
}

type wrapState struct {
	unread, left        [2]uint8
	parked, ready, cand uint8
	seq, rung           uint8 // seq stays when the reader disarms
	armed, asleep       bool
	epoch, e            uint8
	at                  [2]step
	w, age              [2]uint8 // armings since P4
	reader              step
}

const (
	wrapP1  step = iota // store tail
	wrapP2              // load parked
	wrapP3              // set ready
	wrapP4              // load armed
	wrapP5              // load rung
	wrapP5e             // P5 epoch++
	wrapP5w             // P5 wake
	wrapP5r             // P5 store rung
	wrapR1              // swap ready
	wrapR2              // un-park
	wrapR3              // drain
	wrapR4              // park
	wrapR4t             // R4 tails again
	wrapR5              // load epoch
	wrapR6              // arm
	wrapR7              // second look
	wrapR8              // futex wait
	wrapR9              // disarm
)

// Deviations.
const (
	wrapTaken    = "an arming takes the number that was rung last"
	wrapLess     = "a bell is rung if its number is less than that of the arming"
	wrapLessEdge = "the number that was rung last is left out, and numbers are compared by order"
	wrapStands   = "a producer stands between P4 and P5r for a whole round"
	wrapEpochs   = "the epoch has as many values as there are rings between R5 and R8"
	wrapZero     = "an arming with the number 0 counts as none"
)

func (m wrapModel) names() []string {
	return []string{"wrapP1", "producer 0", "producer 1", "reader"}
}

func (m wrapModel) start() wrapState {
	return wrapState{left: m.publishes, cand: 3, reader: wrapR1}
}

func (m wrapModel) next(s *wrapState, x *search[wrapState]) {
	for l := range s.at {
		if s.at[l] == wrapP1 && s.left[l] == 0 {
			continue
		}
		x.does(s, uint8(l), s.at[l], true, func(n *wrapState) { m.produce(s, n, l) })
	}
	x.by(2, s.reader)
	if s.asleep { // a deadline
		n := x.fork(s)
		n.asleep = false
		x.emit(n)
		return
	}
	m.read(s, x)
}

func (m wrapModel) produce(s, n *wrapState, l int) {
	bit := uint8(1) << l
	n.at[l] = s.at[l] + 1
	done := func() { n.at[l], n.w[l], n.age[l] = wrapP1, 0, 0 }
	switch s.at[l] {
	case wrapP1:
		n.left[l]--
		n.unread[l]++
	case wrapP2:
		if s.parked&bit == 0 {
			done()
		}
	case wrapP3:
		n.ready |= bit
	case wrapP4:
		n.w[l], n.age[l] = s.seq, 0
		if !s.armed || m.bug == wrapZero && s.seq == 0 {
			done()
		}
	case wrapP5:
		rung := s.rung == s.w[l]
		if m.bug == wrapLess || m.bug == wrapLessEdge {
			rung = s.rung >= s.w[l]
		}
		if rung {
			done()
		}
	case wrapP5e:
		values := m.epochs
		if m.bug == wrapEpochs {
			values = 2
		}
		n.epoch = (s.epoch + 1) % values
	case wrapP5w:
		n.asleep = false
	case wrapP5r:
		n.rung = s.w[l]
		done()
	}
}

// renumber gives the next arming its number. It is false while the bound keeps the reader from it.
func (m wrapModel) renumber(s, n *wrapState) bool {
	n.seq = (s.seq + 1) % m.numbers
	steps := uint8(1)
	if n.seq == s.rung && m.bug != wrapTaken && m.bug != wrapLess {
		n.seq = (n.seq + 1) % m.numbers
		steps++
	}
	for l, at := range s.at {
		if at < wrapP5 || m.bug == wrapStands {
			continue
		}
		if n.age[l] += steps; n.age[l] >= m.numbers {
			return false
		}
	}
	return true
}

func (m wrapModel) read(s *wrapState, x *search[wrapState]) {
	n := x.fork(s)
	n.reader = s.reader + 1
	switch s.reader {
	case wrapR1:
		n.cand, n.ready = s.cand|s.ready, 0
	case wrapR2:
		n.parked &^= s.cand
	case wrapR3:
		for l := range s.unread {
			if s.cand>>l&1 != 0 && s.unread[l] > 0 {
				n.unread[l], n.reader = 0, wrapR1
			}
		}
	case wrapR4:
		n.parked |= s.cand
	case wrapR4t:
		n.cand = 0
		for l := range s.unread {
			if s.cand>>l&1 != 0 && s.unread[l] > 0 {
				n.cand |= 1 << l
				n.reader = wrapR2
			}
		}
	case wrapR5:
		n.e = s.epoch
	case wrapR6:
		if n.armed = true; !m.renumber(s, n) {
			return
		}
	case wrapR7:
		if s.ready|s.cand != 0 {
			n.reader = wrapR9
		}
	case wrapR8:
		n.asleep = s.epoch == s.e
	case wrapR9:
		n.armed, n.e, n.reader = false, 0, wrapR1
	}
	x.emit(n)
}

func (m wrapModel) judge(s *wrapState) verdict {
	if !s.asleep {
		return moving
	}
	bad, halfWay := false, false
	for l, at := range s.at {
		halfWay = halfWay || at != wrapP1
		bad = bad || at == wrapP1 && s.unread[l] > 0
	}
	switch {
	case bad && halfWay:
		return muted
	case bad:
		return lost
	}
	return resting
}

var wraps = family{
	title: "Numbers that wrap",
	variants: []variant{
		form("1 lane x3, 4 numbers",
			wrapModel{publishes: [2]uint8{3, 0}, numbers: 4, epochs: 4}),
		form("2 lanes x2 and x1, 4 numbers",
			wrapModel{publishes: [2]uint8{2, 1}, numbers: 4, epochs: 8}),
		form("2 lanes x2, 3 numbers",
			wrapModel{publishes: [2]uint8{2, 2}, numbers: 3, epochs: 8}),
	},
	mutants: append(
		on("1 lane x3, 4 numbers", wrapTaken, wrapLess, wrapLessEdge, wrapZero, wrapEpochs),
		on("2 lanes x2 and x1, 4 numbers", wrapStands)...),
}

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
	deviant
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

func (m ringsModel) names() []string { return []string{"ringsP1", "writer", "reader"} }

func (m ringsModel) start() ringsState {
	return ringsState{left: m.publishes, parked: true, reader: ringsH1}
}

func (m ringsModel) same(n *ringsState) {
	if m.numbers == 0 {
		relabel(&n.armed, &n.rang, &n.w)
	}
}

func (m ringsModel) next(s *ringsState, x *search[ringsState]) {
	x.does(s, 0, s.writer, s.writer != ringsP1 || s.left > 0 && s.unread < m.capacity,
		func(n *ringsState) { m.write(s, n) })
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

func (m *ringsModel) deviate(bug string) {
	switch m.bug = bug; bug {
	case ringsFew:
		m.values = 2
	case ringsOld:
		m.numbers = 3
	}
}

var rings = family{
	title: "Counts of rings that wrap",
	variants: []variant{
		form("1 slot x5, 5 values", ringsModel{publishes: 5, capacity: 1, values: 5}),
		form("2 slots x12, 9 values", ringsModel{publishes: 12, capacity: 2, values: 9}),
	},
	mutants: on("1 slot x5, 5 values", ringsFew, ringsLess, ringsOld),
}
