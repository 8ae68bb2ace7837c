package model

// The life of a lane, explored: it grows, it ends, and either side dies or closes at any step. A
// sender publishes messages; the first ends when it is examined, the others by a word {generation}
// of one of two operation ids. Its lane begins with two slots and grows to four; one slot is kept
// for GROW or FIN. The endpoint of a receiver that is gone may be replaced under the same name, and
// a collector removes what nobody uses.
//
//	Y1 publish   Y2 a new slab, zeroed   Y3 GROW   Y4 FIN, then exit   Y5 free the old slab when the
//	head is past GROW   Y6 end: when the head is past the index, or by the word of this generation
//	Y7 prove that the receiver is gone, then read head and words
//	V1 map the lane   V2 read a record, switch at GROW   V3 publish the head   V4 place, then the
//	word   V5 prove that the sender is dead, look again   V6 retire the lane and unlink it
//	V7 close: head and words first, then "closed", then the name
//	C1 decide about an outbox or lock an endpoint   C2 unlink it, if it is still the same

type livesModel struct {
	messages uint8
	deaths   bool // and closing before the end
	named    bool // a successor, and a collector
	deviant
}

// Deviations.
const (
	livesFreeAtPublish = "the old slab is freed when GROW is published"
	livesFreeAtHead    = "the old slab is freed when the head comes to GROW, not past it"
	livesHeadFirst     = "the head is past GROW before the receiver switches"
	livesGrowControl   = "GROW goes through the control ring"
	livesFinControl    = "FIN goes through the control ring"
	livesNoSlot        = "no slot is kept for GROW or FIN"
	livesDirty         = "a new slab has what a former lane left"
	livesUnlinks       = "a sender unlinks at close"
	livesRowFirst      = "head and words are read before the receiver is proved to be gone"
	livesEmptyFirst    = "a lane that was empty before the proof of a death is not looked at again"
	livesAnyWord       = "a word names no generation"
	livesReuse         = "an id is used again before its word"
	livesLateWord      = "a word that nobody asked for comes when the id is used again"
	livesWordFirst     = "the word comes before the message is placed"
	livesClosedFirst   = "closed is said before the last words"
	livesAtPublish     = "a message has been transmitted when it is published"
	livesNoReceiver    = "the outbox of a dead sender is removed under a living receiver"
	livesByName        = "an endpoint is removed by its name, whoever has it"
)

// Faults beyond those of messages.
const (
	freedRead  fault = 100 + iota // freed memory is read, or what was overwritten
	noSlot                        // GROW or FIN has no slot
	neverRead                     // a published message is lost
	usedByHeir                    // what a living process uses is removed
)

const (
	livesMost  = 4
	livesFreed = 99 // in a slab that another lane uses
)

// How an operation ended: 0 is not yet.
const (
	succeeded = 1 + iota
	broken
	given // its sender closed
)

type livesState struct {
	// The sender's.
	dead, exited, fin, knows, freed bool
	growControl, finControl         bool
	grown, growAt, tail, sent       uint8 // grown: 1 has a slab, 2 has published GROW
	done                            [livesMost]uint8
	old                             [2]uint8
	slab                            [4]uint8
	row                             [4]uint8 // head and words as they were read too early; 1 if so

	// The receiver's.
	otherDead, closing, closed, mapped bool
	proved, retired, finSeen, empty    bool
	view, examined, head, reading      uint8
	got, placed, told                  [livesMost]bool
	words                              [2]uint8

	// Names.
	linked             bool
	endpoint, heir     uint8 // endpoint: whose it is; heir: 1 lives, 2 is gone
	removesO, removesE bool
	fault              fault
}

