package cq

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// writerDeaths finds out which writers of a queue died. It looks at lanes by itself, not through
// the reader, who may be asleep or not read at all.
type writerDeaths struct {
	q       *core
	to      uint64              // the event queue
	lanes   []*place.OwnerWatch // of the writers of a lane, by row
	looks   int
	changes uint64     // of what was seen, whole
	seen    bool       // there is such a count
	kept    []peerNews // for the next event queue
	// old are rows that nothing could be said of in the first look: what they hold may have been
	// there before this began.
	old []bool
}

// changesEvery is how many looks come between two at whether there are new lanes.
const changesEvery = 2

// newWriterDeaths also decides what is news: of a lane that is there already the death of its last
// writer, unless it was reported to the same event queue before, by whichever reader; of one that
// comes later every death.
func newWriterDeaths(q *core, to uint64) *writerDeaths {
	m := &writerDeaths{q: q, to: to, lanes: make([]*place.OwnerWatch, q.opt.rows()),
		old: make([]bool, q.opt.rows())}
	if !q.opt.others() {
		m.find(true)
		return m
	}
	q.side.KeepDeaths(true)
	return m
}

// find looks for lanes that are new.
func (m *writerDeaths) find(first bool) {
	changes, err := m.q.side.Changes()
	if err == nil && m.seen && changes == m.changes {
		return
	}
	seen := err == nil // all that the count stands for
	for bit := 1; bit < len(m.lanes); bit++ {
		if m.lanes[bit] != nil {
			continue
		}
		obj, _, err := m.q.side.Open(bit)
		if err == nil {
			m.lanes[bit] = m.begin(obj, &m.q.rows[bit], first || m.old[bit])
			continue
		}
		// What is not there, or not this queue's, or damaged stays so until the count changes; for
		// want of a descriptor or of memory only this look failed.
		switch {
		case errors.Is(err, fs.ErrNotExist), err == kind.ErrOtherQueue:
			m.old[bit] = false // whatever comes now is new
		case !kind.Damaged(err):
			seen, m.old[bit] = false, m.old[bit] || first
		}
	}
	if m.seen = seen; seen {
		m.changes = changes
	}
}

// begin begins to follow those of a lane. The row remembers what was reported, and where, for the
// reader that comes after this one.
func (m *writerDeaths) begin(obj *shm.Object, row *kind.RowWords, first bool) *place.OwnerWatch {
	w := &place.OwnerWatch{Of: obj}
	if row.ToldTo.Load() == m.to {
		w.Settle(row.Told.Load())
		return w
	}
	if owner := obj.Owner(); first && owner.Generation > 0 {
		w.Settle(owner.Generation - 1)
	}
	m.tellFrom(row, w.Settled)
	return w
}

// tellFrom makes a row remember what this event queue was told.
func (m *writerDeaths) tellFrom(row *kind.RowWords, settled uint64) {
	row.ToldTo.Store(0)
	row.Told.Store(settled)
	row.Telling.Store(settled)
	row.ToldTo.Store(m.to)
}

// turnTo goes on for another event queue. It is told what the former had no room for, and as any
// other of each lane's last writer if that is dead.
func (m *writerDeaths) turnTo(to uint64) {
	if to == m.to {
		return
	}
	m.to = to
	for i := range m.kept {
		m.kept[i].Again = false // nobody told this one
	}
	for bit, w := range m.lanes {
		if w == nil {
			continue
		}
		told, last := w.Settled, w.Of.Owner()
		again := last.Generation == w.Settled && last.State == shm.StateOwned
		for _, n := range m.kept {
			if n.Lane == bit {
				told = min(told, n.Generation-1)
				again = again && n.Generation != last.Generation
			}
		}
		if again {
			w.Settle(last.Generation - 1)
			told = min(told, w.Settled)
		}
		m.tellFrom(&m.q.rows[bit], told)
	}
}

func (m *writerDeaths) look() (out []peerNews) {
	m.lookForOverrun()
	if m.q.opt.others() {
		for _, d := range m.q.side.TakeDead() {
			m.q.bell.Mark(d.Row)
			out = append(out, peerNews{EventPeerDeath, PeerEntry{Role: PeerWriter, Lane: d.Row, PID: d.PID,
				Object: d.Object, Generation: d.Generation, First: d.First, End: d.End}})
		}
		return out
	}
	if m.looks++; m.looks%changesEvery == 0 {
		m.find(false)
	}
	out, m.kept = m.kept, nil
	for bit, w := range m.lanes {
		if w == nil {
			continue
		}
		news := newsOf(w, func(o shm.Owner) PeerEntry { return m.entry(bit, w.Of.(*shm.Object), o) })
		if len(news) > 0 {
			m.q.bell.Mark(bit) // the entries come before the news
		}
		out = append(out, news...)
	}
	return out
}

