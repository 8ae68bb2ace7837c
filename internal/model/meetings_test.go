package model

import "slices"

// How two endpoints come together, explored. First over a socket: both sides do the same, at the
// same time. Either may die, be stopped for ever, or give up while it waits, and then it lives on.
//
//	M1 pass both objects   M2 wait for the first byte, as long as the program wants   M3 take what
//	the other one has passed, in bounded time   M4 lead a lane to it   M5 take the row's claim
//	M6 say ready   M7 hear ready   M8 adopt the other's lane   M9 watch its process and connection
//	G1 give up, or close: say closed   G2 adopt who is claimed, and tell   G3 say no   G4 hang up
//	L1 look at the other's row: once, and when it tells   L2 the notice of its death
//
// The socket is two lists of messages. Who is dead has hung up; who has met, hangs up. Left out are
// what is sent afterwards, whose ends are those of lanes, and bells, which are queues'.

type meetModel struct {
	gives bool // while it waits, a side may give up
	ends  bool // who has met may close
	dies  bool
	stops bool // and nobody gives up but by the bound
	keeps bool // programs leave the connection open
	deviant
}

// Deviations.
const (
	meetLateClaim   = "the row is claimed when ready is heard"
	meetNoFirstLook = "the other's row is looked at only when it tells"
	meetReadyFirst  = "ready is said before the lane leads there"
	meetUnheard     = "a lane is adopted before ready is heard"
	meetNoWatch     = "nobody watches who was met"
	meetHungIsDead  = "who has hung up is dead"
	meetNoBound     = "a peer that has begun is waited for without a bound"
	meetSilent      = "who gives up says nothing"
	meetUntold      = "who closes tells nobody"
	meetToldFirst   = "who closes tells that before it says so"
)

// Faults of meetings.
const (
	notWhole     fault = 140 + iota // a lane is adopted, or refused, that leads nowhere yet
	livingBuried                    // a death that is none
	otherLife                       // an endpoint is taken for another one that had its name
	rowTwice                        // two senders have one row
	unexamined                      // a message goes that somebody who lives has to examine
)

const (
	meetPasses  step = iota // M1 pass
	meetWaits               // M2 wait for a byte
	meetTakes               // M3 take objects
	meetLeads               // M4 lead a lane
	meetClaims              // M5 claim
	meetSays                // M6 say ready
	meetHears               // M7 hear ready
	meetAdopts              // M8 adopt
	meetWatches             // M9 watch
	meetMet                 // it has met
	meetCloses              // G1 say closed
	meetTells               // G2 adopt and tell
	meetNo                  // G3 say no
	meetHangs               // G4 hang up
	meetOver                // it has given up, or closed
	meetGives               // gives up
	meetLooks               // L1 look
	meetNotice              // L2 notice
	meetStops               // is stopped
	meetDies                // dies
)

type meetWord uint8

const (
	saysObjects meetWord = 1 + iota
	saysReady
	saysNo
)

type meetSide struct {
	at             step
	inbox          [3]meetWord
	lane           bool  // leads to the other one
	rev            uint8 // of its row, which it alone writes
	seen           uint8 // of the other's
	claimed, in    bool
	fresh          bool // it has not looked at the other's row yet
	closed, hung   bool
	dead, stopped  bool
	watches, knows bool // that the other one is gone
	met            bool
}

type meetState struct {
	of    [2]meetSide
	fault fault
}

func (m meetModel) names() []string { return []string{"meetPasses", "one", "other"} }

func (m meetModel) start() (s meetState) { return s }

// follows is the step behind one, by the order of the deviation.
func (m meetModel) follows(at step) step {
	order := []step{meetPasses, meetWaits, meetTakes, meetLeads, meetClaims, meetSays, meetHears,
		meetAdopts, meetWatches, meetMet}
	switch m.bug {
	case meetLateClaim:
		order[4], order[5], order[6] = meetSays, meetHears, meetClaims
	case meetReadyFirst:
		order[3], order[4], order[5] = meetSays, meetLeads, meetClaims
	case meetUnheard:
		order[6], order[7] = meetAdopts, meetHears
	}
	if at >= meetCloses {
		order = []step{meetCloses, meetTells, meetNo, meetHangs, meetOver}
		if m.bug == meetToldFirst {
			order[0], order[1] = meetTells, meetCloses
		}
	}
	return order[slices.Index(order, at)+1]
}

