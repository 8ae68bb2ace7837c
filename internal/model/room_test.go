package model

import "slices"

// A lane without enough room, explored: its writer is refused and waits until there is, its reader
// sleeps for entries, and another process of the same user takes or wipes the marks, which are
// hints, at any moment and as often as it likes. Nobody else would ring: a refused writer has
// nothing to publish. So whoever is refused rings again (cq: Writer.remind).
//
// The library wakes no writer: it tries again. Here it does so when the head has moved since it
// looked, and after each wipe; whoever tries more often loses no more. Both sides must not wait for
// each other, nor the writer for room that is there, nor the reader for a publish that was not
// wiped away. What is wiped while its writer does not ask for room is lost until the next publish.
//
//	W1 look for room    W2 refused: parked?    W3 anything in the lane? then P3 to P7
//	W4 wait until the head moves

type roomModel struct {
	capacity uint8
	asks     [3]uint8 // room that each operation asks for, and then publishes at once
	wipes    bool
	deviant
}

type roomState struct {
	unread, asked  uint8 // asked: operations that are done
	parked, marked bool
	cand           bool // under the reader's process
	wiped          bool // a mark of what is unread was
	armed, rung    uint8
	w              uint8 // the arming that the writer loaded
	writer, reader step
	refused        bool // the writer rings for a refusal, not for a publish
	moved          bool // the head, since the writer looked
	tried          bool // it has tried since the last wipe
	rangOnce       bool // mutant: it does not ring for another refusal
	fresh, asleep  bool
}

const (
	roomW1   step = iota // look for room
	roomP1               // store tail
	roomP2               // load parked
	roomP3               // set ready
	roomP4               // load armed
	roomP5               // load rung
	roomP5e              // P5 epoch++
	roomP5w              // P5 wake
	roomP5r              // P5 store rung
	roomW2               // refused: load parked
	roomW3               // anything in the lane?
	roomW4f              // W4 load head
	roomW4               // wait
	roomR1               // swap ready
	roomR2               // un-park
	roomR3               // drain
	roomR4               // park
	roomR4t              // R4 tails again
	roomR5               // load epoch
	roomR6               // arm
	roomR7               // second look
	roomR8               // futex wait
	roomR9               // disarm
	roomWipe             // wipes the marks
)

// Deviations.
const (
	roomSilent    = "a refused writer does not ring"
	roomFullOnly  = "a refused writer rings only if the lane has no room at all"
	roomOnce      = "a refused writer rings for the first refusal only"
	roomUnmarked  = "a refused writer rings and does not mark"
	roomWakesOnly = "a refused writer marks and does not ring"
	roomHeadLate  = "who waits for room loads the head when it begins to wait"
	roomNoTails   = "no second look at the tail after parking, lane full"
	roomNoLook    = "no second look after arming, lane full"
	roomEarly     = "a refused writer had rung before it looked for room"
)

func (m roomModel) names() []string { return []string{"roomW1", "writer", "reader", "stranger"} }

func (m roomModel) start() roomState {
	return roomState{parked: true, writer: roomW1, reader: roomR1}
}

func (m roomModel) begin() step {
	if m.bug == roomEarly {
		return roomW2
	}
	return roomW1
}

// asksFor is how much room the writer needs now, 0 if it has nothing to do.
func (m roomModel) asksFor(s *roomState) uint8 {
	if int(s.asked) == len(m.asks) {
		return 0
	}
	return m.asks[s.asked]
}

// waits: a refused writer does not try again before something has changed.
func (m roomModel) waits(s *roomState) bool {
	return s.writer == roomW4 && s.tried && !s.moved
}

func (m roomModel) rests(s *roomState) bool {
	return s.writer == roomW1 && m.asksFor(s) == 0 || m.waits(s)
}

func (m roomModel) same(n *roomState) { relabel(&n.armed, &n.rung, &n.w) }

func (m roomModel) next(s *roomState, x *search[roomState]) {
	x.does(s, 0, s.writer, !m.rests(s), func(n *roomState) { m.write(s, n) })
	x.by(1, s.reader)
	if n := x.fork(s); s.asleep { // a deadline
		n.asleep = false
		x.emit(n)
	} else {
		m.read(s, n, x)
	}
	x.does(s, 2, roomWipe, m.wipes && s.marked,
		func(n *roomState) { n.marked, n.tried, n.wiped = false, false, s.unread > 0 })
}

