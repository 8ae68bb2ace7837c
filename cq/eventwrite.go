package cq

import (
	"context"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
)

// eventLane is a writer for events, which are reported from wherever an operation happens to end.
// It begins as one goroutine's and pays for no lock; the first use from elsewhere makes it
// everyone's for good. Then its word is lock and guard in one: what holds it is short, and never
// sleeps.
type eventLane struct {
	alone  guard // closed when the lane is everyone's
	public sync.Once
	state  ring.Index // laneFree, laneHeld, laneShut; once it is everyone's
	next   *eventLane // that has the credits since the lane was shut, or nil
	max    int        // bytes of payload
	*laneWriter
}

const (
	laneFree = iota
	laneHeld
	laneShut
)

// share makes the lane everyone's. When it returns nobody writes without the lock any more.
func (l *eventLane) share() {
	l.public.Do(func() { _, _ = l.alone.close(func() {}) })
}

// lock reports whether the lane may be used; unlock must follow if it may.
func (l *eventLane) lock() bool {
	l.share()
	return l.become(laneHeld)
}

// become waits for the lane to be free. It fails if the lane is shut.
func (l *eventLane) become(state uint64) bool {
	for i := 0; !l.state.CompareAndSwap(laneFree, state); i++ {
		switch {
		case l.state.Load() == laneShut:
			return false
		case i < 16:
			runtime.Gosched()
		default:
			time.Sleep(20 * time.Microsecond) // whoever holds it is not running
		}
	}
	return true
}

func (l *eventLane) unlock() { ring.StoreRelease(&l.state, laneFree) }

// shut turns everybody out and away. It reports whether this was the first time.
func (l *eventLane) shut() bool {
	l.share()
	return l.become(laneShut)
}

func (l *eventLane) reopen() { l.state.Store(laneFree) }

// writeLocked is writeOnce for everybody, with room that credit reserved if it is credited.
func (l *eventLane) writeLocked(ev *Event, credited bool) (n int, err error) {
	if !l.lock() {
		return 0, ErrClosed
	}
	if credited {
		n, err = l.writeSlow(ev, true)
	} else {
		n, err = l.writeOnce(ev, true, true)
	}
	l.unlock()
	return n, err
}

// writeOnce publishes an event, if that is allowed: locked under the lock, else for the one
// goroutine whose lane this is, or by the lock once it is everyone's. The usual write is one call
// of it, for which there is room as far as the lane knows, and nothing else to think of.
func (l *eventLane) writeOnce(ev *Event, allowed, locked bool) (int, error) {
	if !allowed {
		return 0, l.notForWriting("write")
	}
	if !locked && !l.alone.enterAlone() {
		return l.writeLocked(ev, false)
	}
	w := l.laneWriter
	p := w.prod
	s := p.Next(w.credits)
	if s == nil || len(ev.Payload) > l.max {
		return l.writeCarefully(ev, locked)
	}
	if w.halt.Load() != 0 || w.ringer.Flags() > wake.Parked {
		return l.writeCarefully(ev, locked)
	}
	at := p.Tail()
	if len(ev.Payload) > 0 {
		copy(w.detail.Data(at), ev.Payload)
	}
	ev.store(s)
	s.Meta = kindEntry | Meta(at)<<32
	if crash.On {
		crash.At(crash.EventFilled)
	}
	plainCount(&w.words.Publishes, 1)
	p.Commit(1)
	if crash.On {
		crash.At(crash.EventPublished)
	}
	if row := w.ringer.Published(at+1, 0); row != 0 {
		w.rang()
	}
	if !locked {
		l.alone.leaveAlone()
	}
	return EventHeaderBytes + len(ev.Payload), nil
}

// writeCarefully is the rest of a write that has something to think of.
func (l *eventLane) writeCarefully(ev *Event, locked bool) (int, error) {
	if !locked {
		defer l.alone.leaveAlone()
	}
	return l.writeSlow(ev, false)
}

