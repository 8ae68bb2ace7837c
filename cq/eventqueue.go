package cq

import (
	"errors"
	"sync"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// EventQueue is the reading end of an event queue (fid_eq): what is reported of control operations,
// connections and peers. It has one living reader at a time; it is written by the objects of this
// process, by its own Write, and by the processes that attached to it.
//
// Reading is one goroutine's at a time, and so is writing, perhaps another's, unless the queue has
// EventOptions.Shared or a handler; waiting counts as reading. Signal, Purge, Close, Detach, Stats
// and the methods that return options may be called from anywhere, and what objects of the library
// report may come from anywhere.
type EventQueue struct {
	q   *Queue
	opt EventOptions
	own eventLane // lane 0

	pinned *lane // its next event was peeked at, or did not fit, and comes next
	purge  purge

	endMu   sync.Mutex
	handler *handling // nil without EventOptions.Handler
}

// CreateEvents makes an event queue and becomes its reader (fi_eq_open). Errors are those of
// [Create].
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
func CreateEvents(d *shm.Dir, name string, o EventOptions) (*EventQueue, error) {
	s, err := o.shape("create", name, true)
	if err != nil {
		return nil, err
	}
	q, err := createShape(d, name, s)
	if err != nil {
		return nil, err
	}
	return newEvents(q, o)
}

// newEvents makes an event queue of what was just made.
func newEvents(q *Queue, o EventOptions) (*EventQueue, error) {
	e, err := openEvents(q, o, true)
	if err != nil {
		_ = q.Close()
		return nil, failed("create", q.name, err)
	}
	return e, nil
}

// AdoptEvents becomes the reader of an event queue that exists and has no living reader. What is
// said of [Adopt] holds: options that are not zero must agree with the queue, and an event that the
// previous reader had peeked at comes again, marked Redelivered. A completion queue is shm.ErrKind.
func AdoptEvents(d *shm.Dir, name string, want EventOptions) (*EventQueue, error) {
	s, err := want.shape("adopt", name, false)
	if err != nil {
		return nil, err
	}
	q, err := adoptShape(d, name, s)
	if err != nil {
		return nil, err
	}
	e, err := openEvents(q, want, false)
	if err != nil {
		_ = q.Detach()
		return nil, failed("adopt", name, err)
	}
	return e, nil
}

// OpenEvents adopts the event queue if it exists, and creates it if not (fi_eq_open). Errors are
// those of AdoptEvents and CreateEvents, and ErrBusy if others create and destroy it all the time.
func OpenEvents(d *shm.Dir, name string, o EventOptions) (*EventQueue, error) {
	return openEither(d, name, func() (*EventQueue, error) { return AdoptEvents(d, name, o) },
		func() (*EventQueue, error) { return CreateEvents(d, name, o) })
}

func openEvents(q *Queue, o EventOptions, made bool) (*EventQueue, error) {
	e := &EventQueue{q: q, opt: o.resolved(q.opt)}
	if o.Handler != nil && (q.opt.Wait.hasFD() || q.opt.Wait == WaitInSet) {
		return nil, kind.Refuse("open", q.name, "Wait", q.opt.Wait, "another wait object, or no Handler",
			ErrInvalid)
	}
	if err := e.openOwn(); err != nil {
		return nil, err
	}
	if err := q.enterSet(e, made); err != nil {
		return nil, errors.Join(err, e.own.w.Close())
	}
	if o.Handler != nil {
		e.handler = new(handling)
		e.serve()
	}
	return e, nil
}

// Close destroys the queue (fi_close): events that were not read are lost, writers learn of it at
// their next write, and the name is free again once they have closed too. Blocked reads return
// ErrClosed. Close waits for calls in other goroutines, and for a running handler. Called by the
// handler itself, it takes effect when the handler returns. It fails with ErrBusy while objects or
// sets of this process are bound to the queue or to one of its writers. Closing twice is harmless.
func (e *EventQueue) Close() error { return e.end(opClose, e.q.Close) }

// Detach leaves the queue to a successor, which finds it with [AdoptEvents]: nothing is lost, and
// writers go on until their lanes are full, with all that is bound to them. Otherwise it is Close,
// also in its errors.
func (e *EventQueue) Detach() error {
	// Asked first: to shut the own lane for nothing would turn away whoever writes just then, and
	// what was to be reported would count as refused for good.
	if err := e.q.findable(); err != nil {
		return err
	}
	return e.end(opDetach, e.q.Detach)
}

func (e *EventQueue) end(op string, last func() error) error {
	h := e.handler
	if h == nil {
		return e.finish(op, last)
	}
	if err := e.held(op); err != nil { // before its handler is stopped for nothing
		return err
	}
	if h.isCaller() {
		h.endLater(op, last)
		return nil
	}
	e.endMu.Lock()
	defer e.endMu.Unlock()
	h.stop()
	err := errors.Join(h.ended(), e.finish(op, last))
	if !e.q.guard.isOver() {
		e.serve()
	}
	return err
}

// held says that objects or sets of this process are bound to the queue.
func (e *EventQueue) held(op string) error {
	h := &e.q.holders
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.free() && !e.q.written(op) {
		return nil
	}
	return e.errHeld(op)
}

func (e *EventQueue) errHeld(op string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: e.q.name, Err: ErrBusy,
		Hint: "close what is bound to it, and take it out of its sets: CloseAll does so in order"}
}