func (m meetModel) ended() step {
	if m.bug == meetToldFirst {
		return meetTells
	}
	return meetCloses
}

func (m meetModel) next(s *meetState, x *search[meetState]) {
	for i := range s.of {
		a, b := &s.of[i], &s.of[1-i]
		does := func(at step, may bool, do func(n *meetState, a *meetSide)) {
			x.does(s, uint8(i), at, may && !a.dead && !a.stopped,
				func(n *meetState) { do(n, &n.of[i]) })
		}
		does(meetDies, m.dies && !b.dead, func(_ *meetState, a *meetSide) {
			a.dead, a.hung = true, true
		})
		does(meetStops, m.stops && !b.stopped && a.at < meetMet,
			func(_ *meetState, a *meetSide) { a.stopped = true })
		does(a.at, a.at != meetMet && a.at != meetOver && m.may(a, b),
			func(n *meetState, _ *meetSide) { m.step(n, i) })
		waits := a.at == meetWaits || a.at == meetTakes || a.at == meetHears
		bound := m.stops && a.at != meetWaits && m.bug != meetNoBound
		here := !b.dead && b.at != meetOver // else it has to learn that
		does(meetGives, waits && (m.gives && here || bound && !m.may(a, b)),
			func(_ *meetState, a *meetSide) { a.at = m.ended() })
		does(meetGives, m.ends && here && a.at == meetMet,
			func(_ *meetState, a *meetSide) { a.at = m.ended() })
		looks := a.at == meetMet && (a.seen != b.rev || a.fresh && m.bug != meetNoFirstLook)
		does(meetLooks, looks && !a.knows, func(_ *meetState, a *meetSide) {
			a.seen, a.fresh, a.knows = b.rev, false, b.closed
		})
		gone := b.dead && b.hung || m.bug == meetHungIsDead && b.hung
		does(meetNotice, a.at == meetMet && a.watches && gone && !a.knows,
			func(n *meetState, a *meetSide) {
				if a.knows = true; !b.dead && !b.closed {
					n.fault = livingBuried
				}
			})
	}
}

// may says whether a step waits for nothing.
func (m meetModel) may(a, b *meetSide) bool {
	return a.at != meetWaits && a.at != meetTakes && a.at != meetHears || a.inbox[0] != 0 || b.hung
}

func (m meetModel) step(n *meetState, i int) {
	a, b := &n.of[i], &n.of[1-i]
	at := a.at
	a.at = m.follows(at)
	says := func(w meetWord) {
		if b.hung && w != saysNo {
			a.at = m.ended() // EPIPE
			return
		}
		b.inbox[slices.Index(b.inbox[:], 0)] = w
	}
	hears := func(w meetWord) {
		got := a.inbox[0]
		copy(a.inbox[:], a.inbox[1:])
		if a.inbox[2] = 0; got != w {
			a.at = m.ended() // a no, or it has hung up
		}
	}
	switch at {
	case meetPasses:
		says(saysObjects)
	case meetTakes:
		hears(saysObjects)
	case meetLeads:
		a.lane, a.seen, a.fresh = true, b.rev, true
	case meetClaims:
		a.claimed = true
	case meetSays:
		says(saysReady)
	case meetHears:
		hears(saysReady)
	case meetAdopts:
		if a.in = b.lane; !b.lane {
			n.fault = notWhole
		}
	case meetWatches:
		a.watches = m.bug != meetNoWatch
		a.met, a.hung = true, !m.keeps
	case meetCloses:
		a.closed = true
	case meetTells:
		if a.claimed && m.bug != meetUntold {
			a.in, a.rev = a.in || b.lane, a.rev+1
		}
	case meetNo:
		if !a.met && m.bug != meetSilent && slices.Contains(b.inbox[:], 0) {
			says(saysNo)
		}
	case meetHangs:
		a.hung = a.hung || !m.keeps
	}
}

// judge: who lives has met one who has not gone, or knows that it has, or has an error; and nothing
// but a death, a stop or a program keeps them from meeting.
func (m meetModel) judge(s *meetState) verdict {
	if s.fault != fine {
		return lost
	}
	for i := range s.of {
		a, b := &s.of[i], &s.of[1-i]
		gone := b.dead || b.at == meetOver
		switch {
		case a.dead || a.stopped:
		case a.at == meetMet && (b.stopped || !gone && b.at == meetMet || gone && a.knows):
		case a.at == meetOver && (m.gives || m.ends || m.dies || m.stops):
		case a.at == meetWaits && m.stops && b.stopped: // as long as its program wants
		default:
			return moving
		}
	}
	return resting
}