// lookForOverrun tells of an overrun before the reader knows of it, who may not read at all.
func (m *writerDeaths) lookForOverrun() {
	q := m.q
	if q.opt.Overrun != OverrunQueue || q.opt.events || q.reportedOverrun() {
		return
	}
	for bit := range m.lanes {
		if m.overran(bit) {
			q.overran()
			return
		}
	}
}

// overran reports whether the lane of a row has lost an entry.
func (m *writerDeaths) overran(bit int) (is bool) {
	if bit > 0 && m.lanes[bit] == nil && !m.q.opt.others() {
		return false
	}
	_ = m.q.withLane(bit, func(obj *shm.Object, _ *place.Peer, _ place.Lane) error {
		if obj == nil {
			return nil
		}
		words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(bit))
		is = err == nil && words.Overrun.Load() != 0
		return err
	})
	return is
}

// entry says what a dead writer left.
func (m *writerDeaths) entry(bit int, obj *shm.Object, o shm.Owner) PeerEntry {
	row := &m.q.rows[bit]
	p := ownerEntry(PeerWriter, obj, o)
	p.Lane, p.Again = bit, o.Generation > row.Told.Load() && o.Generation <= row.Telling.Load()
	p.First, p.End = kind.LaneShare(obj, bit, o.Generation)
	return p
}

func (m *writerDeaths) telling(n *peerNews) {
	if row := &m.q.rows[n.Lane]; !m.q.opt.others() && n.Generation > row.Telling.Load() {
		row.Telling.Store(n.Generation)
	}
}

func (m *writerDeaths) told(n *peerNews) {
	if row := &m.q.rows[n.Lane]; !m.q.opt.others() && n.Generation > row.Told.Load() {
		row.Told.Store(n.Generation)
	}
}

func (m *writerDeaths) close(untold []peerNews) {
	for _, w := range m.lanes {
		if w != nil {
			w.Rest()
		}
	}
	if m.q.opt.others() {
		back := make([]place.Death, 0, len(untold))
		for _, n := range untold {
			back = append(back, place.Death{Lane: place.Lane{Row: n.Lane, PID: n.PID, Object: n.Object,
				Generation: n.Generation}, First: n.First, End: n.End})
		}
		m.q.side.Untold(back)
		return
	}
	m.kept = append(untold, m.kept...) // nobody need have looked since it was bound
}

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

// BindEvents makes the writer report the deaths and successors of the queue's reader to an event
// queue. A reader that is proved dead is an EventPeerDeath with the FID that the queue had then.
// After that posts of a queue with CrossUser are ErrPeerGone; others go on until the lane is full.
// A process that takes the queue over is an EventPeerNew with the FID that the queue has then; so
// is the successor whose queue this writer follows to, and the binding goes along. When events
// come, and how often, is as with [Queue.BindEvents]. A reader that closes or detaches is not dead.
//
// The payload is a [PeerEntry]. Where several writers report to one event queue, an event is of the
// one whose [WriterStats].QueueID is PeerEntry.Object, and whose lane is PeerEntry.Lane.
//
// An event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces
// the first. nil ends the binding, as does closing the writer; events that were reported stay. A
// new binding is told of the death of the reader that the queue has then, also if the former one
// was told. It is not told of earlier readers, nor of successions for which the former one had no
// room. Errors are ErrClosed, and ErrInvalid for a queue's own writer, whose reader is this
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
	seats [counterbell.Seats]place.OwnerWatch
	kept  []peerNews // for the next event queue
}

// newUserDeaths begins with those who are there: who died before is no news.
func newUserDeaths(c *Counter) *userDeaths {
	m := &userDeaths{c: c}
	for i := range m.seats {
		w := &m.seats[i]
		present := w.Begin(c.seats.At(i))
		if _, died, err := w.Of.OwnerDied(); err == nil && died {
			w.Settle(present.Generation)
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
		out = append(out, newsOf(&m.seats[i], func(o shm.Owner) PeerEntry {
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
		m.seats[i].Rest()
	}
}

// BindEvents makes this handle report the deaths of other processes that have the counter open to
// an event queue. A death is an EventPeerDeath with the counter's FID, the number of the dead
// handle as Data and a [PeerEntry] as payload. There is one for each handle that a process had open
// when it was killed, or ended without closing it. What the process had added is in the value by
// then. Each handle that is bound reports by itself, each death once. Deaths before BindEvents are
// not reported. When events come, and what is no death, is as with [Queue.BindEvents]; a handle
// that was closed is not dead.
//
// At most 64 handles that are open at a time have a number. Nobody is told of the deaths of the
// others; they can be told of others'.
//
// An event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces
// the first, and gets the events for which that one had no room. nil ends the binding, as does
// closing the handle. BindEvents may be called from anywhere. The error is ErrClosed.
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
