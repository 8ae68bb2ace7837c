package model

import "slices"

// The return of frames, explored: a device process lends the frames of a UMEM by completions in a
// lane, their reader gives them back by commands. The reader may die at any step, and the next one
// takes over, any number of times; commands of a dead one are still on their way then, and overtake
// those of its successor or do not. The device process may die too, once; the next one has a UMEM
// of its own, and goes on in its lane, or numbers completions anew.
//
//	D1 lend a free frame under the completion's sequence   D2 publish the completion
//	D3 take a command   D4 carry it out: a return names frame and sequence, a reclaim a sequence
//	G1 take an entry    G2 post its return    G3 release the entry (in place; a copy is released
//	                                          when it is taken)
//	H1 look at the head of the one before     H2 post the reclaim of all before it
//
// Nothing that a living reader holds may be free or lent anew, nor what is unread; and once all is
// quiet each frame that is lent is one of those. An entry that is handed out once more after its
// return was posted has no claim on its frame: the dead reader was done with it.
//
// Not required: that the loan is recorded before its completion is published, since one goroutine
// does both and takes commands.

const (
	maxFrames   = 3
	maxCommands = 3
	laneRoom    = 4
)

// Deviations.
const (
	fAnyGeneration = "a return names no sequence"
	fReclaimAt     = "a reclaim takes the loan at the head as well"
	fReclaimLate   = "the successor looks at the head after its first read"
	fNoReclaim     = "the successor reclaims nothing"
	fReclaimPeeked = "what is handed out again is reclaimed"
	fReleaseFirst  = "the entry is released before its return is posted"
	fAnyRegion     = "a return of a former UMEM is taken"
)

type framesModel struct {
	frames   uint8
	packets  uint8
	inPlace  bool
	restarts bool
	anew     bool // it numbers completions anew; the reader lives as long as the lane
	deviant
}

// loan is a frame under a completion's sequence, plus one; 0 is none.
type loan struct{ frame, seq, region uint8 }

// command is a return of one loan, or a reclaim of all before seq. They are kept in order of their
// numbers, for the order that they arrive in means nothing.
type command struct {
	loan
	reclaim bool
}

type framesState struct {
	lent       [maxFrames]uint8 // sequence plus one of the loan, 0 if free
	region     uint8
	base       uint8          // index that the lane stood at when the device process began
	lane       [laneRoom]loan // by index
	returned   [laneRoom]bool // of entries in the lane: a return was posted
	head, tail uint8
	peeked     uint8
	left       uint8
	at         step // of the device process
	lending    loan
	doing      command
	reader     step
	held       loan // what the reader uses
	claims     bool // and may rely on
	before     uint8
	owes       bool // a reclaim is to be posted
	commands   [maxCommands]command
}

const (
	fD1      step = iota // lend, and D3: take a command
	fD2                  // publish
	fD4                  // carry out
	fRestart             // dies, and the next begins
	fG1                  // take
	fG2                  // post return
	fG3                  // release
	fH1                  // look at head
	fH2                  // post reclaim
	fDies
)

func (m framesModel) start() framesState {
	s := framesState{left: m.packets, at: fD1, reader: fG1}
	return s
}

func (m framesModel) names() []string { return []string{"fD1", "device", "reader"} }

func (m framesModel) next(s *framesState, x *search[framesState]) {
	m.device(s, x)
	m.read(s, x)
}

func (m framesModel) device(s *framesState, x *search[framesState]) {
	if m.restarts && s.region == 0 { // at any step; returns and reclaims under way stay
		n := x.fork(s)
		n.region = 1
		if m.anew {
			n.base = s.tail
		}
		n.lent, n.lending, n.doing, n.at = [maxFrames]uint8{}, loan{}, command{}, fD1
		x.by(0, fRestart)
		x.emit(n)
	}
	x.by(0, s.at)
	switch s.at {
	case fD1:
		for i := range s.commands {
			if s.commands[i] == (command{}) || i > 0 && s.commands[i] == s.commands[i-1] {
				continue
			}
			n := x.fork(s)
			n.doing, n.commands[i], n.at = s.commands[i], command{}, fD4
			n.sort()
			x.emit(n)
		}
		for f := range m.frames {
			if s.left == 0 || s.lent[f] != 0 || s.tail-s.head == laneRoom {
				continue
			}
			n := x.fork(s)
			n.lending = loan{f, s.tail - s.base + 1, s.region}
			n.left--
			n.at = fD2
			n.lent[f] = n.lending.seq
			x.emit(n)
		}
	case fD2:
		n := x.fork(s)
		n.lane[s.tail%laneRoom], n.returned[s.tail%laneRoom] = s.lending, false
		n.tail++
		n.at = fD1
		n.lending = loan{}
		x.emit(n)
	case fD4:
		n := x.fork(s)
		m.carryOut(s, n)
		n.doing, n.at = command{}, fD1
		x.emit(n)
	}
}

func (m framesModel) carryOut(s, n *framesState) {
	c := s.doing
	switch {
	case c.region != s.region && m.bug != fAnyRegion:
	case c.reclaim:
		for f, seq := range s.lent {
			if seq != 0 && (seq < c.seq || seq == c.seq && m.bug == fReclaimAt) {
				n.lent[f] = 0
			}
		}
	case s.lent[c.frame] == c.seq || m.bug == fAnyGeneration:
		n.lent[c.frame] = 0
	}
}

