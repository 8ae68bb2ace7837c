package cq

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
)

// EventQueue is the reading end of an event queue (fid_eq): what is reported of control operations,
// connections and peers. It has one living reader at a time; it is written by the objects of this
// process, by its own Write, and by the processes that attached to it.
//
// Reading is one goroutine's at a time, and so is writing, perhaps another's, unless the queue has
// EventOptions.Shared or a handler; waiting counts as reading. Signal, Close, Detach, Stats and the
// methods that return options may be called from anywhere, and what objects of the library report
// may come from anywhere.
type EventQueue struct {
	core
	options EventOptions
	own     eventLane // lane 0

	pinned *lane // its next event was peeked at, or did not fit, and comes next
	purge  purge

	endMu   sync.Mutex
	handler *handling // nil without EventOptions.Handler
}

// CreateEvents makes an event queue and becomes its reader (fi_eq_open), as [Create] makes a
// completion queue. Errors are those of Create.
//
// With EventOptions.Handler (kfi_eq_open with an event handler) the queue is read by a goroutine of
// its own, which calls the handler with every event, or with nil and the error that a read would
// have returned: a [*EventError] taken from the queue, a [*LaneError], or ErrOverrun, after which
// no more comes. It may call before CreateEvents has returned. There is one call at a time, in the
// order of each writer; the event and its payload are the handler's until it returns, as is From,
// which says who wrote it. The event leaves the queue when it has returned: a process that dies in
// its handler leaves it to its successor, marked Redelivered. A handler may do everything, also
// write to this queue and close it. What would take events from under it, reading, peeking and
// TryWait, fails with ErrHandled, from every goroutine.
func CreateEvents(p Place, o EventOptions) (*EventQueue, error) {
	if err := p.creates("create", placeNamed|placeUnnamed, o.Existing); err != nil {
		return nil, err
	}
	s, err := o.shape("create", p.name, true)
	if err != nil {
		return nil, err
	}
	e := newEvents(o)
	return given(e, e.create(p, s))
}

// OpenEvents becomes the reader of an event queue that exists and has no living reader, or makes
// one (fi_eq_open). What is said of [Open] holds, also of errors and of Existing: options that are
// not zero must agree with the queue, and an event that the previous reader had peeked at comes
// again, marked Redelivered. A completion queue is shm.ErrKind.
func OpenEvents(p Place, o EventOptions) (*EventQueue, error) {
	return openEither(p, o.Existing, func() (*EventQueue, error) {
		s, err := o.shape("adopt", p.name, false)
		if err != nil {
			return nil, err
		}
		e := newEvents(o)
		return given(e, e.adopt(p, s))
	}, func() (*EventQueue, error) { return CreateEvents(p, o) })
}

func newEvents(o EventOptions) *EventQueue {
	e := &EventQueue{options: o}
	e.whole = e
	return e
}

// opened implements whole.
func (e *EventQueue) opened(made bool) error {
	o := &e.options
	*o = o.resolved(e.opt)
	if o.Handler != nil && (o.Wait.hasFD() || o.Wait == WaitInSet) {
		return kind.Refuse("open", e.name, "Wait", o.Wait, "another wait object, or no Handler",
			ErrInvalid)
	}
	if err := e.openOwn(); err != nil {
		return err
	}
	if err := e.enterSet(e, made); err != nil {
		return errors.Join(err, e.own.end())
	}
	if o.Handler != nil {
		e.handler = new(handling)
		e.startHandler()
	}
	return nil
}

// Close destroys the queue (fi_close): events that were not read are lost, writers learn of it at
// their next write, and the name is free again once they have closed too. Blocked reads return
// ErrClosed. Close waits for calls in other goroutines, and for a running handler. Called by the
// handler itself, it takes effect when the handler returns. It fails with ErrBusy while objects or
// sets of this process are bound to the queue or to one of its writers. Closing twice is harmless.
func (e *EventQueue) Close() error { return e.endHandled(opClose) }

// Detach leaves the queue to a successor, which finds it with [OpenEvents]: nothing is lost, and
// writers go on until their lanes are full, with all that is bound to them. All else,
// and its errors, are as with Close.
func (e *EventQueue) Detach() error {
	// Asked first: to shut the own lane for nothing would turn away whoever writes just then, and
	// what was to be reported would count as refused for good.
	if err := e.findable(); err != nil {
		return err
	}
	return e.endHandled(opDetach)
}

// endHandled ends the queue, and the goroutine of its handler before.
func (e *EventQueue) endHandled(op string) error {
	h := e.handler
	if h == nil {
		return e.finish(op)
	}
	// Before its handler is stopped for nothing; and nobody is bound who would keep the queue open.
	if !e.guard.isOver() {
		if err := e.refuseHolders(op); err != nil {
			return err
		}
	}
	if h.isCaller() {
		h.endLater(op)
		return nil
	}
	e.endMu.Lock()
	defer e.endMu.Unlock()
	h.stop()
	err := errors.Join(h.ended(), e.finish(op))
	e.goOn()
	return err
}

// goOn has a queue that did not end handled and bound again. The lock of ends is held.
func (e *EventQueue) goOn() {
	if !e.guard.isOver() {
		e.holders.reopen()
		e.startHandler()
	}
}