// finish ends the queue, which no handler reads any more. The own lane goes before it, for its
// memory goes with the queue's; and only once nothing can be bound any more, since what is bound
// reports by that lane, and would find it closed by a close that fails.
func (e *EventQueue) finish(op string, last func() error) error {
	if !e.q.guard.isOver() && e.q.refuseHolders(op) != nil {
		return e.errHeld(op)
	}
	first := e.own.shut()
	err := last()
	switch {
	case !first:
	case e.q.guard.isOver():
		err = errors.Join(err, e.own.w.Close())
	default:
		e.own.reopen()
		e.q.holders.reopen()
	}
	return err
}

// Name returns the queue's name.
func (e *EventQueue) Name() string { return e.q.name }

// FID returns the queue's identifier, by which events mean it.
func (e *EventQueue) FID() FID { return e.q.fid }

// Options returns how the queue was created, with what was left open filled in.
func (e *EventQueue) Options() EventOptions { return e.opt }

// UserContext returns EventOptions.UserContext.
func (e *EventQueue) UserContext() any { return e.opt.UserContext }

// Stats returns counters. It may be called from anywhere while the queue is open.
func (e *EventQueue) Stats() Stats { return e.q.Stats() }

// TryWait arms the queue's descriptor (fi_trywait): see [Queue.TryWait].
func (e *EventQueue) TryWait() error {
	if e.handler != nil {
		return ErrHandled
	}
	if e.purge.due.Load() {
		if err := e.purgeNow(); err != nil {
			return err
		}
	}
	return e.q.TryWait()
}

// Signal ends one wait of one waiter without an event: one that waits now, or else the next one
// that finds nothing. libfabric has no such call; see [Queue.Signal], also for its errors.
func (e *EventQueue) Signal() error { return e.q.Signal() }

// StrError returns the text of a provider error number and its detail (fi_eq_strerror).
func (e *EventQueue) StrError(provErrno int32, errData []byte) string {
	return e.q.StrError(provErrno, errData)
}

// bind keeps the queue open for an object of this process that reports to it, until unbind.
func (e *EventQueue) bind() error { return e.q.holders.bind() }

func (e *EventQueue) unbind() { e.q.holders.unbind() }

func (e *EventQueue) credit(n int) error { return e.own.credit(n) }

func (e *EventQueue) returnCredits(n int) { e.own.returnCredits(n) }

func (e *EventQueue) forget(fid FID) { _ = e.Purge(fid) }

func (e *EventQueue) sinkID() uint64 { return sinkID(e.q.obj) }
