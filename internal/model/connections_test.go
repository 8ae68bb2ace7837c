package model

import "slices"

// Connections over the two lanes of a pair, explored: how they begin, how many bytes may be under
// way, how they end, and when their numbers may be used again. A client asks for connections, of
// which it may give up some; a server takes them into a backlog of one, and its program from there.
// Either may die, and the server may stop listening, at any step. Lanes are in order, and what the
// dead put there is read first; both are explored with endpoints, so a lane is a list here.
//
//	D1 ask: a number of one's own   D2 give up   D3 accepted: open it and say so, or close it
//	L1 into the backlog, and accept; or reject   L2 opened   L3 hand it to the program   L4 stop
//	W1 write within the window   W2 end   R1 examine   R2 read   R3 tell what was read
//	E1 close: the last message of this side   E2 hear that: answer with one's own last message
//	E3 both are said: the number is free   X1 a death: when its lane is empty, all that it had ends
//
// Or the server's program answers, and bytes go by lanes of the connection's own, which can be
// ahead of this one: the connections of endpoints.
//
//	P1 accept, unless who asked has gone   P2 reject   G1 who gives up says so   G2 its answer
//	T1 take bytes: keep them until the connection is open   T2 at the end take all of them
//
// Each message carries, for the judge alone, which connection it is of and how many bytes were
// written before it.

type connModel struct {
	dials  uint8 // connections in all
	places uint8 // of each side: connections at once
	bytes  uint8 // that each side writes to each
	rude   bool  // programs close whenever they like; else after the end of what they read
	gives  bool  // the client may give up
	stops  bool  // the listener may be closed
	dies   bool
	links  bool // of endpoints
	deviant
}

// Deviations.
const (
	connFreeSaid     = "a number is free when its close is said"
	connFreeHeard    = "a number is free when a close is heard, and nothing is answered"
	connForgets      = "who gives up forgets its number at once"
	connNoClose      = "who gave up does not close what is accepted"
	connNoReject     = "a full backlog answers nothing"
	connNoBound      = "a full backlog takes one more"
	connTwoSteps     = "a connection is handed out before its client opens it"
	connNotOpened    = "the client does not say that it opens"
	connNoAnswer     = "a close is not answered"
	connTwice        = "a close is answered though one's own was said"
	connEndFirst     = "the end overtakes what was written"
	connAtArrival    = "bytes are told when they arrive, not when they are read"
	connNeverTold    = "bytes that were read are not told"
	connToldTwice    = "bytes that were read are told twice"
	connToldLate     = "bytes are told after one's own close"
	connWritesOn     = "writes go on after the peer's close"
	connEarlyDeath   = "a death ends all before its lane is empty"
	connDeadBacklog  = "a death leaves what is in the backlog"
	connDeadAsked    = "a death leaves who asked"
	connStopForgets  = "who stops listening forgets the backlog"
	connAnyNumber    = "a number is free when its close is said, and has no generation"
	connNoGeneration = "a number has no generation"
	linkEarly        = "bytes that overtake the opening are not kept for it"
	linkNotTaken     = "a close ends all before the bytes ahead of it are taken"
	linkDeathTakes   = "a death ends all before its bytes are taken"
	linkTellsOwn     = "an end is told at one's own close and at the peer's"
	linkNoLeave      = "who gave up has no answer"
	linkLeaveTwice   = "who gave up has an answer after the program's"
	linkAcceptsGone  = "a request is accepted of who gave up"
	linkTwice        = "a request is accepted twice"
	linkStopKeeps    = "who stops listening rejects nothing"
)

// Faults of connections.
const (
	noSuchNumber  fault = 120 + iota // a message to a number that nobody has
	otherNumber                      // to a connection that it does not mean
	beyondWindow                     // more bytes than were allowed
	bytesLost                        // the end comes, and not all bytes that were before it
	backlogOver                      // the backlog has more than it may
	handedUnopen                     // a program gets what was never open
	repeatedClose                    // two last messages
	earlyBytes                       // a program has bytes of what is not open
	toldTwice                        // it hears of two ends
)

type connKind uint8

const (
	connReq connKind = 1 + iota
	connAccept
	connReject
	connOpened
	connData
	connEnd
	connCredit
	connClose
	connLeave
)

type connMsg struct {
	kind          connKind
	to, gen       uint8 // whom it is for
	from, fromGen uint8 // in a request, and in its answer
	of, count     uint8 // for the judge
}

