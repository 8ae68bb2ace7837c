package device

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// wire is a connection between application and server. Rendezvous of package cq follow messages of
// this package on it, one after the other.
type wire struct {
	conn *net.UnixConn
}

// send sends one message.
func (w *wire) send(h hello, fds ...int) error {
	return shm.SendFDs(w.conn, h.encode(), fds...)
}

// receive returns the peer's next message with exactly n descriptors, which the caller closes.
func (w *wire) receive(want step, n int) (h hello, fds []int, err error) {
	h, fds, err = w.next(n)
	if err == nil {
		err = h.expect(want)
	}
	if err == nil && len(fds) != n {
		err = &Error{Pkg: pkg, Op: "read message", Field: "descriptors", Got: len(fds), Want: n,
			Err: ErrProtocol}
	}
	if err != nil {
		shm.CloseFDs(fds)
		return h, nil, err
	}
	return h, fds, nil
}

func (w *wire) next(n int) (h hello, fds []int, err error) {
	var buf [helloBytes + 1]byte
	k, fds, err := shm.RecvFDs(w.conn, buf[:], n)
	if errors.Is(err, errReset) {
		// The other end hung up before it read what we sent. What it had said before, a no
		// probably, comes after that news.
		k, fds, err = shm.RecvFDs(w.conn, buf[:], n)
	}
	if err == nil && k == 0 {
		err = io.EOF
	}
	if err == nil {
		h, err = decodeHello(buf[:k])
	}
	return h, fds, err
}

// within sets the deadline of what follows to that of the context.
func (w *wire) within(ctx context.Context) (end func()) {
	_ = w.conn.SetDeadline(time.Time{})
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = w.conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-fired
		}
		_ = w.conn.SetDeadline(time.Time{})
	}
}

// hungUp reports errors that say that the other end is gone.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, errReset) || errors.Is(err, errPipe) ||
		errors.Is(err, cq.ErrPeerGone) || errors.Is(err, net.ErrClosed)
}