func (l *eventLane) notForWriting(op string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: l.name, Field: "Write", Got: false, Want: true,
		Err: ErrInvalid, Hint: "open the event queue with EventOptions.Write"}
}

// writeSlow says why not, or finds that there is room.
func (l *eventLane) writeSlow(ev *Event, credited bool) (int, error) {
	if len(ev.Payload) > l.max {
		return 0, kind.Refuse("write", l.name, "len(Payload)", len(ev.Payload), l.max, ErrInvalid)
	}
	w := l.laneWriter
	slot, err := w.slotFor(credited)
	if err != nil {
		return 0, err
	}
	if len(ev.Payload) > 0 {
		copy(w.detail.Data(w.prod.Tail()), ev.Payload)
	}
	slot.Meta = 0
	ev.store(slot)
	w.publish(1, kindEntry)
	return EventHeaderBytes + len(ev.Payload), nil
}

// writeErr publishes an error event for the one goroutine whose lane this is, or under the lock.
func (l *eventLane) writeErr(e *EventError) (int, error) {
	if !l.alone.enterAlone() {
		return l.writeErrLocked(e, false)
	}
	defer l.alone.leaveAlone()
	return l.writeErrSlow(e, false)
}

func (l *eventLane) writeErrLocked(e *EventError, credited bool) (int, error) {
	if !l.lock() {
		return 0, ErrClosed
	}
	defer l.unlock()
	return l.writeErrSlow(e, credited)
}

func (l *eventLane) writeErrSlow(e *EventError, credited bool) (int, error) {
	w := l.laneWriter
	if err := keeps(&w.detail, e.ErrData, "write", w.name); err != nil {
		return 0, err
	}
	slot, err := w.slotFor(credited)
	if err != nil {
		return 0, err
	}
	at := w.prod.Tail()
	d := w.detail.Record(at)
	*d = kind.Record{Err: int32(e.Err), ProvErrno: e.ProvErrno}
	d.DataBytes = uint64(copy(w.detail.Data(at), e.ErrData))
	*slot = e.slot()
	w.publish(1, kindError)
	return EventErrorBytes, nil
}

// credit reserves room for the events of n operations that were accepted, so that reporting their
// end cannot fail for lack of it.
func (l *eventLane) credit(n int) error {
	if !l.lock() {
		return ErrClosed
	}
	defer l.unlock()
	return l.addCredits(n)
}

// returnCredits gives up n of them: their operations report nothing.
func (l *eventLane) returnCredits(n int) {
	if l.lock() {
		l.dropCredits(n)
		l.unlock()
	} else if l.next != nil {
		l.next.returnCredits(n)
	}
}

// EventWriter writes events into a queue of another process, or of this one, through a lane of its
// own: it is how one process's library tells another of peers, connections and operations. The
// queue need not have been opened with EventOptions.Write, which is about its owner's own writes.
// Every method may be called from anywhere.
type EventWriter struct{ eventLane }

// AttachEvents becomes a writer of an event queue. Everything else is as with [Attach]; a
// completion queue is shm.ErrKind. WriterOptions.Format means nothing here.
func AttachEvents(ctx context.Context, p Place, o WriterOptions) (*EventWriter, error) {
	o.events, o.Format = true, FormatUnspec
	w, err := Attach(ctx, p, o)
	if err != nil {
		return nil, err
	}
	return newEventWriter(&w.laneWriter), nil
}

func newEventWriter(w *laneWriter) *EventWriter {
	ew := &EventWriter{eventLane{laneWriter: w, max: w.detail.Room()}}
	ew.share()
	return ew
}

// Write publishes an event (fi_eq_write) and returns how many bytes that is: the header and the
// payload. ErrFull says that the reader is behind; ErrOverrun that the queue was overrun, now or
// before; ErrClosed that the queue or the writer is closed; ErrInvalid that the payload is longer
// than the queue's DataMaxBytes. Nothing of ev is kept.
//
// The event of an operation that was given no context has that of the object it is about; to put
// it there is the caller's part.
func (w *EventWriter) Write(ev *Event) (int, error) { return w.writeLocked(ev, false) }