type connPhase uint8

const (
	connFree      connPhase = iota
	connAsked               // by the client
	connRequested           // of the server's program
	connOffered             // by the server, in the backlog
	connReady               // in the backlog, and opened
	connOpen
	connLeft // the program closed it, or never had it
)

// connSide is one side's view of a connection.
type connSide struct {
	is            connPhase
	gen           uint8
	to, toGen     uint8
	of            uint8 // which connection
	gaveUp        bool  // by the client; at the server, who asked has gone
	early, told   uint8
	wrote, credit uint8
	held, owes    uint8
	room, got     uint8
	ended         bool
	heardEnd      bool
	said, heard   bool // the last message of each side
}

const connLane = 12

type connState struct {
	at      [2][2]connSide // client, server
	lane    [2][connLane]connMsg
	wire    [2][4]uint8 // bytes to an endpoint, by connection
	n       [2]uint8
	dialed  uint8
	deaf    bool // the listener is closed
	dead    [2]bool
	mourned bool
	fault   fault
}

const (
	connAsks    step = iota // D1 ask
	connGives               // D2 give up
	connHandle              // R1 examine
	connHand                // L3 hand it out
	connStops               // L4 stop
	connWrite               // W1 write
	connEnds                // W2 end
	connRead                // R2 read
	connTells               // R3 tell
	connCloses              // E1 close
	connDies                // dies
	connMourns              // X1 a death
	linkAccepts             // P1 accept
	linkRejects             // P2 reject
	linkTakes               // T1 take bytes
)

func (m connModel) names() []string { return []string{"connAsks", "client", "server"} }

func (m connModel) start() (s connState) { return s }

// put publishes a message of a side.
func (s *connState) put(side int, msg connMsg) {
	if s.n[1-side] == connLane {
		s.fault = ringFull
		return
	}
	s.lane[1-side][s.n[1-side]] = msg
	s.n[1-side]++
}

// say is put for a connection.
func (s *connState) say(side int, c *connSide, kind connKind, count uint8) {
	s.put(side, connMsg{kind: kind, to: c.to, gen: c.toGen, of: c.of, count: count})
}

// last says the last message of a side, after which its number may be free.
func (m connModel) last(s *connState, side int, c *connSide) {
	if c.said {
		s.fault = repeatedClose
	}
	c.said = true
	s.say(side, c, connClose, c.wrote)
	m.release(c, m.bug == connFreeSaid || m.bug == connAnyNumber)
}

func (m connModel) release(c *connSide, early bool) {
	if !early && !(c.said && c.heard) {
		return
	}
	gen := c.gen + 1
	if m.bug == connNoGeneration || m.bug == connAnyNumber {
		gen = 0
	}
	*c = connSide{gen: gen}
}

func (m connModel) next(s *connState, x *search[connState]) {
	for side := range 2 {
		who := uint8(side)
		if s.dead[side] {
			continue
		}
		x.does(s, who, connDies, m.dies && !s.dead[1-side], func(n *connState) {
			n.dead[side] = true
		})
		x.does(s, who, connHandle, s.n[side] > 0, func(n *connState) { m.handle(n, side) })
		early := m.bug == connEarlyDeath
		x.does(s, who, connMourns, s.dead[1-side] && !s.mourned && (early || s.n[side] == 0),
			func(n *connState) { m.mourn(n, side) })
		for place := range int(m.places) {
			m.program(s, side, place, x)
		}
	}
	x.does(s, 1, connStops, m.stops && !s.deaf && !s.dead[1], func(n *connState) {
		n.deaf = true
		for i := range n.at[1] {
			c := &n.at[1][i]
			if m.links {
				if c.is == connRequested && m.bug != linkStopKeeps {
					m.reject(n, c)
				}
				continue
			}
			if c.is != connOffered && c.is != connReady {
				continue
			}
			if c.is = connLeft; m.bug == connStopForgets {
				*c = connSide{gen: c.gen + 1}
			} else if !c.said {
				m.last(n, 1, c)
			}
		}
	})
}