// Or by a name, in one directory: two senders want the one row of whoever has the name. That one
// may die or close, and another one have the name then; a sender may die.
//
//	N1 resolve: which life   N2 open: the same life, and open   N3 fill the lane and name it
//	N4 claim the row; there is none: ring for who claimed it and is not adopted   N5 look whether
//	it is closed, also without a row: give that back   N6 ring   N7 publish   N8 learn: it is
//	adopted, closed or dead
//	B1 adopt at a mark, or free the row of an outbox that is gone
//	B2 a sender is dead: free its row, remove its outbox   B3 close: say so
//	B4 adopt who is claimed, and tell   B5 unlink the name   C1 remove what the dead have left,
//	but for what they have published and one who lives has not examined
//
// Whose row it is, is told with the first look: what a row returns later is explored with lanes.

type nameModel struct {
	senders uint8
	kills   bool // of senders
	ends    bool // of who has the name: it dies, or closes, and another one comes
	deviant
}

// Deviations.
const (
	nameAnyLife     = "whoever has the name now is the one that was resolved"
	nameClaimFirst  = "a row is claimed before the lane has a number"
	nameRingFirst   = "a sender rings before it claims"
	nameNoSwap      = "a row that is free is taken by a store"
	nameNoLook      = "a sender does not look whether the other one has closed"
	nameLooksFirst  = "who closes looks at its claims before it says closed"
	nameUnfollowed  = "a sender does not follow who has the name"
	nameNoDeath     = "a sender is adopted without a look at its death"
	nameKeepsRow    = "who finds the other one closed keeps its row"
	nameSilentFull  = "who finds no row rings for nobody"
	nameFullFirst   = "who finds no row does not look whether the other one has closed"
	nameRemovesHeir = "what the dead have left is removed by its name"
	nameKeepsEmpty  = "a lane without a message is kept for its receiver"
	nameKeepsNone   = "what the dead have published is not looked at"
	nameSendsFirst  = "a sender publishes before it rings"
	nameNoOutbox    = "a row is given to a lane whose outbox is gone"
)

const (
	nameResolves  step = iota // N1 resolve
	nameOpens                 // N2 open
	nameFills                 // N3 fill and name the lane
	nameClaims                // N4 claim
	nameLooks                 // N5 look
	nameRings                 // N6 ring
	namePublishes             // N7 publish
	nameLearns                // N8 learn
	nameServed                // it is adopted
	nameFailed                // it has a typed error
	nameStores                // N4 claim, in two steps
	nameDies                  // dies
	nameAdopts                // B1 adopt
	nameFrees                 // B2 free
	nameCloses                // B3 close
	nameTells                 // B4 adopt and tell
	nameUnlinks               // B5 unlink
	nameBegins                // another one has the name
	nameCollects              // C1 remove
)

type nameSender struct {
	at         step
	life       uint8 // that was resolved
	of         uint8 // whose row it is at
	lane, sent bool
	box, dead  bool
}

// named is an endpoint with a name, from its start to its end.
type named struct {
	is                    step // 0: it is there
	begun, closed, dead   bool
	marked, told          bool
	claim, owner, waiting uint8 // a sender + 1
}

type nameState struct {
	by    [2]nameSender
	of    [3]named // by life
	name  uint8    // the life that has it
	looks uint8    // a collector's, at a life
	fault fault
}

func (m nameModel) names() []string {
	return []string{"nameResolves", "first", "second", "its life 1", "its life 2", "collector"}
}

func (m nameModel) start() (s nameState) {
	s.name, s.of[1].begun = 1, true
	for i := range m.senders {
		s.by[i].box = true
	}
	return s
}

