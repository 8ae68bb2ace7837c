package cq

import (
	"math"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// readerMourner tells a writer of its queue's readers.
type readerMourner struct {
	w          *Writer
	succession      // of a queue of the same user
	gone       bool // a reader of another user, which was told
	came       bool // it succeeds another one, which is to be told
}

func newReaderMourner(w *Writer) *readerMourner {
	m := &readerMourner{w: w, came: w.follows}
	m.begin(w.reader)
	return m
}

func (m *readerMourner) look() (out []peerNews) {
	if m.w.trust != SameUser {
		return m.lookOther()
	}
	return m.succession.look(m.entry)
}

// lookOther is look at a reader of another user. One that has left or closed the queue is not
// mourned.
func (m *readerMourner) lookOther() (out []peerNews) {
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
func (m *readerMourner) entry(o shm.Owner) PeerEntry {
	p := PeerEntry{Role: PeerReader, Lane: m.w.bit, PID: o.PID, PIDNS: o.PIDNS,
		StartTicks: o.StartTicks, Object: m.w.reader.Header().UUID, Generation: o.Generation}
	p.End = m.w.words.Tail.Load()
	if p.First = m.w.row.Head.Load(); p.End-p.First > uint64(m.w.prod.Cap()) {
		p.First = p.End // no index that can be
	}
	return p
}

func (m *readerMourner) telling(*peerNews) {}
func (m *readerMourner) told(*peerNews)    {}
func (m *readerMourner) close([]peerNews)  { m.witness.rest() }

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
func (w *Writer) BindEvents(events EventSink) error {
	if w.own {
		return kind.Refuse("bind events", w.name, "Writer", "the queue's own", "one of another process",
			ErrInvalid)
	}
	if !w.guard.enterAny() {
		return &Error{Pkg: kind.Pkg, Op: "bind events", Name: w.name, Err: ErrClosed}
	}
	defer w.guard.leaveAny()
	of := FIDQueue
	if w.reader.Header().Kind == shm.KindEvents {
		of = FIDEvents
	}
	err := w.deaths.bind(objectFID(of, w.reader), events, func(mourner) mourner {
		return newReaderMourner(w)
	})
	if err != nil {
		return &Error{Pkg: kind.Pkg, Op: "bind events", Name: w.name, Err: err}
	}
	return nil
}

// bindSuccessor has the writer that goes on in this one's place report where this one does. The end
// of the reader is reported before, if there is room.
func (w *Writer) bindSuccessor(next *Writer) {
	w.deaths.mu.Lock()
	r := w.deaths.report
	w.deaths.mu.Unlock()
	if r == nil {
		return
	}
	r.report()
	_ = next.BindEvents(r.sink) // it fails if nobody wants to hear of it any more
}

// BindEvents makes the writer report to an event queue what becomes of the reader of its own: see
// [Writer.BindEvents].
func (w *EventWriter) BindEvents(events EventSink) error { return w.lane.w.BindEvents(events) }

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

// sinkID names an event queue to a successor of this process. Who writes to it may close it while
// it is bound.
func sinkID(obj *shm.Object) uint64 { return max(1, objectID(obj)&math.MaxInt64) }