// finish ends the queue, which no handler reads any more. The own lane goes before it, for its
// memory goes with the queue's; and only once nothing can be bound any more, since what is bound
// reports by that lane, and would find it closed by a close that fails.
func (e *EventQueue) finish(op string) error {
	if !e.guard.isOver() {
		if err := e.refuseHolders(op); err != nil {
			return err
		}
	}
	first := e.own.shut()
	err := e.end(op)
	switch {
	case !first:
	case e.guard.isOver():
		err = errors.Join(err, e.own.end())
	default:
		e.own.reopen()
		e.holders.reopen()
	}
	return err
}

// Options returns how the queue was created, with what was left open filled in.
func (e *EventQueue) Options() EventOptions { return e.options }

// TryWait arms the queue's descriptor (fi_trywait): see [Queue.TryWait].
func (e *EventQueue) TryWait() error {
	if e.handler != nil {
		return ErrHandled
	}
	return e.core.TryWait()
}

// bind keeps the queue open for an object of this process that reports to it, until unbind.
func (e *EventQueue) bind() error { return e.holders.bind() }

func (e *EventQueue) unbind() { e.holders.unbind() }

func (e *EventQueue) credit(n int) error { return e.own.credit(n) }

func (e *EventQueue) returnCredits(n int) { e.own.returnCredits(n) }

func (e *EventQueue) forget(fid FID) { _ = e.drop(fid) }

func (e *EventQueue) sinkID() uint64 { return sinkID(e.obj) }

// handling is the goroutine that gives a queue's events to its handler.
type handling struct {
	caller atomic.Pointer[string] // the goroutine's name

	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when it has ended
	later  string        // the end that the handler asked for, for when it has returned
	err    error         // of that
}

// startHandler starts the goroutine.
func (e *EventQueue) startHandler() {
	h, done := e.handler, make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	h.mu.Lock()
	h.ctx, h.cancel, h.done, h.later = ctx, cancel, done, ""
	h.mu.Unlock()
	go func() {
		defer close(done) // also if the handler ends its goroutine
		name := goroutineName()
		h.caller.Store(&name)
		e.handle(ctx)
		h.mu.Lock()
		later := h.later
		h.mu.Unlock()
		if later == "" {
			return
		}
		err := e.finish(later)
		if e.guard.isOver() {
			h.mu.Lock()
			h.err = err
			h.mu.Unlock()
		} else if e.endMu.TryLock() { // else one who waits for us ends it, or goes on
			e.goOn()
			e.endMu.Unlock()
		}
	}()
}

// stop ends the goroutine and waits for a handler that is running.
func (h *handling) stop() {
	h.mu.Lock()
	cancel, done := h.cancel, h.done
	h.mu.Unlock()
	cancel()
	<-done
}

// isCaller reports whether this is called by the handler.
func (h *handling) isCaller() bool {
	name := h.caller.Load()
	return name != nil && *name == goroutineName()
}

// endLater arranges that the queue ends when the handler has returned, and is not called again.
func (h *handling) endLater(op string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.later == "" {
		h.later = op
	}
	h.cancel()
}

// ended returns how an end that the handler asked for went.
func (h *handling) ended() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// goroutineName tells goroutines apart. Go has no other way for it than what a stack trace begins
// with, "goroutine 7 [running]:"; only closing a queue that has a handler asks.
func goroutineName() string {
	var buf [64]byte
	name, _, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" ["))
	return string(name)
}

// handle reads until the queue ends.
func (e *EventQueue) handle(ctx context.Context) {
	// What was copied out of the queue stays the library's, so that nothing is allocated.
	ev := Event{Payload: make([]byte, 0, e.options.DataMaxBytes), From: new(Lane)}
	failed := EventError{ErrData: make([]byte, 0, e.options.DataMaxBytes), From: new(Lane)}
	for ctx.Err() == nil {
		err := e.handleOne(&ev, &failed)
		if err == ErrWouldBlock {
			w := e.newWait(ctx, 0)
			err = w.once()
			w.close()
		}
		var lane *LaneError
		switch {
		case err == nil || err == ErrSignaled || ctx.Err() != nil:
		case err == ErrClosed:
			return
		case errors.As(err, &lane):
			e.options.Handler(nil, err)
		default:
			e.options.Handler(nil, err)
			return
		}
	}
}

// handleOne gives the next event to the handler and then takes it out of the queue. In between
// nobody else reads, and purges wait.
func (e *EventQueue) handleOne(ev *Event, failed *EventError) error {
	q := &e.core
	if !q.enter() {
		return q.guard.refusal()
	}
	l, err := e.take(ev)
	isError := err == ErrAvail
	if isError {
		l, err = e.takeErr(failed)
	}
	if err == nil {
		l.pin()
	}
	q.leave()
	switch {
	case err != nil:
		return err
	case isError:
		e.options.Handler(nil, failed)
	default:
		e.options.Handler(ev, nil)
	}
	if !q.enter() {
		return q.guard.refusal()
	}
	e.pinned = nil
	if isError {
		q.errLane = nil
	}
	e.release(l)
	q.leave()
	return nil
}
