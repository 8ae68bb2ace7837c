package cq

import (
	"context"
	"net"
)

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
	next, err := w.follow(ctx, conn, leave, w.end)
	if err != nil {
		return nil, err
	}
	return newEventWriter(next), nil
}
