package model

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

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

type framesBug uint8

const (
	fNone          framesBug = iota
	fAnyGeneration           // a return names a frame only
	fReclaimAt               // a reclaim takes the loan that it names, too
	fReclaimLate             // the successor looks at the head after it has read
	fNoReclaim
	fReclaimPeeked // what was handed out is reclaimed, though it is handed out again
	fReleaseFirst  // in place: the entry is released before its return is posted
	fAnyRegion     // a return of a former UMEM is taken
)

type framesModel struct {
	frames   uint8
	packets  uint8
	inPlace  bool
	restarts bool
	anew     bool // it numbers completions anew; the reader lives as long as the lane
	size     size
	bug      framesBug
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

const framesBase step = 160

const (
	fD1 = framesBase + iota // and D3
	fD2
	fD4
	fRestart
	fG1
	fG2
	fG3
	fH1
	fH2
	fDies
)

var framesStepNames = [...]string{"D1 lend", "D2 publish", "D4 carry out",
	"dies, and the next begins", "G1 take", "G2 post return", "G3 release", "H1 look at head",
	"H2 post reclaim", "dies"}

type framesProtocol struct{ *framesModel }

func (m framesProtocol) start() framesState {
	s := framesState{left: m.packets, at: fD1, reader: fG1}
	return s
}

func (m framesProtocol) actor(who uint8) string {
	return [...]string{"device", "reader"}[who]
}

func (m framesProtocol) next(s *framesState, emit emitter[framesState]) {
	m.device(s, func(n *framesState, at step) { emit(n, label{0, at}) })
	m.read(s, func(n *framesState, at step) { emit(n, label{1, at}) })
}

func (m framesProtocol) device(s *framesState, emit func(*framesState, step)) {
	if m.restarts && s.region == 0 { // at any step; returns and reclaims under way stay
		n := *s
		n.region = 1
		if m.anew {
			n.base = s.tail
		}
		n.lent, n.lending, n.doing, n.at = [maxFrames]uint8{}, loan{}, command{}, fD1
		emit(&n, fRestart)
	}
	switch s.at {
	case fD1:
		for i := range s.commands {
			if s.commands[i] == (command{}) || i > 0 && s.commands[i] == s.commands[i-1] {
				continue
			}
			n := *s
			n.doing, n.commands[i], n.at = s.commands[i], command{}, fD4
			n.sort()
			emit(&n, fD1)
		}
		for f := range m.frames {
			if s.left == 0 || s.lent[f] != 0 || s.tail-s.head == laneRoom {
				continue
			}
			n := *s
			n.lending = loan{f, s.tail - s.base + 1, s.region}
			n.left--
			n.at = fD2
			n.lent[f] = n.lending.seq
			emit(&n, fD1)
		}
	case fD2:
		n := *s
		n.lane[s.tail%laneRoom], n.returned[s.tail%laneRoom] = s.lending, false
		n.tail++
		n.at = fD1
		n.lending = loan{}
		emit(&n, fD2)
	case fD4:
		n := *s
		m.carryOut(s, &n)
		n.doing, n.at = command{}, fD1
		emit(&n, fD4)
	}
}

func (m framesProtocol) carryOut(s, n *framesState) {
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

func (m framesProtocol) read(s *framesState, emit func(*framesState, step)) {
	n := *s
	n.held, n.claims, n.owes, n.before, n.reader = loan{}, false, false, 0, fH1
	if !m.anew {
		m.die(&n, emit)
	}
	n = *s
	if s.owes && s.reader != fH1 {
		r := command{loan{0, s.before, s.region}, true}
		if n.post(r) {
			n.owes, n.before = false, 0
			emit(&n, fH2)
		}
		n = *s
	}
	i := s.head % laneRoom
	switch s.reader {
	case fH1:
		m.lookAtHead(&n)
		n.reader = fG1
		emit(&n, fH1)
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
			m.lookAtHead(&n)
		}
		emit(&n, fG1)
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
		emit(&n, fG2)
	case fG3:
		n.release()
		n.reader = fG1
		if m.bug == fReleaseFirst {
			n.reader = fG2
		}
		emit(&n, fG3)
	}
}

// die is the reader's death. One that copied nothing out leaves nothing to reclaim.
func (m framesProtocol) die(n *framesState, emit func(*framesState, step)) {
	if m.inPlace && m.bug != fReclaimPeeked || m.bug == fReclaimLate || m.bug == fNoReclaim {
		n.reader = fG1
	}
	emit(n, fDies)
}

func (n *framesState) release() {
	n.lane[n.head%laneRoom], n.returned[n.head%laneRoom] = loan{}, false
	n.head++
	n.peeked = max(n.peeked, n.head)
}

// lookAtHead is H1: what was lent before the head, in sequences of the present device process.
func (m framesProtocol) lookAtHead(n *framesState) {
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
func (m framesProtocol) judge(s *framesState) verdict {
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

var framesVariants = map[string]framesModel{
	"copied":            {frames: 2, packets: 3},
	"in place":          {frames: 2, packets: 3, inPlace: true},
	"copied, 3 frames":  {frames: 3, packets: 5, size: complete},
	"in place, 3":       {frames: 3, packets: 5, inPlace: true, size: complete},
	"it dies":           {frames: 2, packets: 3, restarts: true},
	"it dies, 3 frames": {frames: 3, packets: 4, restarts: true, size: complete},
	"numbered anew":     {frames: 2, packets: 4, restarts: true, anew: true},
	"in place, it dies": {frames: 2, packets: 3, inPlace: true, restarts: true, size: short},
}

var framesMutants = []struct {
	base string
	bug  framesBug
	text string
}{
	{"copied", fAnyGeneration, "a return names no sequence"},
	{"in place", fAnyGeneration, "a return names no sequence, in place"},
	{"copied", fReclaimAt, "a reclaim takes the loan at the head as well"},
	{"copied", fReclaimLate, "the successor looks at the head after its first read"},
	{"copied", fNoReclaim, "the successor reclaims nothing"},
	{"in place", fReclaimPeeked, "what is handed out again is reclaimed"},
	{"in place", fReleaseFirst, "the entry is released before its return is posted"},
	{"numbered anew", fAnyRegion, "a return of a former UMEM is taken"},
}

func (m framesModel) with(b framesBug) protocol[framesState] {
	m.bug = b
	return framesProtocol{&m}
}

func TestModelFramesLosesNothing(t *testing.T) {
	for name, m := range framesVariants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.size > modelSize() {
				t.Skip("explored with -model.full, or not with -short")
			}
			o := explore(m.with(fNone), false)
			t.Logf("%-20s %v", name, o)
			compare(t, framesTitle+": "+name, o)
			if o.resting == 0 || o.stuck > 0 {
				t.Errorf("%d states at rest, %d stuck", o.resting, o.stuck)
			}
			if o.lost+o.muted > 0 {
				t.Errorf("shortest run:%s", interleaving(m.with(fNone)))
			}
		})
	}
}

func TestModelFramesCatchesMutants(t *testing.T) {
	shmtest.Long(t)
	for _, c := range framesMutants {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			if framesVariants[c.base].size > modelSize() {
				t.Skip("explored with -model.full, or not with -short")
			}
			o := explore(framesVariants[c.base].with(c.bug), !*modelFull)
			t.Logf("%-64s %v", c.text, o)
			if o.lost == 0 {
				t.Errorf("the mutant survives: %v", o)
			}
		})
	}
}