// WriteErr publishes an error event, which the reader takes with ReadErr, in order with the events
// of this writer. It returns EventErrorBytes; errors are those of Write.
func (w *EventWriter) WriteErr(e *EventError) (int, error) { return w.writeErr(e) }

// post and postErr implement EventSink.
func (l *eventLane) post(ev *Event, credited bool) error {
	_, err := l.writeLocked(ev, credited)
	return err
}

func (l *eventLane) postErr(e *EventError) error {
	_, err := l.writeErrLocked(e, true)
	return err
}

// forget has nothing to do: what the writer wrote is the reader's.
func (w *EventWriter) forget(FID) {}

func (w *EventWriter) sinkID() uint64 { return sinkID(w.reader) }

// Close ends the writer. What it wrote stays for the reader. It waits for writes in other
// goroutines. It fails with ErrBusy while an object of this process reports by it, see
// [Queue.BindEvents]. Closing twice is harmless.
func (w *EventWriter) Close() error {
	if err := w.refuseHolders(); err != nil {
		return err
	}
	return w.end()
}

// end closes the writer whoever reports by it.
func (w *EventWriter) end() error {
	if !w.shut() {
		return nil
	}
	return w.laneWriter.end()
}

// openOwn makes the writer on the queue's own lane. The reader pays for the order of its publishes
// as it does for everybody's, where it can.
func (e *EventQueue) openOwn() error {
	q := &e.core
	w, err := q.ownWriter()
	if err != nil {
		return err
	}
	e.own.laneWriter, e.own.max = &w.laneWriter, w.detail.Room()
	if e.options.Shared || e.options.Handler != nil {
		e.own.share()
	}
	return nil
}

// Write inserts an event (fi_eq_write) and returns how many bytes that is: the header and the
// payload. The queue must have been opened with EventOptions.Write. It may be called by another
// goroutine than the one that reads, also while a read blocks, which it ends. Errors are those of
// [EventWriter.Write], and ErrInvalid without permission.
//
// The event of an operation that was given no context has that of the object it is about; to put
// it there is the caller's part.
func (e *EventQueue) Write(ev *Event) (int, error) {
	return e.own.writeOnce(ev, e.options.Write, false)
}

// WriteErr inserts an error event, as a failed operation does. It returns EventErrorBytes;
// otherwise it is Write.
func (e *EventQueue) WriteErr(ev *EventError) (int, error) {
	if !e.options.Write {
		return 0, e.own.notForWriting("writeerr")
	}
	return e.own.writeErr(ev)
}

// post reports what an object of this process has to say, whatever the user may write. A credited
// one uses up room that own.credit reserved.
func (e *EventQueue) post(ev *Event, credited bool) error { return e.own.post(ev, credited) }

// postErr reports an operation that failed, for which own.credit reserved room.
func (e *EventQueue) postErr(ev *EventError) error { return e.own.postErr(ev) }

// Follow goes on with the successor of a reader of another user that is proved dead or has
// detached; see [Writer.Follow]. The records of the successor's queue must be as large as those of
// the former one.
func (w *EventWriter) Follow(ctx context.Context, conn *net.UnixConn) (*EventWriter, error) {
	leave := func() (*handover, error) {
		if !w.lock() { // after this nobody writes: the lane is halted
			return nil, ErrClosed
		}
		defer w.unlock()
		return w.leave()
	}
	var next *EventWriter
	_, err := w.follow(ctx, conn, leave, func(lane *laneWriter) bool {
		next = newEventWriter(lane)
		if !w.lock() {
			return false
		}
		next.credits, w.next = w.credits, &next.eventLane // some may have been returned since
		w.state.Store(laneShut)
		_ = w.laneWriter.end()
		return true
	})
	if err != nil {
		return nil, err
	}
	return next, nil
}