const (
	livesPublish  step = iota // Y1 publish
	livesAllocate             // Y2 allocate a slab
	livesGrow                 // Y3 GROW
	livesFin                  // Y4 FIN
	livesExit                 // Y4 exit
	livesFree                 // Y5 free the old slab
	livesEnd                  // Y6 end an operation
	livesPeekRow              // read head and words, too early
	livesLearn                // Y7 prove that the receiver is gone
	livesDies                 // the sender dies
	livesMap                  // V1 map the lane
	livesControl              // examine the control ring
	livesRead                 // V2 begin to read
	livesHasRead              // V2 has read
	livesSwitch               // V2 switch, too late
	livesHead                 // V3 publish the head
	livesPlace                // V4 place
	livesWord                 // V4 the word
	livesFinds                // the lane is empty
	livesProve                // V5 prove that the sender is dead
	livesRetire               // V6 retire
	livesCloses               // V7 close
	livesClosed               // V7 say so
	livesGone                 // the receiver dies
	livesHeir                 // an heir has the name
	livesHeirGone             // it closes
	livesDecide               // C1 decide about the outbox
	livesLock                 // C1 lock the endpoint
	livesUnlinkO              // C2 unlink the outbox
	livesUnlinkE              // C2 unlink the endpoint
)

func (m livesModel) names() []string {
	return []string{"livesPublish", "sender", "receiver", "heir", "collector"}
}

func (m livesModel) start() livesState {
	s := livesState{linked: true, endpoint: 1}
	if m.bug == livesDirty {
		s.slab = [4]uint8{0, 0, 3, 4}
	}
	return s
}

// life is the steps from a state.
type life struct {
	m livesModel
	s *livesState
	x *search[livesState]
}

func (l life) does(at step, may bool, do func(n *livesState)) {
	who := uint8(0)
	switch {
	case at >= livesDecide:
		who = 3
	case at >= livesHeir:
		who = 2
	case at >= livesMap:
		who = 1
	}
	l.x.does(l.s, who, at, may, do)
}

// gone: the receiver is dead, or has closed.
func (s *livesState) gone() bool { return s.otherDead || s.closed }

func (m livesModel) next(s *livesState, x *search[livesState]) {
	l := life{m, s, x}
	if !s.dead && !s.exited {
		l.publish()
		l.endAll()
	}
	if !s.gone() {
		if !s.mapped {
			l.does(livesMap, s.linked || !s.retired, func(n *livesState) {
				if n.mapped = true; !s.linked {
					n.fault = neverRead
				}
			})
		} else if !s.retired {
			l.examine()
			l.retire()
		}
		l.place()
		l.close()
	}
	if m.named {
		l.collect()
	}
}

// cell is the sequence word of an index in a slab.
func (s *livesState) cell(view, i uint8) *uint8 {
	if view == 0 {
		return &s.old[i%2]
	}
	return &s.slab[i%4]
}

// slots returns how many slots of the lane are used, and how many there are.
func (s *livesState) slots() (used, most uint8) {
	if s.grown < 2 {
		return s.tail - s.head, 2
	}
	return s.tail - max(s.head, s.growAt+1), 4
}

func (s *livesState) put() {
	view := s.grown / 2
	*s.cell(view, s.tail) = s.tail + 1
	s.tail++
}

// index is where message k is in the lane: one later if it came after GROW.
func (m livesModel) index(s *livesState, k uint8) uint8 {
	if s.grown == 2 && m.bug != livesGrowControl && s.growAt <= k {
		k++
	}
	return k
}

func (l life) publish() {
	s, m := l.s, l.m
	used, most := s.slots()
	room := used < most-1 || used < most && m.bug == livesNoSlot
	k := s.sent
	free := k < 2 || s.done[k-2] != 0 || m.bug == livesReuse
	l.does(livesPublish, !s.fin && k < m.messages && room && !s.knows && free,
		func(n *livesState) {
			n.put()
			n.sent++
			if k == 0 && m.bug == livesAtPublish {
				n.done[0] = succeeded
			}
		})
	l.does(livesAllocate, !s.fin && s.grown == 0, func(n *livesState) { n.grown = 1 })
	l.does(livesGrow, !s.fin && s.grown == 1, func(n *livesState) {
		switch {
		case used == most:
			n.fault = noSlot
		case m.bug == livesGrowControl:
			n.growControl, n.growAt = true, s.tail-1
		default:
			n.growAt = s.tail
			n.put()
		}
		n.grown, n.freed = 2, m.bug == livesFreeAtPublish
	})
	ended := s.sent == m.messages
	for _, done := range s.done[:s.sent] {
		ended = ended && done != 0
	}
	l.does(livesFin, !s.fin && (m.deaths || ended), func(n *livesState) {
		switch {
		case used == most:
			n.fault = noSlot
		case m.bug == livesFinControl:
			n.finControl = true
		default:
			n.put()
		}
		n.fin, n.linked = true, m.bug != livesUnlinks && s.linked
		for k := range s.sent {
			if s.done[k] == 0 {
				n.done[k] = given
			}
		}
	})
	l.does(livesExit, s.fin, func(n *livesState) { n.exited = true })
	past := s.head > s.growAt || m.bug == livesFreeAtHead && s.head == s.growAt
	l.does(livesFree, s.grown == 2 && !s.freed && !s.growControl && past, func(n *livesState) {
		n.freed, n.old = true, [2]uint8{livesFreed, livesFreed}
	})
	l.does(livesDies, m.deaths, func(n *livesState) { n.dead = true })
}

