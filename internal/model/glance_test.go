package model

// A look at a shared queue without its lock, explored: two writers publish, a reader that has the
// lock takes marks and entries and parks, and somebody glances (cq/read.go). A glance may say
// that the queue is empty only if it was at some moment since it began: an entry counts from when
// its post returned until it is taken. Who finds it not empty goes in by the door of the one lane
// and takes an entry: nobody else may take any of that lane meanwhile, and the memory must stay.
//
//	P1 store tail   P2 load parked   P3 mark, if it was parked
//	L1 shut the door, or wait for who is inside
//	R1 look at the marks   R2 count a change   R3 take them   R4 heat   R5 take entries, or
//	R1 take from the one lane that can have any
//	V1 note taken, which opens the door   V2 note the change   V3 note the lane
//	K1 park   K2 look again
//	G1 load the lane   G2 load its change   G3 load what is taken   G4 load its tail
//	G5 look at the marks   G6 load the changes
//	T1 go in   T2 copy   T3 store the head   T4 open the door again
//
// Not in the model: the order of plain stores, since what is noted is stored with release and each
// load of the glance acquires; overruns and errors, which the next look finds. The reader ends by
// closing.

// What the bell answers beside the number of a lane.
const (
	glanceNobody  = 2
	glanceSeveral = 3
)

// glanceShut is what a door holds that is not open.
const glanceShut = 9

type glanceModel struct {
	posts        [2]uint8
	reads, parks uint8
	looks        uint8 // of a glancer that also takes; 0 is one that looks once
	deviant
}

type glanceNote struct{ taken, change uint8 }

type glanceState struct {
	left, tail, back, head [2]uint8 // back: posts that returned
	writer                 [2]step
	parked, marks          uint8 // bits of lanes, as are these two of the reader
	cand, hot              uint8
	only, changes          uint8
	reader                 step
	reads, parks, looks    uint8
	door                   uint8         // that is open, for all the reader knows
	gone                   bool          // closed
	note                   [3]glanceNote // of each lane, and of nobody
	lane                   uint8         // that was noted last
	glancer                step
	g                      glanceNote
	of, tailSeen, copied   uint8
	empty                  bool // the queue was, since the glance began
	bad                    bool
}

const (
	glanceP1 step = iota // store tail
	glanceP2             // parked?
	glanceP3             // mark
	glanceL1             // shut the door
	glanceR1             // look at the marks
	glanceR2             // count a change
	glanceR3             // take the marks
	glanceR4             // heat
	glanceR5             // take an entry
	glanceV1             // note what is taken
	glanceV2             // note the change
	glanceV3             // note the lane
	glanceK1             // park
	glanceK2             // look again
	glanceG1             // load the lane
	glanceG2             // load its change
	glanceG3             // load what is taken of it
	glanceG4             // load its tail
	glanceG5             // look at the marks
	glanceG6             // load the changes
	glanceT1             // go in
	glanceT2             // copy
	glanceT3             // store the head
	glanceT4             // open the door
	glanceEnd
)

// Deviations.
const (
	glanceTakes    = "marks are taken before the change is counted"
	glanceUncounts = "changes are not compared"
	glanceUnmarked = "marks are not looked at"
	glanceTail     = "the tail is loaded before what is taken"
	glanceLate     = "the lane's change is loaded after its tail"
	glanceMarks    = "marks are looked at behind the changes"
	glanceAhead    = "what waits is noted as taken"
	glanceOrder    = "the change is noted before what is taken"
	glanceLets     = "who takes the lock leaves the door open"
	glanceWaits    = "who takes the lock does not wait for who is inside"
	glanceCloses   = "who closes leaves the door open"
	glanceClaims   = "who goes in does not look whether the door is still open"
	glanceLeaves   = "the door is opened before the head is stored"
	glanceAll      = "who goes in notes what waits as taken"
)

func (m glanceModel) names() []string {
	return []string{"glanceP1", "writer 0", "writer 1", "reader", "glancer"}
}

func (m glanceModel) start() (s glanceState) {
	s.left, s.reads, s.parks = m.posts, m.reads, m.parks
	s.writer = [2]step{glanceP1, glanceP1}
	s.parked, s.only, s.changes = 3, glanceSeveral, 1
	s.reader, s.glancer, s.lane = glanceL1, glanceG1, glanceNobody
	s.looks, s.door = max(1, m.looks), glanceNobody
	s.note[0].taken, s.note[1].taken = glanceShut, glanceShut
	return s
}

