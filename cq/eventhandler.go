package cq

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
)

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
		h.mu.Lock()
		h.err = err
		h.mu.Unlock()
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