// generation is what the word of a message says.
func generation(k uint8) uint8 { return k/2 + 1 }

// has ends operation k by the head and the words that were read, if they say so.
func (m livesModel) has(n *livesState, k, head uint8, words [2]uint8, last bool) {
	ended := head > m.index(n, k)
	if k > 0 {
		word := words[k%2]
		ended = word == generation(k) || m.bug == livesAnyWord && word != 0
	}
	switch {
	case n.done[k] != 0:
	case ended:
		n.done[k] = succeeded
	case last:
		n.done[k] = broken
	}
}

// endAll ends operations by what the receiver says, and all of them when it is gone.
func (l life) endAll() {
	s, m := l.s, l.m
	for k := range s.sent {
		n := *s
		m.has(&n, k, s.head, s.words, false)
		l.does(livesEnd, n.done != s.done, func(to *livesState) { *to = n })
	}
	early := m.bug == livesRowFirst
	l.does(livesPeekRow, early && s.row[0] == 0 && !s.knows, func(n *livesState) {
		n.row = [4]uint8{1, s.head, s.words[0], s.words[1]}
	})
	l.does(livesLearn, s.gone() && !s.knows && (!early || s.row[0] != 0), func(n *livesState) {
		n.knows = true
		head, words := s.head, s.words
		if early {
			head, words = s.row[1], [2]uint8(s.row[2:])
		}
		for k := range s.sent {
			m.has(n, k, head, words, true)
		}
	})
}

// examine is a look at the lane, and all that follows from it.
func (l life) examine() {
	s, m := l.s, l.m
	l.does(livesControl, s.growControl, func(n *livesState) { n.growControl, n.view = false, 1 })
	l.does(livesControl, s.finControl, func(n *livesState) { n.finControl, n.finSeen = false, true })
	here := *s.cell(s.view, s.examined) == s.examined+1
	looks := s.reading == 0 && !s.finSeen && !s.closing
	gone := s.view == 0 && s.freed
	l.does(livesRead, looks && (here || gone), func(n *livesState) {
		if n.reading = 1; gone {
			n.fault = freedRead
		}
	})
	l.does(livesFinds, looks && !here && !s.empty && m.bug == livesEmptyFirst,
		func(n *livesState) { n.empty = true })
	l.does(livesHasRead, s.reading == 1, func(n *livesState) {
		if n.reading = 0; gone || !here {
			n.fault = freedRead
		}
		k := s.examined
		n.examined++
		inLane := s.grown == 2 && m.bug != livesGrowControl
		switch {
		case inLane && k == s.growAt && m.bug == livesHeadFirst:
			n.head, n.reading = n.examined, 2
		case inLane && k == s.growAt:
			n.view = 1
		case s.fin && k == s.tail-1 && m.bug != livesFinControl:
			n.finSeen = true
		default:
			if inLane && k > s.growAt {
				k--
			}
			if k >= s.sent { // what a former lane left
				n.fault = freedRead
				return
			}
			if n.got[k] = true; k > 0 && m.bug == livesWordFirst {
				n.words[k%2] = generation(k)
			}
		}
	})
	l.does(livesSwitch, s.reading == 2, func(n *livesState) {
		if n.reading, n.view = 0, 1; s.freed {
			n.fault = freedRead // it still looks at the record
		}
	})
	l.does(livesHead, s.reading == 0 && s.head != s.examined,
		func(n *livesState) { n.head = s.examined })
}