func (m nameModel) next(s *nameState, x *search[nameState]) {
	for i := range m.senders {
		a := &s.by[i]
		if a.dead {
			continue
		}
		x.does(s, i, nameDies, m.kills && !s.by[1-i].dead,
			func(n *nameState) { n.by[i].dead = true })
		x.does(s, i, a.at, m.may(s, a), func(n *nameState) { m.send(n, i) })
	}
	for life := uint8(1); life <= 2; life++ {
		if b := &s.of[life]; b.begun && !b.dead && b.is != nameServed {
			m.receive(s, life, x)
		}
	}
	free := s.name == 0 || s.of[s.name].dead // who begins removes what that one has left
	x.does(s, 3, nameBegins, m.ends && !s.of[2].begun && free, func(n *nameState) {
		n.name, n.of[2].begun = 2, true
	})
	m.collect(s, x)
}

func (m nameModel) may(s *nameState, a *nameSender) bool {
	b := &s.of[a.of]
	switch a.at {
	case nameClaims:
		return b.claim == 0 || b.waiting == 0 || b.closed || b.dead // else it tries again
	case nameLearns:
		return b.told || b.dead && m.bug != nameUnfollowed
	}
	return a.at < nameServed || a.at == nameStores
}

// send is a step of a sender.
func (m nameModel) send(n *nameState, i uint8) {
	a := &n.by[i]
	b := &n.of[a.of]
	at := a.at
	a.at++
	switch at {
	case nameResolves:
		if a.life = n.name; a.life == 0 {
			a.at = nameFailed
		}
	case nameOpens:
		a.of = n.name
		if b = &n.of[a.of]; a.of == 0 || b.closed || a.of != a.life && m.bug != nameAnyLife {
			a.at, a.of = nameFailed, 0
		}
	case nameFills:
		a.lane = m.bug != nameClaimFirst
		b.marked = b.marked || m.bug == nameRingFirst
	case nameClaims:
		switch {
		case b.dead, b.closed && b.claim != 0 && m.bug != nameFullFirst:
			a.at, a.lane = nameFailed, false
		case b.claim != 0:
			a.at, b.waiting = nameClaims, i+1
			b.marked = b.marked || m.bug != nameSilentFull && b.owner != b.claim
		case m.bug == nameNoSwap:
			a.at = nameStores
		default:
			b.claim, b.waiting = i+1, 0
		}
	case nameStores:
		if a.at = nameLooks; b.claim != 0 {
			n.fault = rowTwice
		}
		b.claim = i + 1
	case nameLooks:
		if b.closed && m.bug != nameNoLook {
			if a.at, a.lane = nameFailed, false; b.claim == i+1 && m.bug != nameKeepsRow {
				b.claim = 0
			}
		}
	case nameRings, namePublishes:
		a.lane = true
		if (at == nameRings) == (m.bug != nameSendsFirst) {
			b.marked = b.marked || m.bug != nameRingFirst
		} else {
			a.sent = true
		}
	case nameLearns:
		switch {
		case b.owner == i+1 && !b.closed && !b.dead:
			if a.at = nameServed; a.of != a.life {
				n.fault = otherLife
			}
		default:
			a.at = nameFailed
		}
	}
}

// adopt gives a row to who has claimed it.
func (m nameModel) adopt(n *nameState, life uint8) {
	b := &n.of[life]
	if b.claim == 0 || b.owner == b.claim {
		return
	}
	a := &n.by[b.claim-1]
	if !a.box && m.bug != nameNoOutbox {
		b.claim = 0
		return
	}
	if b.told, b.owner = true, b.claim; !a.lane || !a.box {
		n.fault = notWhole
	}
}

// receive is the steps of who has the name.
func (m nameModel) receive(s *nameState, life uint8, x *search[nameState]) {
	b, who := &s.of[life], 1+life
	does := func(at step, may bool, do func(n *nameState, b *named)) {
		x.does(s, who, at, may, func(n *nameState) { do(n, &n.of[life]) })
	}
	does(nameDies, m.ends, func(_ *nameState, b *named) { b.dead = true })
	does(nameAdopts, b.is == 0 && b.marked, func(n *nameState, b *named) {
		b.marked = false
		m.adopt(n, life)
	})
	gone := b.owner != 0 && s.by[b.owner-1].dead
	does(nameFrees, b.is == 0 && gone && m.bug != nameNoDeath, func(n *nameState, b *named) {
		n.by[b.owner-1].box = false
		b.claim, b.owner, b.told = 0, 0, false
	})
	order := []step{0, nameCloses, nameTells, nameUnlinks, nameServed}
	if m.bug == nameLooksFirst {
		order[1], order[2] = order[2], order[1]
	}
	next := order[slices.Index(order, b.is)+1]
	does(next, m.ends || b.is != 0, func(n *nameState, b *named) {
		switch b.is = next; next {
		case nameCloses:
			b.closed = true
		case nameTells:
			m.adopt(n, life)
		case nameUnlinks:
			if n.name == life {
				n.name = 0
			}
		}
	})
}

