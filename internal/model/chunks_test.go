package model

import (
	"cmp"
	"slices"
)

// The chunks of a sender's pool, explored: who owns one, and when it may be written again. A sender
// lends two chunks to three receivers. The first may die, and the third is its successor; any of
// them may close. Writing and reading take two steps each, so that both can be caught at it.
//
//	B1 take a free chunk: the generation moves   B2 publish, or keep it if the receiver is gone
//	B3 take a return: it counts if state, receiver and generation agree
//	B4 a receiver is proved dead, or has closed: drain its returns, then reclaim
//	B5 examine   B6 read   B7 return after the read   B8 close: return what is held, then say so

type chunksModel struct {
	sends   uint8
	returns uint8 // places of a return ring
	again   bool  // a faulty receiver returns once more what it returned
	omits   uint8
	deviant
}

// What a return is checked for, and the order of a reclaim.
const (
	checksGeneration = 1 << iota
	checksState
	checksReceiver
	drainsFirst
	wholeGeneration
)

// Deviations.
const (
	chunksAnyGeneration = "a return counts whatever its generation"
	chunksAnyState      = "a return counts whatever the state"
	chunksLateDrain     = "chunks of the dead are reclaimed before its returns are drained"
	chunksLateAnyState  = "reclaimed before it is drained, and returns count whatever the state"
	chunksLateAny       = "reclaimed before it is drained, and any return counts"
	chunksOneBit        = "a generation of one bit, and returns count whoever sends them"
	chunksSilence       = "chunks of a receiver are reclaimed because it is silent"
	chunksClosedEarly   = "a receiver says that it has closed while it holds chunks"
	chunksNoReclaim     = "what a closed receiver did not examine is not reclaimed"
	chunksEarlyReturn   = "a chunk is returned before it is read"
	chunksSmallRing     = "a return ring has fewer places than the quota"
)

// chunksOmit are deviations that leave out checks.
var chunksOmit = map[string]uint8{
	chunksAnyGeneration: checksGeneration,
	chunksAnyState:      checksState,
	chunksLateDrain:     drainsFirst,
	chunksLateAnyState:  drainsFirst | checksState,
	chunksLateAny:       drainsFirst | checksGeneration | checksReceiver,
	chunksOneBit:        wholeGeneration | checksReceiver,
}

// lent names a chunk that went out, and its generation. The zero value names none.
type lent struct{ chunk, generation uint8 }

// A chunk is free, is being written, or is out.
const (
	chunkWritten = 1 + iota
	chunkOut
)

type borrower struct {
	lane      [2]lent
	held      [2]uint8 // the generation, by chunk; 0 is none
	reading   uint8    // one more than the chunk
	ring      [4]lent
	dead      bool
	closing   bool
	closed    bool
	reclaimed bool // by the sender
	repeated  bool
}

type chunksState struct {
	is, generation, to [2]uint8 // by chunk
	r                  [3]borrower
	writing, left      uint8
	fault              fault
}

const (
	chunksTakes    step = iota // B1 take a chunk
	chunksPublish              // B2 publish
	chunksDrain                // B3 take a return
	chunksReclaim              // B4 reclaim
	chunksExamine              // B5 examine
	chunksRead                 // B6 read
	chunksReturn               // B7 return
	chunksDiscard              // B8 return what was not read
	chunksCloses               // B8 close
	chunksClosed               // B8 say so
	chunksDies                 // dies
	chunksReturns2             // returns it twice
)

func (m chunksModel) names() []string {
	return []string{"chunksTakes", "receiver 0", "receiver 1", "successor", "sender"}
}

func (m chunksModel) start() chunksState { return chunksState{left: m.sends} }

// mayRead tells whether anybody may still read a chunk.
func (s *chunksState) mayRead(c uint8) bool {
	return slices.ContainsFunc(s.r[:], func(r borrower) bool {
		return !r.dead && (r.held[c] != 0 || r.reading == c+1 ||
			!r.closed && (r.lane[0].chunk == c+1 || r.lane[1].chunk == c+1))
	})
}

func (m chunksModel) next(s *chunksState, x *search[chunksState]) {
	for p := range s.r {
		for c := range uint8(2) {
			x.by(3, chunksTakes)
			if n := x.fork(s); m.take(n, c, uint8(p)) {
				x.emit(n)
			}
		}
	}
	x.does(s, 3, chunksPublish, s.writing != 0, func(n *chunksState) {
		c := s.writing - 1
		n.writing, n.is[c] = 0, chunkOut
		if r := &n.r[s.to[c]]; r.reclaimed {
			n.is[c] = 0
		} else {
			r.lane[slices.Index(r.lane[:], lent{})] = lent{c + 1, s.generation[c]}
		}
	})
	for p := range s.r {
		r := &s.r[p]
		x.does(s, 3, chunksDrain, r.ring[0].chunk != 0, func(n *chunksState) { m.drain(n, uint8(p)) })
		early := m.omits&drainsFirst != 0
		gone := r.dead || r.closed || m.bug == chunksSilence
		x.does(s, 3, chunksReclaim, !r.reclaimed && gone && (early || r.ring[0].chunk == 0),
			func(n *chunksState) { m.reclaim(n, uint8(p)) })
		if !r.dead && !(r.closed && r.reading == 0) && (p < 2 || s.r[0].dead) {
			m.borrow(s, p, x)
		}
	}
}