func (m roomModel) write(s, n *roomState) {
	done := func() {
		n.w, n.writer = 0, roomW1
		if s.refused {
			n.writer, n.refused = roomW4f, false
			if m.bug == roomEarly {
				n.writer = roomW1
			}
		}
	}
	switch s.writer {
	case roomW1:
		n.moved, n.writer = false, roomP1
		if m.bug != roomEarly {
			n.tried = true
		}
		if m.capacity-s.unread < m.asksFor(s) {
			n.writer = roomW2
			if m.bug == roomEarly {
				n.writer = roomW4f
			}
		}
	case roomP1:
		n.unread += m.asksFor(s)
		n.asked++
		n.moved, n.rangOnce, n.writer = false, false, roomP2
	case roomP2:
		n.writer = roomP3
		if !s.parked {
			done()
		}
	case roomW2, roomW3:
		m.remind(s, n)
	case roomW4f:
		n.writer = roomW4
		if m.bug == roomHeadLate {
			n.moved = false
		}
	case roomW4:
		n.writer = m.begin()
	default:
		m.ring(s, n, done)
	}
}

func (m roomModel) remind(s, n *roomState) {
	n.writer = roomW4f
	if m.bug == roomEarly {
		n.writer, n.tried = roomW1, true
	}
	switch {
	case s.writer == roomW2 && s.parked && m.bug != roomSilent:
		n.writer = roomW3
	case s.writer == roomW3 && s.unread > 0:
		if m.bug == roomFullOnly && s.unread < m.capacity || m.bug == roomOnce && s.rangOnce {
			return
		}
		n.writer, n.refused = roomP3, true
		n.rangOnce = m.bug == roomOnce
	}
}

// ring is P3 to P7.
func (m roomModel) ring(s, n *roomState, done func()) {
	switch s.writer {
	case roomP3:
		n.writer = roomP4
		if !s.refused || m.bug != roomUnmarked {
			n.marked = true
		}
	case roomP4:
		n.w, n.writer = s.armed, roomP5
		if s.armed == 0 || s.refused && m.bug == roomWakesOnly {
			done()
		}
	case roomP5:
		n.writer = roomP5e
		if s.rung == s.w {
			done()
		}
	case roomP5e:
		n.fresh, n.writer = false, roomP5w
	case roomP5w:
		n.asleep, n.writer = false, roomP5r
	case roomP5r:
		n.rung = s.w
		done()
	}
}

func (m roomModel) read(s, n *roomState, x *search[roomState]) {
	n.reader = s.reader + 1
	switch s.reader {
	case roomR1:
		n.cand, n.marked = s.cand || s.marked, false
	case roomR2:
		if s.cand && s.parked && s.unread == 0 {
			n.cand = false
		} else if s.cand {
			x.emit(n) // the first look after a parking leaves it
			n.parked = false
		}
	case roomR3:
		if s.cand && s.unread > 0 {
			n.moved, n.reader = true, roomR1
			if s.unread > 1 { // a read of one entry
				n.unread--
				x.emit(n)
			}
			n.unread, n.wiped = 0, false
			n.cand = !s.parked
		}
	case roomR4:
		n.parked = s.parked || s.cand
	case roomR4t:
		n.cand = s.cand && s.unread > 0 && m.bug != roomNoTails
		if n.cand {
			n.reader = roomR2
		}
	case roomR5:
		n.fresh = true
	case roomR6:
		n.armed = newSeq
	case roomR7:
		if (s.marked || s.cand) && m.bug != roomNoLook {
			n.fresh, n.reader = false, roomR9
		}
	case roomR8:
		n.asleep, n.fresh = s.fresh, false
	case roomR9:
		n.armed, n.reader = 0, roomR1
	}
	x.emit(n)
}

func (m roomModel) judge(s *roomState) verdict {
	if !s.asleep {
		return moving
	}
	unread := s.unread
	if s.writer >= roomP2 && s.writer <= roomP5r && !s.refused {
		unread -= min(unread, m.asks[s.asked-1]) // its publish is not finished
	}
	bad := unread > 0 && (!s.wiped || m.waits(s)) ||
		m.waits(s) && m.capacity-s.unread >= m.asksFor(s)
	switch {
	case !m.rests(s) && unread > 0 && !s.wiped && !s.refused && s.writer != roomW1:
		return muted
	case !m.rests(s):
		return moving
	case bad:
		return lost
	}
	return resting
}

var rooms = family{
	title: "Lanes without room",
	variants: []variant{
		form("1 slot", roomModel{capacity: 1, asks: [3]uint8{1, 1, 1}}),
		form("1 slot, wiped", roomModel{capacity: 1, asks: [3]uint8{1, 1, 1}, wipes: true}),
		form("3 slots, wiped", roomModel{capacity: 3, asks: [3]uint8{2, 2, 3}, wipes: true}),
		form("4 slots, wiped", roomModel{capacity: 4, asks: [3]uint8{1, 4, 2}, wipes: true}),
	},
	mutants: slices.Concat(
		on("1 slot, wiped", roomSilent, roomOnce, roomUnmarked, roomWakesOnly),
		on("3 slots, wiped", roomFullOnly),
		on("1 slot", roomHeadLate, roomNoTails, roomNoLook)),
	spare: on("3 slots, wiped", roomEarly),
}