// program is what a side's program does with one of its places.
func (m connModel) program(s *connState, side, place int, x *search[connState]) {
	was := &s.at[side][place]
	does := func(at step, may bool, do func(n *connState, c *connSide)) {
		x.does(s, uint8(side), at, may, func(n *connState) { do(n, &n.at[side][place]) })
	}
	if side == 0 {
		does(connAsks, was.is == connFree && s.dialed < m.dials && !s.mourned,
			func(n *connState, c *connSide) {
				n.dialed++
				*c = connSide{is: connAsked, gen: c.gen, of: n.dialed}
				n.put(0, connMsg{kind: connReq, from: uint8(place), fromGen: c.gen, of: c.of})
			})
		does(connGives, m.gives && was.is == connAsked && !was.gaveUp,
			func(n *connState, c *connSide) {
				if m.links {
					n.put(0, connMsg{kind: connLeave, from: uint8(place), fromGen: c.gen, of: c.of})
				}
				if c.gaveUp = true; m.bug == connForgets {
					*c = connSide{gen: c.gen + 1}
				}
			})
	}
	if m.links {
		m.linked(s, side, was, does)
	}
	ready := was.is == connReady || m.bug == connTwoSteps && was.is == connOffered
	does(connHand, ready && !s.deaf, func(n *connState, c *connSide) {
		if asked := &n.at[0][c.to]; asked.of == c.of && asked.gaveUp {
			n.fault = handedUnopen
		}
		c.is = connOpen
	})
	if was.is != connOpen {
		return
	}
	if m.links {
		return
	}
	open := !was.said && (!was.heard || m.bug == connWritesOn)
	does(connWrite, open && !was.ended && was.wrote < m.bytes && was.credit > 0,
		func(n *connState, c *connSide) {
			c.credit--
			c.wrote++
			n.say(side, c, connData, 0)
		})
	early := m.bug == connEndFirst && was.wrote < m.bytes
	does(connEnds, !was.said && !was.heard && !was.ended && (was.wrote == m.bytes || early),
		func(n *connState, c *connSide) {
			c.ended = !early
			n.say(side, c, connEnd, m.bytes)
		})
	does(connRead, was.held > 0, func(_ *connState, c *connSide) {
		c.held--
		c.got++
		if m.bug != connAtArrival {
			c.owes++
		}
	})
	does(connTells, was.owes > 0 && !was.said && m.bug != connNeverTold,
		func(n *connState, c *connSide) { m.tell(n, side, c) })
	done := m.rude || (was.heardEnd || was.heard) && was.held == 0 &&
		(was.ended || was.heard || was.said)
	does(connCloses, done, func(n *connState, c *connSide) {
		c.is, c.held = connLeft, 0
		if !c.said {
			m.last(n, side, c)
			if m.bug == connToldLate && c.is == connLeft && c.owes > 0 {
				m.tell(n, side, c)
			}
		} else {
			m.release(c, false)
		}
	})
}

// tell allows the peer as many bytes more as were read.
func (m connModel) tell(n *connState, side int, c *connSide) {
	n.say(side, c, connCredit, c.owes)
	c.room += c.owes
	if c.owes = 0; m.bug == connToldTwice && c.got == 1 {
		n.say(side, c, connCredit, 1)
	}
}

// handle is R1.
func (m connModel) handle(n *connState, side int) {
	msg := n.lane[side][0]
	copy(n.lane[side][:], n.lane[side][1:])
	n.lane[side][connLane-1] = connMsg{}
	n.n[side]--
	switch msg.kind {
	case connReq:
		m.asked(n, msg)
		return
	case connLeave:
		m.left(n, msg)
		return
	}
	c := &n.at[side][msg.to]
	switch {
	case c.is == connFree || c.gen != msg.gen || c.heard:
		n.fault = noSuchNumber
		return
	case c.of != msg.of:
		n.fault = otherNumber
		return
	}
	switch msg.kind {
	case connAccept:
		if c.is != connAsked {
			n.fault = noSuchNumber
			return
		}
		c.to, c.toGen, c.credit, c.room = msg.from, msg.fromGen, 1, 1
		if !c.gaveUp {
			c.is = connOpen
			if m.bug != connNotOpened {
				n.say(side, c, connOpened, 0)
			}
		} else if c.is = connLeft; m.bug != connNoClose {
			m.last(n, side, c)
		}
	case connReject:
		*c = connSide{gen: c.gen + 1}
	case connOpened:
		switch {
		case c.is == connOffered && m.links:
			c.is, c.got, c.early = connOpen, c.got+c.early, 0
		case c.is == connOffered:
			c.is = connReady
		}
	case connData:
		m.arrived(n, side, c)
	case connEnd, connClose:
		if m.links {
			m.ends(n, side, c, m.bug != linkNotTaken, msg.count)
		} else if c.is != connLeft && c.got+c.held != msg.count && (msg.kind == connEnd || !m.rude) {
			n.fault = bytesLost
		}
		c.heardEnd = true
		if msg.kind == connClose {
			m.closed(n, side, c)
		}
	case connCredit:
		c.credit += msg.count
	}
}