// same notes the moments at which the queue is empty.
func (m glanceModel) same(n *glanceState) {
	if n.back[0] <= n.head[0] && n.back[1] <= n.head[1] {
		n.empty = true
	}
}

func (m glanceModel) next(s *glanceState, x *search[glanceState]) {
	for l := range uint8(2) {
		x.does(s, l, s.writer[l], s.writer[l] != glanceP1 || s.left[l] > 0,
			func(n *glanceState) { m.write(n, l) })
	}
	x.by(2, s.reader)
	m.read(s, x)
	x.does(s, 3, s.glancer, s.glancer != glanceEnd, func(n *glanceState) { m.glance(n) })
}

func (m glanceModel) write(n *glanceState, l uint8) {
	switch n.writer[l] {
	case glanceP1:
		n.tail[l]++
		n.left[l]--
		n.writer[l] = glanceP2
	case glanceP2:
		if n.writer[l] = glanceP3; n.parked>>l&1 == 0 {
			n.writer[l] = glanceP1
			n.back[l]++
		}
	case glanceP3:
		n.marks |= 1 << l
		n.writer[l] = glanceP1
		n.back[l]++
	}
}

func (s *glanceState) answer(only uint8) {
	if s.only != only {
		s.only = only
		s.changes++
	}
}

// survey is what the bell answers once the candidates are hot.
func (s *glanceState) survey() uint8 {
	switch {
	case s.cand == 0:
		return glanceNobody
	case s.cand&s.hot == s.cand && s.cand != 3:
		return s.cand - 1
	}
	return glanceSeveral
}

func (m glanceModel) read(s *glanceState, x *search[glanceState]) {
	n := x.fork(s)
	switch s.reader {
	case glanceL1:
		if s.gone || s.door != glanceNobody && !m.shut(n) {
			return
		}
		if s.reads == 0 {
			n.gone = true
			n.bad = s.glancer > glanceT1 && s.glancer < glanceEnd
			break
		}
		n.reads--
		n.reader = glanceR1
	case glanceR1:
		if s.parks > 0 {
			y := x.fork(s)
			y.parks--
			y.reader = glanceK1
			x.by(2, glanceK1)
			x.emit(y)
			x.by(2, glanceR1)
		}
		switch {
		case s.marks != 0 && m.bug == glanceTakes:
			n.reader = glanceR3
		case s.marks != 0:
			n.reader = glanceR2
		case s.only == glanceSeveral:
			n.reader = glanceR4
		default:
			if s.only < glanceNobody && s.head[s.only] < s.tail[s.only] {
				n.head[s.only]++
			}
			n.reader = glanceV1
		}
	case glanceR2:
		n.answer(glanceSeveral)
		if n.reader = glanceR3; m.bug == glanceTakes {
			n.reader = glanceR4
		}
	case glanceR3:
		n.cand |= s.marks
		n.marks = 0
		if n.reader = glanceR4; m.bug == glanceTakes {
			n.reader = glanceR2
		}
	case glanceR4:
		for l := range uint8(2) {
			bit := uint8(1) << l
			if n.cand&^n.hot&bit == 0 {
				continue
			}
			if n.head[l] == n.tail[l] {
				n.cand &^= bit
				continue
			}
			n.hot |= bit
			n.parked &^= bit
		}
		n.answer(n.survey())
		n.reader = glanceR5
	case glanceR5:
		for l := range uint8(2) {
			if n.cand>>l&1 != 0 && n.head[l] < n.tail[l] {
				n.head[l]++
				break
			}
		}
		n.reader = glanceV1
	case glanceK1:
		n.answer(glanceSeveral)
		n.parked |= n.hot
		n.hot = 0
		n.reader = glanceK2
	case glanceK2:
		for l := range uint8(2) {
			if n.head[l] == n.tail[l] {
				n.cand &^= 1 << l
			}
		}
		n.reader = glanceR1
	default:
		m.note(n)
	}
	x.emit(n)
}

// shut reports whether the reader may go on.
func (m glanceModel) shut(n *glanceState) bool {
	if m.bug == glanceLets && n.reads > 0 || m.bug == glanceCloses && n.reads == 0 {
		return true
	}
	d := &n.note[n.door]
	if d.taken == glanceShut && m.bug != glanceWaits {
		return false
	}
	d.taken, n.door = glanceShut, glanceNobody
	return true
}

