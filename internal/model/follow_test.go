package model

// Readers of other users that follow one another, explored: a writer publishes, its reader dies or
// detaches at any step, and the writer brings what that one had not released to another one, which
// has objects of its own and may go the same way, also in the middle (cq: Writer.Follow). The
// writer may give up a rendezvous at any step, and may die anywhere too. Whatever was published is
// handed out, in order, as long as its writer lives or a reader that took it; and again only with
// the mark.
//
//	F1 is the reader gone?   F2 load head   F3 load peeked   F4 load again   F5 new lane, filled;
//	send it   F6 wait for the answer   F7 no more from the connection   F8 did it come?
//	F9 close the former lane         A1 receive the lane   A2 answer   A3 attach
//	G0 open, load again   G1 choose   G2 store peeked   G3 hand out   G4 release
//
// Items are numbered by the writer, since indices begin anew with each reader. Which entries of a
// reader are handed out is Peek and Release; what Read returned is gone with who read it.
//
// Not in the model: several writers, which share nothing but the bell; credits and details, which
// are copied in F5; a reader that closes its queue, with which all that it has goes; the proof of
// death, which comes at once here; overrun.

const followReaders = 3

type followModel struct {
	items      uint8
	readers    uint8
	writerDies bool
	deviant
}

type followReader struct {
	dead, left   bool
	accept, at   step
	told, shut   bool // the answer is with the writer; nothing can be sent any more
	attached     bool
	from, to     uint8 // of the lane: its writer's words
	again        uint8
	head, peeked uint8 // of the row: the reader's words
	next, marked uint8 // private: what is handed out next, and below what with the mark
	mark         bool
}

type followState struct {
	reader            [followReaders]followReader
	at                step
	cur, to           uint8 // whose lane it is; who is met
	left              uint8
	head, tail, again uint8 // what is left, as the writer found it
	dead              bool
	handed            uint8 // bits of items
	bad               verdict
}

const (
	followP      step = iota // P1 publish
	followF1                 // gone?
	followF2                 // load head
	followF3                 // load peeked
	followF4                 // load again
	followF5                 // send a filled lane
	followF6                 // the answer comes
	followF7                 // shut
	followF8                 // did it come?
	followF9                 // close the former lane
	followGiveUp             // gives up
	followDead               // dies
	followNone
	followA1     // receive
	followA2     // answer
	followA3     // attach
	followG0     // open
	followG1     // choose
	followG2     // store peeked
	followG3     // hand out
	followG4     // release
	followDies   // dies
	followLeaves // detaches
)

// Deviations.
const (
	followAlive     = "a reader that is silent is followed"
	followHeadFirst = "head and peeked are loaded before the reader is proved gone"
	followUnpeeked  = "what was handed out is not marked for the successor"
	followForgets   = "marks reach the next reader and not the one after"
	followUnheeded  = "the successor does not ask what was handed out"
	followPeekLate  = "the reader stores peeked after it handed out"
	followAttached  = "the successor attaches the lane before it answers"
	followNoLook    = "an answer that came with the end of the connection does not count"
	followOpen      = "the writer looks for the answer while it can still come"
	followDrops     = "the former lane goes before the successor has answered"
	followReadsOn   = "the reader says that it left and reads on"
	followTailFirst = "the rest is counted before the last publish"
)

func (m followModel) names() []string {
	return []string{"followP", "writer", "reader 0", "reader 1", "reader 2"}
}

func (m followModel) start() (s followState) {
	s.left = m.items
	for i := range s.reader {
		s.reader[i].accept, s.reader[i].at = followNone, followNone
	}
	s.reader[0].attached, s.reader[0].at = true, followG0
	return s
}