// asked is L1.
func (m connModel) asked(n *connState, msg connMsg) {
	waiting, free := 0, -1
	for i := range int(m.places) {
		switch c := &n.at[1][i]; c.is {
		case connOffered:
			if !m.links {
				waiting++
			}
		case connReady, connRequested:
			waiting++
		case connFree:
			free = i
		}
	}
	full := waiting > 0 || free < 0 || n.deaf
	switch {
	case !full || m.bug == connNoBound && free >= 0 && !n.deaf:
		if waiting > 0 {
			n.fault = backlogOver
		}
		c := &n.at[1][free]
		*c = connSide{is: connOffered, gen: c.gen, to: msg.from, toGen: msg.fromGen, of: msg.of,
			credit: 1, room: 1}
		if m.links {
			c.is = connRequested
			return
		}
		n.put(1, connMsg{kind: connAccept, to: msg.from, gen: msg.fromGen, from: uint8(free),
			fromGen: c.gen, of: msg.of})
	case m.bug != connNoReject || n.deaf:
		n.put(1, connMsg{kind: connReject, to: msg.from, gen: msg.fromGen, of: msg.of})
	}
}

func (m connModel) arrived(n *connState, side int, c *connSide) {
	if c.room == 0 {
		n.fault = beyondWindow
		return
	}
	c.room--
	if c.is == connLeft {
		return
	}
	if c.held++; c.held > 1 {
		n.fault = beyondWindow
	}
	if m.bug == connAtArrival && !c.said {
		c.owes++
		m.tell(n, side, c)
	}
}

// closed is E2.
func (m connModel) closed(n *connState, side int, c *connSide) {
	if m.bug == connFreeHeard {
		*c = connSide{gen: c.gen + 1}
		return
	}
	c.heard = true
	if c.is == connOffered || c.is == connReady && m.rude {
		c.is = connLeft
	}
	if (!c.said || m.bug == connTwice) && m.bug != connNoAnswer {
		if m.bug == connWritesOn && c.is == connOpen && c.credit > 0 {
			n.say(side, c, connClose, c.wrote)
			n.say(side, c, connData, 0)
			c.said = true
			return
		}
		m.last(n, side, c)
		return
	}
	m.release(c, false)
}

// mourn is X1.
func (m connModel) mourn(n *connState, side int) {
	n.mourned = true
	for i := range n.at[side] {
		c := &n.at[side][i]
		waits := c.is == connOffered || c.is == connReady
		if m.bug == connDeadBacklog && waits || m.bug == connDeadAsked && c.is == connAsked {
			continue
		}
		switch {
		case m.links && c.is == connRequested:
			c.gaveUp = true // the program answers, and hears that
			continue
		case m.links && c.is != connFree:
			wrote := c.got
			for _, dead := range n.at[1-side] {
				if dead.of == c.of {
					wrote = dead.wrote
				}
			}
			m.ends(n, side, c, m.bug != linkDeathTakes, wrote)
		}
		*c = connSide{gen: c.gen + 1}
	}
}

// linked is what a program does with a connection of an endpoint.
func (m connModel) linked(s *connState, side int, was *connSide,
	does func(step, bool, func(*connState, *connSide))) {
	does(linkAccepts, was.is == connRequested && !s.deaf, func(n *connState, c *connSide) {
		if c.gaveUp && m.bug != linkAcceptsGone {
			*c = connSide{gen: c.gen + 1}
			return
		}
		place := uint8(slices.IndexFunc(n.at[1][:], func(o connSide) bool { return o == *c }))
		answer := connMsg{kind: connAccept, to: c.to, gen: c.toGen, from: place, fromGen: c.gen,
			of: c.of}
		c.is = connOffered
		if n.put(1, answer); m.bug == linkTwice {
			n.put(1, answer)
		}
	})
	does(linkRejects, was.is == connRequested && !s.deaf, func(n *connState, c *connSide) {
		m.reject(n, c)
	})
	does(linkTakes, was.of > 0 && s.wire[side][was.of] > 0 && was.is != connRequested,
		func(n *connState, c *connSide) {
			n.wire[side][c.of]--
			switch {
			case c.is == connOpen:
				c.got++
			case m.bug == linkEarly && c.is == connOffered:
				n.fault = earlyBytes
			default:
				c.early++
			}
		})
	open := was.is == connOpen
	does(connWrite, open && !was.said && !was.heard && was.wrote < m.bytes,
		func(n *connState, c *connSide) {
			c.wrote++
			n.wire[1-side][c.of]++
		})
	does(connCloses, open, func(n *connState, c *connSide) {
		if m.bug == linkTellsOwn {
			c.told++
		}
		if c.is = connLeft; !c.said {
			m.last(n, side, c)
		}
	})
}