// note is what the reader does when it leaves the lock.
func (m glanceModel) note(n *glanceState) {
	change := n.reader == glanceV2
	if m.bug == glanceOrder {
		change = n.reader == glanceV1
	}
	switch {
	case n.only == glanceSeveral || n.reader == glanceV1 && n.marks != 0:
		n.reader = glanceL1
		return
	case n.reader == glanceV3:
		n.lane, n.reader = n.only, glanceL1
		return
	case change:
		n.note[n.only].change = n.changes
	case n.only == glanceNobody:
	case m.bug == glanceAhead:
		n.note[n.only].taken, n.door = n.tail[n.only], n.only
	default:
		n.note[n.only].taken, n.door = n.head[n.only], n.only
	}
	n.reader++
}

func (m glanceModel) glance(n *glanceState) {
	load := func(at step) {
		switch at {
		case glanceG2:
			n.g.change = n.note[n.of].change
		case glanceG3:
			n.g.taken = n.note[n.of].taken
		case glanceG4:
			if n.of < glanceNobody {
				n.tailSeen = n.tail[n.of]
			}
		}
	}
	swapped := func(a, b step) {
		switch n.glancer {
		case a:
			load(b)
		case b:
			load(a)
		default:
			load(n.glancer)
		}
	}
	at := n.glancer
	n.glancer++
	switch {
	case at == glanceG1:
		n.looks--
		n.of, n.empty, n.tailSeen = n.lane, false, 0
		return
	case at >= glanceT1:
		m.goIn(n, at)
		return
	case at < glanceG5:
		n.glancer--
		switch m.bug {
		case glanceTail:
			swapped(glanceG3, glanceG4)
		case glanceLate:
			swapped(glanceG2, glanceG4)
		default:
			load(at)
		}
		n.glancer++
		return
	}
	marks := at == glanceG5
	if m.bug == glanceMarks {
		marks = !marks
	}
	switch {
	case marks && m.bug != glanceUnmarked && n.marks != 0,
		!marks && m.bug != glanceUncounts && n.changes != n.g.change:
		m.look(n) // it says nothing
	case at == glanceG5:
	case n.tailSeen == n.g.taken:
		n.bad = n.bad || !n.empty
		m.look(n)
	case m.looks == 0 || n.g.taken == glanceShut:
		m.look(n)
	}
}

// look begins with the next look, if there is one.
func (m glanceModel) look(n *glanceState) {
	if n.glancer = glanceG1; n.looks == 0 {
		n.glancer = glanceEnd
	}
}

func (m glanceModel) goIn(n *glanceState, at step) {
	if at >= glanceT3 && m.bug == glanceLeaves {
		at = glanceT3 + glanceT4 - at
	}
	switch at {
	case glanceT1:
		if n.note[n.of].taken != n.g.taken && m.bug != glanceClaims {
			m.look(n)
			return
		}
		n.note[n.of].taken = glanceShut
	case glanceT2:
		n.copied = n.head[n.of]
	case glanceT3:
		n.bad = n.bad || n.head[n.of] != n.copied || n.copied == n.tail[n.of]
		n.head[n.of]++
	case glanceT4:
		n.note[n.of].taken = n.copied + 1
		if m.bug == glanceAll {
			n.note[n.of].taken = n.tail[n.of]
		}
	}
	if n.glancer == glanceEnd {
		m.look(n)
	}
}

func (m glanceModel) judge(s *glanceState) verdict {
	switch {
	case s.bad:
		return lost
	case moves(protocol[glanceState](m), s):
		return moving
	}
	return resting
}

var glances = family{
	title: "A look at a shared queue without its lock",
	variants: []variant{
		form("two and one", glanceModel{posts: [2]uint8{2, 1}, reads: 3, parks: 1}),
		form("three and none", glanceModel{posts: [2]uint8{3, 0}, reads: 4}),
		form("three and one", glanceModel{posts: [2]uint8{3, 1}, reads: 3, parks: 1}),
		form("three and two", glanceModel{posts: [2]uint8{3, 2}, reads: 4, parks: 1}),
		form("taking, two and one", glanceModel{posts: [2]uint8{2, 1}, reads: 3, looks: 3, parks: 1}),
		form("taking, three and none", glanceModel{posts: [2]uint8{3, 0}, reads: 3, looks: 3}),
		form("taking, three and two", glanceModel{posts: [2]uint8{3, 2}, reads: 3, looks: 3}),
	},
	mutants: append(
		on("two and one", glanceTakes, glanceUncounts, glanceUnmarked, glanceMarks, glanceAhead),
		append(on("three and none", glanceTail),
			append(on("three and one", glanceLate),
				on("taking, three and none", glanceLets, glanceWaits, glanceCloses, glanceClaims,
					glanceLeaves, glanceAll)...)...)...),
	spare: append(on("two and one", glanceOrder), on("taking, two and one", glanceOrder)...),
}