// post adds a command. Each writer has room for what it may post.
func (s *framesState) post(c command) bool {
	if s.commands[0] != (command{}) {
		return false
	}
	s.commands[0] = c
	s.sort()
	return true
}

func (s *framesState) sort() {
	less := func(a, b command) bool {
		ka := [4]uint8{a.frame, a.seq, a.region}
		kb := [4]uint8{b.frame, b.seq, b.region}
		if a.reclaim != b.reclaim {
			return b.reclaim
		}
		for i := range ka {
			if ka[i] != kb[i] {
				return ka[i] < kb[i]
			}
		}
		return false
	}
	for i := 1; i < maxCommands; i++ {
		for j := i; j > 0 && less(s.commands[j], s.commands[j-1]); j-- {
			s.commands[j], s.commands[j-1] = s.commands[j-1], s.commands[j]
		}
	}
}

func (m framesModel) read(s *framesState, x *search[framesState]) {
	n := x.fork(s)
	n.held, n.claims, n.owes, n.before, n.reader = loan{}, false, false, 0, fH1
	if !m.anew {
		m.die(n, x)
	}
	n = x.fork(s)
	if s.owes && s.reader != fH1 {
		r := command{loan{0, s.before, s.region}, true}
		if n.post(r) {
			n.owes, n.before = false, 0
			x.by(1, fH2)
			x.emit(n)
		}
		n = x.fork(s)
	}
	x.by(1, s.reader)
	i := s.head % laneRoom
	switch s.reader {
	case fH1:
		m.lookAtHead(n)
		n.reader = fG1
		x.emit(n)
	case fG1:
		if s.head == s.tail {
			return
		}
		n.held, n.claims, n.reader = s.lane[i], !s.returned[i], fG2
		if m.inPlace {
			n.peeked = max(s.peeked, s.head+1)
		} else {
			n.release()
		}
		if m.inPlace && m.bug == fReleaseFirst {
			n.reader = fG3
		}
		if m.bug == fReclaimLate && !s.owes {
			m.lookAtHead(n)
		}
		x.emit(n)
	case fG2:
		if !n.post(command{loan: s.held}) {
			return
		}
		if m.inPlace && m.bug != fReleaseFirst {
			n.returned[i] = true
			n.reader = fG3
		} else {
			n.reader = fG1
		}
		n.held, n.claims = loan{}, false
		x.emit(n)
	case fG3:
		n.release()
		n.reader = fG1
		if m.bug == fReleaseFirst {
			n.reader = fG2
		}
		x.emit(n)
	}
}

// die is the reader's death. One that copied nothing out leaves nothing to reclaim.
func (m framesModel) die(n *framesState, x *search[framesState]) {
	if m.inPlace && m.bug != fReclaimPeeked || m.bug == fReclaimLate || m.bug == fNoReclaim {
		n.reader = fG1
	}
	x.by(1, fDies)
	x.emit(n)
}

func (n *framesState) release() {
	n.lane[n.head%laneRoom], n.returned[n.head%laneRoom] = loan{}, false
	n.head++
	n.peeked = max(n.peeked, n.head)
}

// lookAtHead is H1: what was lent before the head, in sequences of the present device process.
func (m framesModel) lookAtHead(n *framesState) {
	at := n.head
	if m.bug == fReclaimPeeked {
		at = n.peeked
	}
	n.owes = at > n.base
	if n.owes {
		n.before = at - n.base + 1
	}
}

// judge: lost stands for a frame that two have, and for one that nobody has.
func (m framesModel) judge(s *framesState) verdict {
	mine := func(l loan) bool { return l.region == s.region && s.lent[l.frame] == l.seq }
	if s.held.seq != 0 && s.claims && s.held.region == s.region && !mine(s.held) {
		return lost
	}
	need := [maxFrames]bool{}
	if s.held.seq != 0 && mine(s.held) {
		need[s.held.frame] = true
	}
	for at := s.head; at != s.tail; at++ {
		l := s.lane[at%laneRoom]
		if l.region != s.region || s.returned[at%laneRoom] {
			continue
		}
		if !mine(l) {
			return lost
		}
		need[l.frame] = true
	}
	if s.at != fD1 || s.commands[maxCommands-1] != (command{}) || s.owes || s.reader != fG1 ||
		s.head != s.tail {
		return moving
	}
	for f, seq := range s.lent {
		if seq != 0 && !need[f] {
			return lost
		}
	}
	return resting
}

var frames = family{
	title: "Frames",
	variants: []variant{
		form("copied", framesModel{frames: 2, packets: 3}),
		form("copied, 3 frames", framesModel{frames: 3, packets: 5}),
		form("in place", framesModel{frames: 2, packets: 3, inPlace: true}),
		form("in place, 3", framesModel{frames: 3, packets: 5, inPlace: true}),
		form("in place, it dies", framesModel{frames: 2, packets: 3, inPlace: true, restarts: true}),
		form("it dies", framesModel{frames: 2, packets: 3, restarts: true}),
		form("it dies, 3 frames", framesModel{frames: 3, packets: 4, restarts: true}),
		form("numbered anew", framesModel{frames: 2, packets: 4, restarts: true, anew: true}),
	},
	mutants: slices.Concat(
		on("copied", fAnyGeneration, fReclaimAt, fReclaimLate, fNoReclaim),
		on("in place", fReclaimPeeked, fReleaseFirst, fAnyGeneration),
		on("numbered anew", fAnyRegion)),
}
