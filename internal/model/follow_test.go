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

const (
	followReaders = 3
	followItems   = 2
)

type followModel struct {
	items      uint8
	readers    uint8
	writerDies bool
	bug        string
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
	followP step = iota
	followF1
	followF2
	followF3
	followF4
	followF5
	followF6
	followF7
	followF8
	followF9
	followGiveUp
	followDead
	followNone
	followA1
	followA2
	followA3
	followG0
	followG1
	followG2
	followG3
	followG4
	followDies
	followLeaves
)

var followStepNames = [...]string{"P1 publish", "F1 gone?", "F2 load head", "F3 load peeked",
	"F4 load again", "F5 send a filled lane", "F6 the answer comes", "F7 shut", "F8 did it come?",
	"F9 close the former lane", "gives up", "dies", "", "A1 receive", "A2 answer", "A3 attach",
	"G0 open", "G1 choose", "G2 store peeked", "G3 hand out", "G4 release", "dies", "detaches"}

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

func (m followModel) stepName(at step) string { return followStepNames[at] }

func (m followModel) actor(who uint8) string {
	return [...]string{"writer  ", "reader 0", "reader 1", "reader 2"}[who]
}

func (m followModel) start() (s followState) {
	s.left = m.items
	for i := range s.reader {
		s.reader[i].accept, s.reader[i].at = followNone, followNone
	}
	s.reader[0].attached, s.reader[0].at = true, followG0
	return s
}

func (m followModel) next(s *followState, emit emitter[followState]) {
	m.write(s, func(n *followState, at step) { emit(n, label{0, at}) })
	for i := range m.readers {
		r := &s.reader[i]
		if r.dead {
			continue
		}
		by := 1 + i
		if i+1 < m.readers { // the last one stays
			n := *s
			n.reader[i].dead = true
			emit(&n, label{by, followDies})
			idle := r.at == followNone || r.at == followG1 && r.next == r.head
			if !r.left && (idle || m.bug == followReadsOn && r.at != followNone) {
				n := *s
				n.reader[i].left = true
				emit(&n, label{by, followLeaves})
			}
		}
		if r.accept != followNone {
			n := *s
			m.meet(r, &n.reader[i])
			emit(&n, label{by, r.accept})
		}
		if r.at != followNone && (!r.left || m.bug == followReadsOn) {
			m.read(s, i, func(n *followState) { emit(n, label{by, r.at}) })
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

func (m followModel) write(s *followState, emit func(*followState, step)) {
	if s.dead {
		return
	}
	if m.writerDies {
		n := *s
		n.dead, n.at = true, followDead
		n.head, n.tail, n.again = 0, 0, 0
		for i := range n.reader {
			n.reader[i].shut = true
		}
		emit(&n, followDead)
	}
	n := *s
	cur := &n.reader[s.cur]
	n.at = s.at + 1
	switch s.at {
	case followP:
		if s.left > 0 {
			x := *s
			x.left--
			x.reader[s.cur].to++
			emit(&x, followP)
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
		m.offer(s, emit)
		return
	default:
		m.answered(s, &n, emit)
		return
	}
	emit(&n, s.at)
}

// offer goes to any reader that has not been this writer's yet, and is not busy with what the
// writer gave up before.
func (m followModel) offer(s *followState, emit func(*followState, step)) {
	for i := range m.readers {
		if r := &s.reader[i]; i == s.cur || r.dead || r.left || r.accept != followNone || r.attached {
			continue
		}
		n := *s
		r := &n.reader[i]
		*r = followReader{accept: followA1, at: followNone, from: s.head, to: s.tail,
			again: s.again, head: s.head, peeked: s.head}
		n.to, n.at = i, followF6
		if m.bug == followDrops {
			n.reader[s.cur].from, n.reader[s.cur].to = 0, 0
		}
		emit(&n, followF5)
	}
}

// answered is the end of a rendezvous: with the answer, or without.
func (m followModel) answered(s, n *followState, emit func(*followState, step)) {
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
			x := *n
			x.at = followF9
			emit(&x, followF6)
		}
		if n.at = followF7; m.bug == followNoLook {
			failed()
		}
		emit(n, followGiveUp) // the other side is gone, or the writer's time is over
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
	emit(n, s.at)
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

func (m followModel) read(s *followState, i uint8, emit func(*followState)) {
	n := *s
	r := &n.reader[i]
	switch r.at {
	case followG0:
		r.next, r.at = r.head, followG1
		if r.marked = r.again; m.bug == followUnheeded {
			r.marked = r.head
		}
	case followG1:
		if r.next > r.head {
			x := n
			x.reader[i].at = followG4
			emit(&x)
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
	emit(&n)
}

// judge: in the end the last reader has it all, or there is nobody who could have given it to him.
func (m followModel) judge(s *followState) verdict {
	if s.bad != moving {
		return s.bad
	}
	moves := 0
	m.next(s, func(*followState, label) { moves++ })
	if moves > 0 {
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