// retire ends a lane after FIN, or after a death.
func (l life) retire() {
	s := l.s
	l.does(livesProve, s.dead && !s.proved, func(n *livesState) { n.proved = true })
	empty := *s.cell(s.view, s.examined) != s.examined+1 || l.m.bug == livesEmptyFirst && s.empty
	l.does(livesRetire, s.reading == 0 && (s.finSeen || s.proved && empty), func(n *livesState) {
		n.head, n.retired, n.linked = s.examined, true, false
		for k := range s.sent {
			if !s.got[k] {
				n.fault = neverRead
			}
		}
	})
}

// place ends messages in the receiver's memory, and says so in their words.
func (l life) place() {
	s, m := l.s, l.m
	for k := range m.messages {
		l.does(livesPlace, s.got[k] && !s.placed[k], func(n *livesState) { n.placed[k] = true })
		asked := k > 0 || m.bug == livesLateWord
		l.does(livesWord, s.placed[k] && !s.told[k] && asked && m.bug != livesWordFirst,
			func(n *livesState) {
				n.told[k], n.words[k%2] = true, generation(k)
			})
	}
}

func (l life) close() {
	s, m := l.s, l.m
	l.does(livesGone, m.deaths, func(n *livesState) { n.otherDead = true })
	l.does(livesCloses, !s.closing && (m.deaths || s.retired) && s.reading == 0,
		func(n *livesState) { n.closing = true })
	all := s.head == s.examined
	for k := uint8(1); k < m.messages; k++ {
		all = all && (!s.placed[k] || s.told[k] || m.bug == livesWordFirst)
	}
	l.does(livesClosed, s.closing && (all || m.bug == livesClosedFirst), func(n *livesState) {
		if n.closed = true; s.endpoint == 1 {
			n.endpoint = 0
		}
	})
}

// collect is what happens to names when somebody is gone.
func (l life) collect() {
	s, m := l.s, l.m
	l.does(livesHeir, s.gone() && s.heir == 0 && (!s.removesE || m.bug == livesByName),
		func(n *livesState) { n.heir, n.endpoint = 1, 2 })
	l.does(livesHeirGone, s.heir == 1, func(n *livesState) {
		if n.heir = 2; s.endpoint == 2 {
			n.endpoint = 0
		}
	})
	l.does(livesDecide, s.linked && !s.removesO && (s.dead || s.exited) &&
		(s.gone() || m.bug == livesNoReceiver), func(n *livesState) { n.removesO = true })
	l.does(livesUnlinkO, s.removesO, func(n *livesState) { n.removesO, n.linked = false, false })
	l.does(livesLock, s.endpoint == 1 && !s.removesE && s.gone(),
		func(n *livesState) { n.removesE = true })
	l.does(livesUnlinkE, s.removesE, func(n *livesState) {
		n.removesE = false
		if s.endpoint == 1 || m.bug == livesByName {
			if n.endpoint = 0; s.endpoint == 2 && s.heir == 1 {
				n.fault = usedByHeir
			}
		}
	})
}

// judge: success means that it is so, failure that nobody said otherwise; and in the end nothing is
// left of who is gone.
func (m livesModel) judge(s *livesState) verdict {
	all := true
	for k := range m.messages {
		is, acked := s.done[k], k > 0 && s.words[k%2] == generation(k)
		switch {
		case is == succeeded && k == 0 && !s.got[k] && s.gone(),
			is == succeeded && k > 0 && !s.placed[k],
			is == broken && k > 0 && (acked || s.closed && s.placed[k]):
			return lost
		}
		all = all && is == succeeded && s.got[k]
	}
	switch {
	case s.fault != fine:
		return lost
	case !s.dead && !s.exited || !s.gone(),
		!m.deaths && (!all || s.linked || s.endpoint != 0),
		m.named && (s.linked || s.endpoint != 0 || s.heir == 1):
		return moving
	}
	return resting
}
