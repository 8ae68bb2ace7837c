package cq

import (
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// readerChanges tells a writer of its queue's readers.
type readerChanges struct {
	w          *laneWriter
	succession      // of a queue of the same user
	gone       bool // a reader of another user, which was told
	came       bool // it succeeds another one, which is to be told
}

func newReaderChanges(w *laneWriter) *readerChanges {
	m := &readerChanges{w: w, came: w.follows}
	m.begin(w.reader)
	return m
}

func (m *readerChanges) look() (out []peerNews) {
	if m.w.trust != SameUser {
		return m.lookOther()
	}
	return m.succession.look(m.entry)
}

// lookOther is look at a reader of another user. One that has left or closed the queue is not
// reported dead.
func (m *readerChanges) lookOther() (out []peerNews) {
	owner := shm.Owner{PID: m.w.peer.PID, Generation: m.w.reader.Owner().Generation}
	if m.came {
		m.came = false
		out = append(out, peerNews{EventPeerNew, m.entry(owner)})
	}
	if !m.gone && m.w.peer.Gone() && m.w.ringer.Flags()&(kind.RowLeft|kind.RowClosed) == 0 {
		m.gone = true
		out = append(out, peerNews{EventPeerDeath, m.entry(owner)})
	}
	return out
}

// entry says what a reader left of this writer's entries. They wait for its successor.
func (m *readerChanges) entry(o shm.Owner) PeerEntry {
	p := ownerEntry(PeerReader, m.w.reader, o)
	p.Lane = m.w.bit
	p.End = m.w.words.Tail.Load()
	if p.First = m.w.row.Head.Load(); p.End-p.First > uint64(m.w.prod.Cap()) {
		p.First = p.End // no index that can be
	}
	return p
}

// BindEvents makes the writer report to an event queue what becomes of the queue's reader: an
// EventPeerDeath with the queue's FID for each reader that is proved dead, after which posts of a
// queue with CrossUser are ErrPeerGone, and others go on until the lane is full; and an
// EventPeerNew for each process that takes the queue over, or whose queue this writer follows to,
// with the FID of that one; the binding goes along. The payload is a [PeerEntry]. When and how
// often is as with [Queue.BindEvents]. A reader that closes or detaches is not dead.
//
// An event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces
// it, and nil ends it, as does closing the writer; events that were reported stay. Each binding
// begins by itself: the death of the reader that the queue has then is reported to it, also if
// another one was told; of earlier readers, and of successions that another one had no room for,
// it is not. Errors are ErrClosed, and ErrInvalid for a queue's own writer, whose reader is this
// process. BindEvents may be called from anywhere.
func (w *laneWriter) BindEvents(events EventSink) error {
	if w.own {
		return kind.Refuse("bind events", w.name, "Writer", "the queue's own", "one of another process",
			ErrInvalid)
	}
	if !w.guard.enterAny() {
		return bindError(w.name, ErrClosed)
	}
	defer w.guard.leaveAny()
	of := FIDQueue
	if w.reader.Header().Kind == shm.KindEvents {
		of = FIDEvents
	}
	return w.deaths.bind(w.name, objectFID(of, w.reader), events,
		func(deathFinder) deathFinder { return newReaderChanges(w) })
}

// bindSuccessor has the writer that goes on in this one's place report where this one does. The end
// of the reader is reported before, if there is room.
func (w *laneWriter) bindSuccessor(next *laneWriter) {
	w.deaths.mu.Lock()
	r := w.deaths.report
	w.deaths.mu.Unlock()
	if r == nil {
		return
	}
	r.report()
	_ = next.BindEvents(r.sink) // it fails if nobody wants to hear of it any more
}

// BindEvents makes the queue report the deaths of its writers to an event queue, which may be the
// queue itself: see [Queue.BindEvents]. It says nothing of an overrun, which reads return.
func (e *EventQueue) BindEvents(events EventSink) error {
	if events == EventSink(e) {
		events = ownSink{e}
	}
	return e.bindDeaths(events)
}

// ownSink is an event queue as its own sink: it holds nothing open that it would have to wait for.
type ownSink struct{ *EventQueue }

func (ownSink) bind() error { return nil }
func (ownSink) unbind()     {}
func (ownSink) forget(FID)  {}

// userDeaths tells one handle of a counter of the others that died. Whoever has a seat notes who he
// is, and takes that back before he leaves: so a record of somebody who is gone means that he died
// with it.
type userDeaths struct {
	unnoted
	c     *Counter
	seats [counterbell.Seats]ownerWatch
	kept  []peerNews // for the next event queue
}

// newUserDeaths begins with those who are there: who died before is no news.
func newUserDeaths(c *Counter) *userDeaths {
	m := &userDeaths{c: c}
	for i := range m.seats {
		w := &m.seats[i]
		present := w.begin(c.seats.At(i))
		if _, died, err := w.of.OwnerDied(); err == nil && died {
			w.settle(present.Generation)
		}
	}
	return m
}

func (m *userDeaths) look() (out []peerNews) {
	out, m.kept = m.kept, nil
	for i := range m.seats {
		if i == m.c.seat.Index() {
			continue
		}
		out = append(out, m.seats[i].news(func(o shm.Owner) PeerEntry {
			p := ownerEntry(PeerUser, m.c.obj, o)
			p.Lane = i
			return p
		})...)
	}
	return out
}

func (m *userDeaths) close(untold []peerNews) {
	m.kept = append(untold, m.kept...) // nobody need have looked since it was bound
	for i := range m.seats {
		m.seats[i].rest()
	}
}

// BindEvents makes this handle report to an event queue the deaths of other processes that have the
// counter open: an EventPeerDeath with the counter's FID, the handle's number as Data and a
// [PeerEntry] as payload, one for each handle that a process had open when it was killed or ended
// without closing it. What it had added is in the value by then. Each handle that is bound reports
// by itself, each death once. What happened before BindEvents is not reported. When events come,
// and what is no death, is as with [Queue.BindEvents]: a process that is stopped is not dead, nor
// is a handle that was closed.
//
// Handles beyond the first 64 that are open at a time have no number, and nobody is told of their
// deaths; they can be told of others'.
//
// An event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces
// it, and gets what that one had no room for; nil ends it, as does closing the handle. It may be
// called from anywhere. The error is ErrClosed.
func (c *Counter) BindEvents(events EventSink) error {
	if !c.guard.enterAny() {
		return bindError(c.name, ErrClosed)
	}
	defer c.guard.leaveAny()
	return c.deaths.bind(c.name, c.fid, events, func(former deathFinder) deathFinder {
		if m, ok := former.(*userDeaths); ok {
			return m
		}
		return newUserDeaths(c)
	})
}

// vectorOwners tells who looks things up in an address vector of its owners.
type vectorOwners struct {
	v *AddressVector
	succession
}

func (m *vectorOwners) look() []peerNews {
	return m.succession.look(func(o shm.Owner) PeerEntry { return ownerEntry(PeerOwner, m.v.obj, o) })
}

// bindOwner has the owner's death reported to a process that only looks things up.
func (v *AddressVector) bindOwner(events EventSink) error {
	return v.deaths.bind(v.name, v.fid, events, func(deathFinder) deathFinder {
		m := &vectorOwners{v: v}
		m.begin(v.obj)
		return m
	})
}