// collect is C1: a collector decides, and then acts; it may be somebody who begins.
func (m nameModel) collect(s *nameState, x *search[nameState]) {
	x.does(s, 4, nameCollects, s.name != 0 && s.looks == 0 && s.of[s.name].dead,
		func(n *nameState) { n.looks = s.name })
	x.does(s, 4, nameCollects, s.looks != 0, func(n *nameState) {
		if n.looks = 0; s.name == s.looks || m.bug == nameRemovesHeir {
			if n.name = 0; s.name == 2 && !s.of[2].dead && s.looks == 1 {
				n.fault = usedByHeir
			}
		}
	})
	for i := range m.senders {
		a := &s.by[i]
		at := &s.of[a.of]
		here := a.of != 0 && !at.dead && !at.closed
		open := here && (a.sent && m.bug != nameKeepsNone || a.lane && m.bug == nameKeepsEmpty)
		x.does(s, 4, nameCollects, a.box && a.dead && !open, func(n *nameState) {
			if n.by[i].box = false; here && a.sent {
				n.fault = unexamined
			}
		})
	}
}

// judge: each sender who lives is served by the life that it means, or has an error, or the one row
// is that of another one who lives. Nothing is left of the dead but a row that nobody wants.
func (m nameModel) judge(s *nameState) verdict {
	if s.fault != fine {
		return lost
	}
	for i := range m.senders {
		a := &s.by[i]
		b := &s.of[a.of]
		here := a.of != 0 && !b.dead && !b.closed
		switch {
		case a.dead && !a.box:
		case a.dead:
			return moving
		case a.at == nameFailed:
			if here && b.claim == i+1 && b.owner != i+1 {
				return moving // the row is given back, or adopted
			}
		case a.at == nameServed:
		case a.at == nameClaims && here && b.claim != 0 && !s.by[b.claim-1].dead &&
			b.owner == b.claim:
		default:
			return moving
		}
	}
	for life := range s.of {
		if b := &s.of[life]; b.dead && s.name == uint8(life) || b.is != 0 && b.is != nameServed &&
			!b.dead {
			return moving
		}
	}
	return resting
}

var meetings = family{
	title: "Meetings",
	variants: []variant{
		form("over a socket", meetModel{}),
		form("over a socket, closed", meetModel{ends: true}),
		form("over a socket, given up", meetModel{gives: true, ends: true}),
		form("over a socket, given up, and kept open", meetModel{gives: true, keeps: true}),
		form("over a socket, deaths", meetModel{gives: true, ends: true, dies: true}),
		form("over a socket, stopped", meetModel{stops: true}),
		form("by a name", nameModel{senders: 1}),
		form("by a name, killed", nameModel{senders: 1, kills: true}),
		form("by a name, it ends", nameModel{senders: 1, ends: true}),
		form("by a name, two", nameModel{senders: 2}),
		form("by a name, two, killed", nameModel{senders: 2, kills: true}),
		form("by a name, two, it ends", nameModel{senders: 2, ends: true}),
		form("by a name, two, killed, it ends", nameModel{senders: 2, kills: true, ends: true}),
	},
	mutants: slices.Concat(
		on("over a socket", meetReadyFirst, meetUnheard, meetHungIsDead),
		on("over a socket, closed", meetUntold, meetToldFirst),
		on("over a socket, given up", meetLateClaim, meetNoFirstLook),
		on("over a socket, given up, and kept open", meetSilent),
		on("over a socket, deaths", meetNoWatch),
		on("over a socket, stopped", meetNoBound),
		on("by a name", nameRingFirst),
		on("by a name, killed", nameKeepsEmpty, nameKeepsNone, nameSendsFirst, nameNoOutbox),
		on("by a name, it ends", nameClaimFirst, nameAnyLife, nameNoLook, nameLooksFirst, nameUnfollowed,
			nameKeepsRow, nameRemovesHeir),
		on("by a name, two", nameNoSwap),
		on("by a name, two, killed", nameNoDeath, nameSilentFull)),
	traps: on("by a name, two, it ends", nameFullFirst),
}
