package device

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// wire is a conversation between application and server. Rendezvous of package cq are conversations
// of their own on the same connection, before or after it.
type wire struct {
	*place.Conversation
}

// meet begins a conversation that lasts as long as the context, or to End.
func meet(ctx context.Context, conn *net.UnixConn) wire { return wire{protocol.Begin(ctx, conn)} }

func (w wire) send(h hello, fds ...int) error { return w.Send(h.encode(), fds...) }

// sendSoon sends one message, which may wait for room until the context ends.
func (w wire) sendSoon(ctx context.Context, h hello) error {
	err := w.SendNow(h.encode())
	if errors.Is(err, syscall.EAGAIN) {
		soon := meet(ctx, w.Conn)
		defer soon.End()
		err = soon.send(h)
	}
	return err
}

// receive returns the peer's next message with its descriptors, which the caller closes.
func (w wire) receive(want uint16) (h hello, fds []int, err error) {
	return decoded(w.Receive(want))
}

// next is receive of whatever step, for sides that are sent no descriptors: it closes them.
func (w wire) next() (hello, error) {
	h, fds, err := decoded(w.Next())
	shm.CloseFDs(fds)
	return h, err
}

func decoded(b []byte, fds []int, err error) (hello, []int, error) {
	var h hello
	if err == nil {
		h, err = decodeHello(b)
	}
	if err != nil {
		shm.CloseFDs(fds)
		return h, nil, err
	}
	return h, fds, nil
}

// objection waits until the server says something, and returns its no if it says no in place of a
// rendezvous.
func (w wire) objection() error {
	ours, err := w.Peek()
	if err != nil || !ours {
		return err
	}
	_, _, err = w.receive(stepGrant)
	if err == nil {
		err = fmt.Errorf("%w: a second grant", ErrProtocol)
	}
	return err
}

// lastWord returns the no that the other end said before it hung up, if it said one, in place of
// the error that this end noticed the end by: what is sent then fails before the no is read.
func lastWord(ctx context.Context, conn *net.UnixConn, err error) error {
	if !hungUp(err) || ctx.Err() != nil {
		return err
	}
	// A child may hold the connection of a server that is gone.
	ctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	w := meet(ctx, conn)
	defer w.End()
	if no := w.LastWord(lastWords, maxLastFDs); no != nil {
		return no
	}
	return err
}

// What of a rendezvous may be unread when the other end says no: a few messages, each with a few
// descriptors.
const (
	lastWords  = 8
	maxLastFDs = 8
)

// hungUp reports errors that say that the other end is gone.
func hungUp(err error) bool {
	return place.HungUp(err) || errors.Is(err, cq.ErrPeerGone) || errors.Is(err, net.ErrClosed)
}
