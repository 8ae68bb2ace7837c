package model

// A place of an outbox, explored: its lanes have different receivers, one after the other. There
// are fewer numbers than lanes, so the last has the number of the first. Receivers say in one word
// of the place that they are done with the lane of a number. When the sender has gone, a collector
// unlinks the outbox if its lane is done, or its receiver is gone.
//
//	Z1 clear the word   Z2 name the lane, and send   Z3 end the lane   Z4 give the place on: the end
//	was examined, or the receiver is dead or closed; after a cut-off only if it is dead
//	Z5 adopt, examine   Z6 the word, then the head behind the end, or "closed"

type placesModel struct{ deviant }

// Deviations.
const (
	placesStays    = "the word of a place stays when its number comes again"
	placesClosed   = "a receiver says that it has closed before it is done"
	placesHead     = "a receiver tells its head before it is done"
	placesCutOff   = "the place of a receiver that was cut off is given on while it lives"
	placesUsers    = 3
	placesNumbered = 2
)

type placeUser struct {
	adopted, seen, done      bool // done: its word is stored
	leaves, told, gone, dead bool // leaves: it closes; gone: it said so
}

type placesState struct {
	r                          [placesUsers]placeUser
	use, word                  uint8
	clear, open, ended, cutOff bool // of the lane that there is
	exited, unlinked           bool
	fault                      fault
}

const (
	placesClear   step = iota // Z1 clear the word
	placesName                // Z2 name the lane
	placesEnd                 // Z3 end the lane
	placesGive                // Z4 give the place on
	placesCut                 // cut the receiver off
	placesExit                // the sender exits
	placesAdopt               // Z5 adopt
	placesExamine             // Z5 examine
	placesLeave               // Z6 begin to close
	placesDone                // Z6 the word
	placesTell                // Z6 the head
	placesShut                // Z6 closed
	placesDie                 // dies
	placesCollect             // the collector unlinks the outbox
)

func (m placesModel) names() []string {
	return []string{"placesClear", "first", "second", "third", "sender", "collector"}
}

func (m placesModel) start() (s placesState) { return s }

// number is that of the lane to a receiver.
func (m placesModel) number(i uint8) uint8 { return i%placesNumbered + 1 }

func (m placesModel) next(s *placesState, x *search[placesState]) {
	if !s.exited {
		m.send(s, x)
	}
	for i := range uint8(placesUsers) {
		r := &s.r[i]
		owes := m.bug == placesClosed && r.adopted && !r.done
		if !r.dead && (!r.gone || owes) && (i < s.use || i == s.use && s.open) {
			m.receive(s, i, x)
		}
	}
	if !s.exited || s.unlinked {
		return
	}
	over := !s.open || s.word == m.number(s.use) || s.r[s.use].dead || s.r[s.use].gone
	x.does(s, 4, placesCollect, over, func(n *placesState) {
		if n.unlinked = true; s.open {
			if r := &s.r[s.use]; !r.dead && !r.leaves && !r.seen {
				n.fault = neverRead
			}
		}
	})
}

func (m placesModel) send(s *placesState, x *search[placesState]) {
	does := func(at step, may bool, do func(n *placesState)) { x.does(s, 3, at, may, do) }
	does(placesExit, true, func(n *placesState) { n.exited = true })
	if !s.open {
		does(placesClear, !s.clear && s.use < placesUsers, func(n *placesState) {
			if n.clear = true; m.bug != placesStays {
				n.word = 0
			}
		})
		does(placesName, s.clear, func(n *placesState) { n.clear, n.open = false, true })
		return
	}
	r := &s.r[s.use]
	does(placesEnd, !s.ended && !s.cutOff, func(n *placesState) { n.ended = true })
	does(placesCut, !s.ended && !s.cutOff && s.use == 0, func(n *placesState) { n.cutOff = true })
	over := r.dead || !s.cutOff && (r.gone || s.ended && r.told) ||
		s.cutOff && m.bug == placesCutOff
	does(placesGive, over && s.use+1 < placesUsers, func(n *placesState) {
		n.open, n.ended, n.cutOff = false, false, false
		n.use++
	})
}

func (m placesModel) receive(s *placesState, i uint8, x *search[placesState]) {
	r := &s.r[i]
	does := func(at step, may bool, do func(n *placesState, r *placeUser)) {
		x.does(s, i, at, may, func(n *placesState) { do(n, &n.r[i]) })
	}
	does(placesDie, i+1 < placesUsers, func(_ *placesState, r *placeUser) { r.dead = true })
	does(placesLeave, !r.leaves, func(_ *placesState, r *placeUser) { r.leaves = true })
	here := i == s.use && s.open && !r.leaves
	does(placesAdopt, here && !r.adopted && !s.unlinked,
		func(_ *placesState, r *placeUser) { r.adopted = true })
	does(placesExamine, r.adopted && !r.seen && !r.leaves,
		func(_ *placesState, r *placeUser) { r.seen = true })
	behind := r.seen && here && (s.ended || s.exited) // the end of the lane, or of its sender
	late := m.bug == placesHead && r.told || m.bug == placesClosed && r.gone
	does(placesDone, r.adopted && !r.done && (behind || r.leaves && m.bug != placesClosed || late),
		func(n *placesState, r *placeUser) {
			r.done, n.word = true, m.number(i)
		})
	does(placesTell, behind && !r.told && (r.done || m.bug == placesHead),
		func(_ *placesState, r *placeUser) { r.told = true })
	does(placesShut, r.leaves && (r.done || !r.adopted || m.bug == placesClosed),
		func(_ *placesState, r *placeUser) { r.gone = true })
}

// judge: nothing is unlinked that a receiver has to examine, and in the end the outbox is.
func (m placesModel) judge(s *placesState) verdict {
	switch {
	case s.fault != fine:
		return lost
	case s.unlinked:
		return resting
	}
	return moving
}