func (m followModel) next(s *followState, x *search[followState]) {
	m.write(s, x)
	for i := range m.readers {
		r := &s.reader[i]
		if r.dead {
			continue
		}
		by := 1 + i
		if i+1 < m.readers { // the last one stays
			x.does(s, by, followDies, true, func(n *followState) { n.reader[i].dead = true })
			idle := r.at == followNone || r.at == followG1 && r.next == r.head
			x.does(s, by, followLeaves, !r.left && (idle || m.bug == followReadsOn && r.at != followNone),
				func(n *followState) { n.reader[i].left = true })
		}
		x.does(s, by, r.accept, r.accept != followNone, func(n *followState) { m.meet(r, &n.reader[i]) })
		if r.at != followNone && (!r.left || m.bug == followReadsOn) {
			x.by(by, r.at)
			m.read(s, i, x)
		}
	}
}

// begin is the first step after the writer found out that something may be wrong.
func (m followModel) begin() step {
	if m.bug == followHeadFirst {
		return followF2
	}
	return followF1
}

func (m followModel) write(s *followState, x *search[followState]) {
	if s.dead {
		return
	}
	if m.writerDies {
		n := x.fork(s)
		n.dead, n.at = true, followDead
		n.head, n.tail, n.again = 0, 0, 0
		for i := range n.reader {
			n.reader[i].shut = true
		}
		x.by(0, followDead)
		x.emit(n)
	}
	x.by(0, s.at)
	n := x.fork(s)
	cur := &n.reader[s.cur]
	n.at = s.at + 1
	switch s.at {
	case followP:
		if s.left > 0 {
			y := x.fork(s)
			y.left--
			y.reader[s.cur].to++
			x.emit(y)
		}
		if n.at = m.begin(); !cur.dead && !cur.left && m.bug == "" {
			return // F1 would say no, and nothing else depends on it
		}
	case followF1:
		gone := cur.dead || cur.left || m.bug == followAlive
		if m.bug == followHeadFirst {
			n.at = followF5
		}
		if !gone {
			n.at, n.head, n.tail, n.again = followP, 0, 0, 0
		}
	case followF2:
		n.head, n.tail = cur.head, cur.to
		if m.bug == followTailFirst && n.tail > 0 {
			n.tail = max(n.head, n.tail-1)
		}
	case followF3:
		if n.again = max(s.head, cur.peeked); m.bug == followUnpeeked {
			n.again = s.head
		}
	case followF4:
		if n.again = min(s.tail, max(s.again, cur.again)); m.bug == followForgets {
			n.again = s.again
		}
		if m.bug == followHeadFirst {
			n.at = followF1
		}
	case followF5:
		m.offer(s, x)
		return
	default:
		m.answered(s, n, x)
		return
	}
	x.emit(n)
}

// offer goes to any reader that has not been this writer's yet, and is not busy with what the
// writer gave up before.
func (m followModel) offer(s *followState, x *search[followState]) {
	for i := range m.readers {
		if r := &s.reader[i]; i == s.cur || r.dead || r.left || r.accept != followNone || r.attached {
			continue
		}
		n := x.fork(s)
		r := &n.reader[i]
		*r = followReader{accept: followA1, at: followNone, from: s.head, to: s.tail,
			again: s.again, head: s.head, peeked: s.head}
		n.to, n.at = i, followF6
		if m.bug == followDrops {
			n.reader[s.cur].from, n.reader[s.cur].to = 0, 0
		}
		x.emit(n)
	}
}

