package model

import "slices"

// One row of a receiver, explored: a sender has it by a lock, dies, and the next has it without the
// receiver's help. The row's words are the receiver's: whose lane it serves, and the head.
//
//	J1 claim the row   J2 publish, while there is room as far as is known   J3 look: the owner, then
//	the head; until the row has this owner, its head is 0
//	J4 adopt: head = 0 and no words, then the owner; the lane of a dead one is drained before
//	J5 examine   J6 publish the head   J7 retire

type rowsModel struct{ deviant }

// Deviations.
const (
	rowsNoOwner    = "a row has no owner: the lock is enough"
	rowsHeadFirst  = "a sender reads the head before the owner"
	rowsOwnerFirst = "a receiver writes the owner before the head"
	rowsOldWords   = "a receiver adopts a lane and leaves the words of the one before"
	rowsLivingHead = "a receiver adopts a living sender before it has drained the dead one"
)

const rowsMessages = 3

type rowSender struct {
	has, dead, served   bool
	tail, knows, looked uint8
	looks               bool
	examined            uint8 // by the receiver, in truth
}

type rowsState struct {
	by           [2]rowSender
	owner, head  uint8 // of the row
	word         bool  // that the first message ended
	adopts       uint8 // its first word is written
	adopted, pos uint8
	fault        fault
}

const (
	rowsClaim   step = iota // J1 claim
	rowsPublish             // J2 publish
	rowsLook                // J3 look at the first word
	rowsLooked              // J3 look at the second
	rowsDies                // dies
	rowsAdopt               // J4 adopt, first word
	rowsAdopted             // J4 second word
	rowsExamine             // J5 examine
	rowsHead                // J6 publish the head
	rowsRetire              // J7 retire
)

func (m rowsModel) names() []string { return []string{"rowsClaim", "first", "second", "receiver"} }

func (m rowsModel) start() (s rowsState) { return s }

func (m rowsModel) next(s *rowsState, x *search[rowsState]) {
	does := func(who uint8, at step, may bool, do func(n *rowsState)) {
		x.does(s, who, at, may, do)
	}
	for i := range uint8(2) {
		b := &s.by[i]
		does(i, rowsClaim, !b.has && (i == 0 || s.by[0].dead),
			func(n *rowsState) { n.by[i].has = true })
		if !b.has || b.dead {
			continue
		}
		does(i, rowsPublish, b.tail < rowsMessages && b.tail-b.knows < 2,
			func(n *rowsState) { n.by[i].tail++ })
		does(i, rowsDies, i == 0, func(n *rowsState) { n.by[i].dead = true })
		mine := s.owner == i+1 || m.bug == rowsNoOwner
		headFirst := m.bug == rowsHeadFirst
		does(i, rowsLook, !b.looks && (mine || headFirst), func(n *rowsState) {
			n.by[i].looks = true
			if headFirst {
				n.by[i].looked = s.head
			}
		})
		does(i, rowsLooked, b.looks, func(n *rowsState) {
			c := &n.by[i]
			c.looks, c.looked = false, 0
			if headFirst && mine {
				c.knows = b.looked
			} else if !headFirst {
				c.knows = s.head
			}
			if c.knows > c.examined || !headFirst && s.word && c.examined == 0 {
				n.fault = notThere
			}
		})
	}
	for i := range uint8(2) {
		b, other := &s.by[i], &s.by[1-i]
		first := m.bug == rowsLivingHead || b.dead || !other.dead || other.served
		does(2, rowsAdopt, s.adopted == 0 && s.adopts == 0 && b.has && !b.served && first,
			func(n *rowsState) {
				n.adopts, n.pos = i+1, 0
				if m.bug == rowsOwnerFirst {
					n.owner = i + 1
				} else {
					n.head, n.word = 0, s.word && m.bug == rowsOldWords
				}
			})
	}
	does(2, rowsAdopted, s.adopts != 0, func(n *rowsState) {
		n.adopted, n.adopts = s.adopts, 0
		if m.bug == rowsOwnerFirst {
			n.head, n.word = 0, false
		} else {
			n.owner = s.adopts
		}
	})
	if s.adopted == 0 {
		return
	}
	i := s.adopted - 1
	b := &s.by[i]
	does(2, rowsExamine, b.tail > s.pos, func(n *rowsState) {
		n.pos++
		n.by[i].examined++
	})
	does(2, rowsHead, s.head != s.pos, func(n *rowsState) { n.head, n.word = s.pos, true })
	does(2, rowsRetire, b.dead && b.tail == s.pos && s.head == s.pos, func(n *rowsState) {
		n.adopted, n.by[i].served = 0, true
	})
}

