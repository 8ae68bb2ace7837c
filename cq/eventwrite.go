package cq

import (
	"context"
	"runtime"
	"time"

	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// eventLane is a writer that every goroutine may use: events are reported from wherever an
// operation happens to end. Its word is lock and guard in one, so that a write pays for one locked
// instruction: what holds it is short, and never sleeps.
type eventLane struct {
	state ring.Index // laneFree, laneHeld, laneShut
	w     *Writer
	max   int // bytes of payload
}

const (
	laneFree = iota
	laneHeld
	laneShut
)

// lock reports whether the lane may be used; unlock must follow if it may.
func (l *eventLane) lock() bool {
	return l.state.CompareAndSwap(laneFree, laneHeld) || l.become(laneHeld)
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
func (l *eventLane) shut() bool { return l.become(laneShut) }

func (l *eventLane) reopen() { l.state.Store(laneFree) }

// write publishes an event, with room that credit reserved if it is credited.
func (l *eventLane) write(ev *Event, credited bool) (int, error) {
	if len(ev.Payload) > l.max {
		return 0, refuse("write", l.w.name, "len(Payload)", len(ev.Payload), l.max, ErrInvalid)
	}
	if !l.lock() {
		return 0, ErrClosed
	}
	w := l.w
	a, err := l.reserve(credited)
	if err != nil {
		l.unlock()
		return 0, err
	}
	if len(ev.Payload) > 0 {
		copy(w.detail.data(w.prod.Tail()), ev.Payload)
	}
	a[0] = ev.slot()
	w.publishReserved(1)
	l.unlock()
	return EventHeaderBytes + len(ev.Payload), nil
}

// reserve returns the slot of the next event.
func (l *eventLane) reserve(credited bool) ([]Entry, error) {
	w := l.w
	if !credited {
		a, _, err := w.reserve(1, w.credits)
		return a, err
	}
	if w.credits == 0 {
		return nil, ErrNoCredit
	}
	a, _, err := w.reserve(1, w.credits-1)
	if err == nil {
		w.credits--
	}
	return a, err
}

func (l *eventLane) writeErr(e *EventError, credited bool) (int, error) {
	if len(e.ErrData) > l.max {
		return 0, refuse("write", l.w.name, "len(ErrData)", len(e.ErrData), l.max, ErrInvalid)
	}
	if !l.lock() {
		return 0, ErrClosed
	}
	defer l.unlock()
	w := l.w
	a, err := l.reserve(credited)
	if err != nil {
		return 0, err
	}
	at := w.prod.Tail()
	d := w.detail.record(at)
	*d = errorRecord{err: int32(e.Err), provErrno: e.ProvErrno}
	d.dataBytes = uint64(copy(w.detail.data(at), e.ErrData))
	a[0] = e.slot()
	w.reserved = 0
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
	return l.w.Credit(n)
}

// returnCredits gives up n of them: their operations report nothing.
func (l *eventLane) returnCredits(n int) {
	if l.lock() {
		l.w.ReturnCredits(n)
		l.unlock()
	}
}

// EventWriter writes events into a queue of another process, or of this one, through a lane of its
// own: it is how one process's library tells another of peers, connections and operations. The
// queue need not have been opened with EventOptions.Write, which is about its owner's own writes.
// Every method may be called from anywhere.
type EventWriter struct{ lane eventLane }

// AttachEvents becomes a writer of an event queue. Everything else is as with [Attach]; a
// completion queue is shm.ErrKind. WriterOptions.Format means nothing here.
func AttachEvents(ctx context.Context, d *shm.Dir, name string, o WriterOptions) (*EventWriter,
	error) {
	o.events, o.Format = true, FormatUnspec
	w, err := Attach(ctx, d, name, o)
	if err != nil {
		return nil, err
	}
	return newEventWriter(w), nil
}

func newEventWriter(w *Writer) *EventWriter {
	return &EventWriter{eventLane{w: w, max: int(w.detail.stride) - detailHeaderBytes}}
}

// Write publishes an event (fi_eq_write) and returns how many bytes that is: the header and the
// payload. ErrFull says that the reader is behind; ErrOverrun that the queue was overrun, now or
// before; ErrClosed that the queue or the writer is closed; ErrInvalid that the payload is longer
// than the queue's DataMaxBytes. Nothing of ev is kept.
//
// The event of an operation that was given no context has that of the object it is about; to put
// it there is the caller's part.
func (w *EventWriter) Write(ev *Event) (int, error) { return w.lane.write(ev, false) }

// WriteErr publishes an error event, which the reader takes with ReadErr, in order with the events
// of this writer. It returns EventErrorBytes; errors are those of Write.
func (w *EventWriter) WriteErr(e *EventError) (int, error) { return w.lane.writeErr(e, false) }

// postErr implements EventSink.
func (w *EventWriter) postErr(e *EventError, credited bool) error {
	_, err := w.lane.writeErr(e, credited)
	return err
}

// Lane returns the writer's lane number.
func (w *EventWriter) Lane() int { return w.lane.w.Lane() }

// Stats returns the counters of the lane.
func (w *EventWriter) Stats() WriterStats { return w.lane.w.Stats() }

// Close ends the writer. What it wrote stays for the reader. It waits for writes in other
// goroutines; closing twice is harmless.
func (w *EventWriter) Close() error {
	if !w.lane.shut() {
		return nil
	}
	return w.lane.w.Close()
}

// openOwn makes the writer on the queue's own lane. The reader pays for the order of its publishes
// as it does for everybody's, where it can.
func (e *EventQueue) openOwn() error {
	q := e.q
	w, err := q.ownWriter()
	if err != nil {
		return err
	}
	e.own.w, e.own.max = w, q.opt.detailBytes-detailHeaderBytes
	return nil
}

// Write inserts an event (fi_eq_write) and returns how many bytes that is: the header and the
// payload. The queue must have been opened with EventOptions.Write. It may be called from
// anywhere, also while a read blocks, which it ends. Errors are those of [EventWriter.Write], and
// ErrInvalid without permission.
//
// The event of an operation that was given no context has that of the object it is about; to put
// it there is the caller's part.
func (e *EventQueue) Write(ev *Event) (int, error) {
	if !e.opt.Write {
		return 0, e.notForWriting("write")
	}
	return e.own.write(ev, false)
}

// WriteErr inserts an error event, as a failed operation does. It returns EventErrorBytes;
// otherwise it is Write.
func (e *EventQueue) WriteErr(ev *EventError) (int, error) {
	if !e.opt.Write {
		return 0, e.notForWriting("writeerr")
	}
	return e.own.writeErr(ev, false)
}

func (e *EventQueue) notForWriting(op string) error {
	return &Error{Pkg: pkg, Op: op, Name: e.q.name, Field: "Write", Got: false, Want: true,
		Err: ErrInvalid, Hint: "open the event queue with EventOptions.Write"}
}

// post reports what an object of this process has to say, whatever the user may write. A credited
// one uses up room that own.credit reserved.
func (e *EventQueue) post(ev *Event, credited bool) error {
	_, err := e.own.write(ev, credited)
	return err
}

// postErr reports an operation that failed.
func (e *EventQueue) postErr(ev *EventError, credited bool) error {
	_, err := e.own.writeErr(ev, credited)
	return err
}