// answered is the end of a rendezvous: with the answer, or without.
func (m followModel) answered(s, n *followState, x *search[followState]) {
	met := &n.reader[s.to]
	failed := func() {
		n.at, met.shut, n.to = m.begin(), true, 0
		if m.bug == followDrops { // nothing is left of it
			n.head = s.tail
			n.reader[s.cur].head = s.tail
			n.reader[s.cur].to = s.tail
		}
		n.head, n.tail, n.again = 0, 0, 0
	}
	switch s.at {
	case followF6:
		if met.told {
			y := x.fork(n)
			y.at = followF9
			x.emit(y)
		}
		if n.at = followF7; m.bug == followNoLook {
			failed()
		}
		x.by(0, followGiveUp)
		x.emit(n) // the other side is gone, or the writer's time is over
		return
	case followF7:
		if met.shut = true; m.bug == followOpen {
			met.shut = false
		}
	case followF8:
		if n.at = followF9; !met.told {
			failed()
			if m.bug == followOpen {
				met.shut = false
			}
		}
	case followF9:
		n.cur, n.to, n.at = s.to, 0, followP
		n.head, n.tail, n.again = 0, 0, 0
		met.told, met.shut = false, false
	}
	x.emit(n)
}

// meet is the reader's side of a rendezvous, in a goroutine that does not read.
func (m followModel) meet(s, n *followReader) {
	attach := func() {
		if n.attached = true; !s.left {
			n.at = followG0
		}
	}
	switch s.accept {
	case followA1:
		if n.accept = followA2; m.bug == followAttached {
			attach()
		}
	case followA2:
		n.accept = followA3
		if n.told = !s.shut; s.shut { // what came is let go
			*n = followReader{dead: s.dead, left: s.left, accept: followNone, at: followNone}
		}
	case followA3:
		if n.accept = followNone; m.bug != followAttached {
			attach()
		}
	}
}

func (m followModel) read(s *followState, i uint8, x *search[followState]) {
	n := x.fork(s)
	r := &n.reader[i]
	switch r.at {
	case followG0:
		r.next, r.at = r.head, followG1
		if r.marked = r.again; m.bug == followUnheeded {
			r.marked = r.head
		}
	case followG1:
		if r.next > r.head {
			y := x.fork(n)
			y.reader[i].at = followG4
			x.emit(y)
		}
		if r.next >= r.to {
			return
		}
		// What comes with the mark is noted as handed out already.
		if r.mark, r.at = r.next < r.marked, followG2; r.mark || m.bug == followPeekLate {
			r.at = followG3
		}
	case followG2:
		r.peeked, r.at = r.next+1, followG3
		if m.bug == followPeekLate {
			r.peeked, r.at = r.next, followG1
		}
	case followG3:
		bit := uint8(1) << r.next
		if s.handed&(bit-1) != bit-1 {
			n.bad = lost
		} else if s.handed&bit != 0 && !r.mark {
			n.bad = twice
		}
		n.handed |= bit
		r.next++
		if r.at = followG1; m.bug == followPeekLate && !r.mark {
			r.at = followG2
		}
		r.mark = false
	case followG4:
		r.head++
		r.at = followG1
	}
	x.emit(n)
}

// judge: in the end the last reader has it all, or there is nobody who could have given it to him.
func (m followModel) judge(s *followState) verdict {
	if s.bad != moving {
		return s.bad
	}
	if moves(protocol[followState](m), s) {
		return moving
	}
	published, all := m.items-s.left, true
	if s.dead { // what nobody took went with it
		last := &s.reader[m.readers-1]
		if published = 0; last.attached {
			published = last.to
		}
	} else if s.left > 0 {
		return lost
	}
	for i := range published {
		all = all && s.handed>>i&1 != 0
	}
	if !all {
		return lost
	}
	return resting
}

var follows = family{
	title: "Readers of other users that follow one another",
	variants: []variant{
		form("a successor", followModel{items: 2, readers: 2, writerDies: true}),
		form("two successors", followModel{items: 2, readers: 3}),
		form("two successors, the writer dies",
			followModel{items: 2, readers: 3, writerDies: true}),
		form("two successors, x3", followModel{items: 3, readers: 3, writerDies: true}),
	},
	mutants: append(
		on("a successor", followAlive, followHeadFirst, followUnpeeked, followUnheeded,
			followPeekLate, followReadsOn, followTailFirst, followDrops),
		on("two successors", followForgets, followAttached, followNoLook, followOpen)...),
}
