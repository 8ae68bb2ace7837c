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
	bug       string
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

func (m wrapModel) actor(who uint8) string {
	return [...]string{"producer 0", "producer 1", "reader    "}[who]
}

func (m wrapModel) start() wrapState {
	return wrapState{left: m.publishes, cand: 3, reader: wrapR1}
}

func (m wrapModel) steps() string { return "wrapP1" }

func (m wrapModel) next(s *wrapState, x *search[wrapState]) {
	for l := range s.at {
		if s.at[l] == wrapP1 && s.left[l] == 0 {
			continue
		}
		x.by(uint8(l), s.at[l])
		n := x.fork(s)
		m.produce(s, n, l)
		x.emit(n)
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

func (m wrapModel) with(bug string) protocol[wrapState] {
	m.bug = bug
	return m
}

var wraps = family{
	title: "Numbers that wrap",
	variants: []variant{
		form("1 lane x3, 4 numbers",
			wrapModel{publishes: [2]uint8{3, 0}, numbers: 4, epochs: 4}.with),
		form("2 lanes x2 and x1, 4 numbers",
			wrapModel{publishes: [2]uint8{2, 1}, numbers: 4, epochs: 8}.with),
		form("2 lanes x2, 3 numbers",
			wrapModel{publishes: [2]uint8{2, 2}, numbers: 3, epochs: 8}.with),
	},
	mutants: append(
		on("1 lane x3, 4 numbers", wrapTaken, wrapLess, wrapLessEdge, wrapZero, wrapEpochs),
		on("2 lanes x2 and x1, 4 numbers", wrapStands)...),
}
