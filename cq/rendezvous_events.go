package cq

import (
	"context"
	"net"
)

// CreateAnonymousEvents makes an event queue without a name in any file system and becomes its
// reader: [CreateEvents] as [CreateAnonymous] is [Create]. Writers attach by [EventQueue.Accept]
// here and [AttachEventsConn] there.
func CreateAnonymousEvents(name string, o EventOptions) (*EventQueue, error) {
	s, err := o.shape("create", name, true)
	if err != nil {
		return nil, err
	}
	e := newEvents(o)
	return given(e, e.createMemfds(name, s))
}

// AttachEventsConn becomes a writer of the event queue whose reader calls [EventQueue.Accept] at
// the other end of a connected socket. Everything else is as with [AttachConn]; a completion queue
// is shm.ErrKind, and WriterOptions.Format means nothing.
func AttachEventsConn(ctx context.Context, conn *net.UnixConn, o WriterOptions) (*EventWriter,
	error) {
	o.events, o.Format = true, FormatUnspec
	w, err := AttachConn(ctx, conn, o)
	if err != nil {
		return nil, err
	}
	return newEventWriter(w), nil
}

// Follow goes on with the successor of a reader of another user that is proved dead or has
// detached; see [Writer.Follow]. The records of the successor's queue must be as large as those of
// the former one.
func (w *EventWriter) Follow(ctx context.Context, conn *net.UnixConn) (*EventWriter, error) {
	leave := func() (*legacy, error) {
		if !w.lane.lock() { // after this nobody writes: the lane is halted
			return nil, ErrClosed
		}
		defer w.lane.unlock()
		return w.lane.w.leave()
	}
	next, err := w.lane.w.follow(ctx, conn, leave, w.end)
	if err != nil {
		return nil, err
	}
	return newEventWriter(next), nil
}

// ReaderGone returns a channel that is closed when the reader, of another user, is proved dead; see
// [Writer.ReaderGone].
func (w *EventWriter) ReaderGone() <-chan struct{} { return w.lane.w.ReaderGone() }