// judge: nobody believes that something was examined which was not; in the end all is.
func (m rowsModel) judge(s *rowsState) verdict {
	first, second := &s.by[0], &s.by[1]
	switch {
	case s.fault != fine:
		return lost
	case first.tail == first.examined && second.examined == rowsMessages &&
		second.knows == rowsMessages:
		return resting
	}
	return moving
}

// An outbox with lanes to two receivers, whose owner has exited: the last one out unlinks it. A
// receiver says in its row that it is done.

type outboxModel struct {
	deaths bool // and a collector
	deviant
}

const (
	outboxOwn   = "a receiver unlinks after its own FIN"
	outboxLooks = "a receiver looks at the others before it says that it is done"
)

type outboxState struct {
	at                [2]step
	done, dead, alone [2]bool // alone: it saw all others done or dead
	linked, missed    bool
}

const (
	outboxMap     step = iota // maps it
	outboxExamine             // examines all, says so
	outboxOthers              // looks at the others
	outboxUnlink              // unlinks it
	outboxLeft                // has left
	outboxDies                // dies
	outboxCollect             // the collector unlinks it
)

func (m outboxModel) names() []string {
	return []string{"outboxMap", "receiver 0", "receiver 1", "collector"}
}

func (m outboxModel) start() outboxState { return outboxState{linked: true} }

func (m outboxModel) next(s *outboxState, x *search[outboxState]) {
	out := func(i int) bool { return s.done[i] || s.dead[i] }
	for i, at := range s.at {
		if s.dead[i] || at == outboxLeft {
			continue
		}
		x.by(uint8(i), at)
		n := x.fork(s)
		n.at[i]++
		says, looks := at == outboxExamine, at == outboxOthers
		if m.bug == outboxLooks {
			says, looks = looks, says
		}
		n.done[i] = s.done[i] || says
		n.missed = s.missed || at == outboxMap && !s.linked
		if looks {
			n.alone[i] = out(1 - i)
		}
		if at == outboxUnlink && (s.alone[i] || m.bug == outboxOwn) {
			n.linked = false
		}
		x.emit(n)
		if m.deaths {
			x.does(s, uint8(i), outboxDies, true, func(n *outboxState) { n.dead[i] = true })
		}
	}
	x.does(s, 2, outboxCollect, m.deaths && s.linked && out(0) && out(1),
		func(n *outboxState) { n.linked = false })
}

func (m outboxModel) judge(s *outboxState) verdict {
	switch {
	case s.missed:
		return lost
	case !s.linked:
		return resting
	}
	return moving
}

var lives = family{
	title: "Lanes that grow and end",
	variants: []variant{
		form("four messages", livesModel{messages: 4}),
		form("two messages, and deaths", livesModel{messages: 2, deaths: true}),
		form("four messages, and deaths", livesModel{messages: 4, deaths: true}),
		form("two messages, deaths and names",
			livesModel{messages: 2, deaths: true, named: true}),
		form("four messages, deaths and names",
			livesModel{messages: 4, deaths: true, named: true}),
		form("a row that is claimed again", rowsModel{}),
		form("a place with three users and two numbers", placesModel{}),
		form("an outbox to two", outboxModel{}),
		form("an outbox to two, deaths and a collector", outboxModel{deaths: true}),
	},
	mutants: slices.Concat(
		on("four messages", livesFreeAtPublish, livesFreeAtHead, livesHeadFirst, livesGrowControl,
			livesNoSlot, livesDirty, livesReuse, livesLateWord),
		on("two messages, and deaths", livesFinControl, livesUnlinks, livesRowFirst, livesEmptyFirst,
			livesWordFirst, livesClosedFirst, livesAtPublish),
		on("four messages, and deaths", livesAnyWord),
		on("two messages, deaths and names", livesNoReceiver, livesByName),
		on("a row that is claimed again", rowsNoOwner, rowsHeadFirst, rowsOwnerFirst, rowsOldWords),
		on("a place with three users and two numbers", placesStays, placesClosed, placesHead,
			placesCutOff),
		on("an outbox to two", outboxOwn, outboxLooks)),
	traps: on("a row that is claimed again", rowsLivingHead),
}
