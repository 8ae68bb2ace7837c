package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
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

// sendNow sends one message if there is room for it, and is EAGAIN else. It needs no deadline,
// which a process that is stopped would find to be over before the first try.
func (w *wire) sendNow(h hello) error {
	raw, err := w.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { // sockets of package net never block
		_, sent = syscall.SendmsgN(int(fd), h.encode(), nil, nil, 0)
	})
	if err != nil {
		return err
	}
	return sent
}

// sendSoon is sendNow that waits for room for so long.
func (w *wire) sendSoon(h hello, patience time.Duration) error {
	err := w.sendNow(h)
	if errors.Is(err, syscall.EAGAIN) {
		_ = w.conn.SetWriteDeadline(time.Now().Add(patience))
		err = w.send(h)
		_ = w.conn.SetWriteDeadline(time.Time{})
	}
	return err
}

// receive returns the peer's next message with exactly n descriptors, which the caller closes.
func (w *wire) receive(want step, n int) (h hello, fds []int, err error) {
	h, fds, err = w.next(n)
	if err == nil {
		err = h.expect(want)
	}
	if err == nil && len(fds) != n {
		err = &shm.Error{Pkg: pkg, Op: "read message", Field: "descriptors", Got: len(fds), Want: n,
			Err: ErrProtocol}
	}
	if err != nil {
		shm.CloseFDs(fds)
		return h, nil, err
	}
	return h, fds, nil
}

// objection waits until the server says something, and returns its no if it says no in place of a
// rendezvous.
func (w *wire) objection() error {
	raw, err := w.conn.SyscallConn()
	if err != nil {
		return err
	}
	var buf [len(helloMagic)]byte
	var n int
	for range 2 { // see next about a reset
		var got error
		err = raw.Read(func(fd uintptr) bool {
			for got = syscall.EINTR; got == syscall.EINTR; {
				n, _, got = syscall.Recvfrom(int(fd), buf[:], syscall.MSG_PEEK)
			}
			return got != syscall.EAGAIN
		})
		if err = errors.Join(err, got); !errors.Is(err, errReset) {
			break
		}
	}
	if err != nil || n < len(buf) || string(buf[:]) != helloMagic {
		return err
	}
	_, _, err = w.receive(stepGrant, 0)
	if err == nil {
		err = fmt.Errorf("%w: a second grant", ErrProtocol)
	}
	return err
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

// lastWord returns the no that the other end said before it hung up, if it said one, in place of
// the error that this end noticed the end by: what is sent then fails before the no is read.
func (w *wire) lastWord(ctx context.Context, err error) error {
	if !hungUp(err) || ctx.Err() != nil {
		return err
	}
	// A child may hold the connection of a server that is gone.
	ctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	defer w.within(ctx)()
	var buf [helloBytes + 1]byte
	for range lastWords {
		n, fds, got := shm.RecvFDs(w.conn, buf[:], maxLastFDs)
		shm.CloseFDs(fds)
		switch {
		case errors.Is(got, errReset): // see next
			continue
		case got != nil || n == 0:
			return err
		}
		if h, got := decodeHello(buf[:n]); got == nil && h.status != 0 {
			return h.expect(h.step)
		}
	}
	return err
}

// What of a rendezvous may be unread when the other end says no: a few messages, each with a few
// descriptors.
const (
	lastWords  = 8
	maxLastFDs = 8
)

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