// take is B1, within the quota of a receiver.
func (m chunksModel) take(n *chunksState, c, p uint8) bool {
	r := &n.r[p]
	if n.writing != 0 || n.left == 0 || n.is[c] != 0 || r.reclaimed || r.closed ||
		r.lane[1].chunk != 0 || p == 2 && !n.r[0].dead {
		return false
	}
	if n.mayRead(c) {
		n.fault = readByOther
	}
	n.is[c], n.to[c], n.writing = chunkWritten, p, c+1
	n.generation[c]++
	if m.omits&wholeGeneration != 0 {
		n.generation[c] = 2 - n.generation[c]%2
	}
	n.left--
	return true
}

func (m chunksModel) drain(n *chunksState, p uint8) {
	ring := &n.r[p].ring
	e := ring[0]
	copy(ring[:], ring[1:])
	ring[len(ring)-1] = lent{}
	c := e.chunk - 1
	if m.omits&checksGeneration == 0 && e.generation != n.generation[c] ||
		m.omits&checksState == 0 && n.is[c] != chunkOut ||
		m.omits&checksReceiver == 0 && n.to[c] != p {
		return
	}
	if n.is[c] == 0 {
		n.fault = endedTwice
	}
	if n.is[c] = 0; n.mayRead(c) {
		n.fault = readByOther
	}
}

func (m chunksModel) reclaim(n *chunksState, p uint8) {
	n.r[p].reclaimed = true
	for c := range uint8(2) {
		if n.is[c] != chunkOut || n.to[c] != p || m.bug == chunksNoReclaim && n.r[p].closed {
			continue
		}
		if n.is[c] = 0; n.mayRead(c) {
			n.fault = readByOther
		}
	}
}

// giveBack puts a chunk into the return ring.
func (m chunksModel) giveBack(n *chunksState, r *borrower, c, generation uint8) {
	i := slices.Index(r.ring[:m.returns], lent{})
	if i < 0 {
		n.fault = ringFull
		return
	}
	r.ring[i], r.held[c] = lent{c + 1, generation}, 0
}

// borrow is what a receiver does.
func (m chunksModel) borrow(s *chunksState, p int, x *search[chunksState]) {
	was := &s.r[p]
	does := func(at step, do func(n *chunksState, r *borrower)) {
		x.does(s, uint8(p), at, true, func(n *chunksState) { do(n, &n.r[p]) })
	}
	if p != 1 {
		does(chunksDies, func(_ *chunksState, r *borrower) { r.dead = true })
	}
	open := !was.closing && !was.closed
	if e := was.lane[0]; open && e.chunk != 0 {
		does(chunksExamine, func(_ *chunksState, r *borrower) {
			r.lane[0], r.lane[1] = r.lane[1], lent{}
			r.held[e.chunk-1] = e.generation
		})
	}
	if open {
		does(chunksCloses, func(_ *chunksState, r *borrower) {
			r.closing, r.closed = true, m.bug == chunksClosedEarly
		})
	}
	if was.closing && !was.closed && was.held == [2]uint8{} && was.reading == 0 {
		does(chunksClosed, func(_ *chunksState, r *borrower) { r.closed = true })
	}
	for c := range uint8(2) {
		if was.held[c] == 0 || was.reading != 0 {
			continue
		}
		does(chunksRead, func(n *chunksState, r *borrower) {
			if r.reading = c + 1; m.bug == chunksEarlyReturn {
				m.giveBack(n, r, c, was.held[c])
			}
		})
		if was.closing && !was.closed {
			does(chunksDiscard, func(n *chunksState, r *borrower) {
				m.giveBack(n, r, c, was.held[c])
			})
		}
	}
	if was.reading == 0 {
		return
	}
	c := was.reading - 1
	returns := func(n *chunksState, r *borrower) {
		if r.reading = 0; r.held[c] != 0 {
			m.giveBack(n, r, c, was.held[c])
		}
	}
	does(chunksReturn, returns)
	if m.again && !was.repeated && was.held[c] != 0 {
		does(chunksReturns2, func(n *chunksState, r *borrower) {
			returns(n, r)
			m.giveBack(n, r, c, was.held[c])
			r.repeated = true
		})
	}
}

// judge: in the end all chunks are free.
func (m chunksModel) judge(s *chunksState) verdict {
	switch {
	case s.fault != fine:
		return lost
	case s.is == [2]uint8{}:
		return resting
	}
	return moving
}

func (m *chunksModel) deviate(bug string) {
	m.bug, m.omits, m.returns = bug, chunksOmit[bug], cmp.Or(m.returns, 2)
	if bug == chunksSmallRing {
		m.returns = 1
	}
}

var chunks = family{
	title: "Chunks",
	variants: []variant{
		form("two sends", chunksModel{sends: 2}),
		form("three sends", chunksModel{sends: 3}),
		form("four sends", chunksModel{sends: 4}),
		form("two sends, one returned twice", chunksModel{sends: 2, again: true, returns: 4}),
		form("three sends, one returned twice", chunksModel{sends: 3, again: true, returns: 4}),
	},
	mutants: slices.Concat(
		on("three sends", chunksLateAnyState, chunksLateAny, chunksSilence, chunksClosedEarly,
			chunksNoReclaim, chunksEarlyReturn, chunksSmallRing),
		on("three sends, one returned twice", chunksAnyGeneration, chunksAnyState, chunksOneBit)),
	spare: on("three sends", chunksAnyGeneration, chunksAnyState, chunksLateDrain),
}