// reject answers a request, or nobody.
func (m connModel) reject(n *connState, c *connSide) {
	if !c.gaveUp {
		n.put(1, connMsg{kind: connReject, to: c.to, gen: c.toGen, of: c.of})
	}
	*c = connSide{gen: c.gen + 1}
}

// left is G2.
func (m connModel) left(n *connState, msg connMsg) {
	for i := range n.at[1] {
		c := &n.at[1][i]
		if c.of != msg.of || c.is != connRequested && m.bug != linkLeaveTwice {
			continue
		}
		c.gaveUp = true
		if m.bug != linkNoLeave {
			n.put(1, connMsg{kind: connReject, to: msg.from, gen: msg.fromGen, of: msg.of})
		}
	}
}

// ends is T2, and tells the program.
func (m connModel) ends(n *connState, side int, c *connSide, takes bool, wrote uint8) {
	if takes && c.is == connOpen {
		c.got += n.wire[side][c.of]
		n.wire[side][c.of] = 0
	}
	if c.is == connOpen && c.got != wrote {
		n.fault = bytesLost
	}
	if c.is == connOpen || c.is == connLeft {
		if c.told++; c.told > 1 {
			n.fault = toldTwice
		}
	}
}

// judge: in the end each number of who lives is free.
func (m connModel) judge(s *connState) verdict {
	if s.fault != fine {
		return lost
	}
	for side := range 2 {
		if s.dead[side] {
			continue
		}
		if s.n[side] > 0 || slices.ContainsFunc(s.at[side][:],
			func(c connSide) bool { return c.is != connFree }) {
			return moving
		}
	}
	return resting
}

var connections = family{
	title: "Connections",
	variants: []variant{
		form("one", connModel{dials: 1, places: 1, bytes: 2}),
		form("one, rude", connModel{dials: 1, places: 1, bytes: 3, rude: true}),
		form("two after each other, rude", connModel{dials: 2, places: 1, bytes: 1, rude: true}),
		form("two at once", connModel{dials: 2, places: 2, bytes: 1}),
		form("two, given up", connModel{dials: 2, places: 2, gives: true, rude: true}),
		form("two, the listener stops", connModel{dials: 2, places: 2, stops: true, rude: true}),
		form("one, deaths", connModel{dials: 1, places: 1, bytes: 2, gives: true, dies: true}),
		form("two, deaths", connModel{dials: 2, places: 2, gives: true, dies: true}),
		form("endpoints, one", connModel{dials: 1, places: 1, bytes: 2, gives: true, links: true}),
		form("endpoints, the listener stops", connModel{dials: 2, places: 2, bytes: 1, gives: true,
			stops: true, links: true}),
		form("endpoints, deaths", connModel{dials: 2, places: 2, bytes: 1, gives: true, dies: true,
			links: true}),
		form("three, all of it", connModel{dials: 3, places: 2, gives: true, stops: true,
			rude: true, dies: true}),
	},
	mutants: slices.Concat(
		on("one", connEndFirst, connAtArrival, connNeverTold, connNotOpened),
		on("one, rude", connFreeSaid, connFreeHeard, connToldTwice, connToldLate, connTwice,
			connWritesOn),
		on("two after each other, rude", connAnyNumber),
		on("two, given up", connForgets, connNoClose, connNoReject, connNoBound, connTwoSteps,
			connNoAnswer),
		on("two, the listener stops", connStopForgets),
		on("endpoints, one", linkEarly, linkNotTaken, linkTellsOwn, linkNoLeave, linkLeaveTwice,
			linkAcceptsGone, linkTwice),
		on("endpoints, the listener stops", linkStopKeeps),
		on("endpoints, deaths", linkDeathTakes),
		on("one, deaths", connEarlyDeath, connDeadBacklog, connDeadAsked)),
	spare: on("two after each other, rude", connNoGeneration),
}
