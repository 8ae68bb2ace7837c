package cq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

const opMeet = "rendezvous"

// meeting is one side of a rendezvous that is under way.
type meeting struct {
	conn   *net.UnixConn
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool   // of the function that ends a blocked call when the context does
	fired  chan struct{} // closed when that function has run
	silent *time.Timer   // ends a rendezvous with a peer who says no more; nil while any may
	next   step          // what this side sends next, 0 if nothing: the peer waits for it, or will
}

// meet begins a rendezvous of the side that sends first; end must follow. While it lasts the
// deadline of the connection is ours.
func meet(ctx context.Context, conn *net.UnixConn, first step) *meeting {
	m := &meeting{conn: conn, fired: make(chan struct{}), next: first}
	m.ctx, m.cancel = context.WithCancelCause(ctx)
	_ = conn.SetDeadline(time.Time{})
	m.stop = context.AfterFunc(m.ctx, func() {
		defer close(m.fired)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return m
}

// errSilent: the peer began a rendezvous and did not go on.
var errSilent = errors.New("peer went silent in the middle of a rendezvous")

// errLate: the peer connected to a Serve and did not attach.
var errLate = errors.New("peer did not begin a rendezvous")

// limit bounds how long the rest may take, whatever the caller's context says, and why says that it
// took longer.
func (m *meeting) limit(why error) {
	m.pause()
	m.silent = time.AfterFunc(meetTimeout, func() { m.cancel(why) })
}

// pause lets the peer wait for us: how long that takes is not held against it.
func (m *meeting) pause() {
	if m.silent != nil {
		m.silent.Stop()
		m.silent = nil
	}
}

// end leaves the connection without a deadline. With an error the peer is told.
func (m *meeting) end(err error) {
	m.pause()
	if !m.stop() {
		<-m.fired
	}
	if err != nil && m.next != 0 {
		m.refuse(err)
	}
	_ = m.conn.SetDeadline(time.Time{})
	m.cancel(nil)
}

// refuse tells the peer no. It waits for that, so there is room in its socket; a write that may
// block would need a deadline, which a busy machine can miss before the first try.
func (m *meeting) refuse(err error) {
	no := message{step: m.next, status: statusOf(err)}
	raw, rawErr := m.conn.SyscallConn()
	if rawErr != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // sockets of package net never block
		_, _ = syscall.SendmsgN(int(fd), no.encode(), nil, nil, 0)
	})
}

// send sends a message with the descriptors that are not -1.
func (m *meeting) send(msg message, fds passed) error {
	var list []int
	for i, fd := range fds {
		if fd >= 0 {
			msg.fds |= 1 << i
			list = append(list, fd)
		}
	}
	crash.At(crash.MeetSending)
	err := shm.SendFDs(m.conn, msg.encode(), list...)
	crash.At(crash.MeetSent)
	if err != nil {
		return m.why(err)
	}
	if m.next += 2; m.next > stepDone {
		m.next = 0
	}
	return nil
}

// receive returns the peer's next message, and the descriptors of it, which the caller closes. A
// stream may cut the message in pieces.
func (m *meeting) receive(want step) (msg message, fds passed, err error) {
	var buf [messageBytes]byte
	var list []int
	fds = noFDs
	for n := 0; n < len(buf) && err == nil; {
		k, more, e := shm.RecvFDs(m.conn, buf[n:], fdCount-len(list))
		list = append(list, more...)
		if n += k; e == nil && k == 0 {
			e = io.EOF
		}
		err = e
	}
	crash.At(crash.MeetReceived)
	if err == nil {
		msg, err = decodeMessage(buf[:], want, len(list))
	}
	if err == nil {
		if err = statusError(msg.status); err != nil {
			m.next = 0
		}
	}
	if err != nil {
		shm.CloseFDs(list)
		return msg, fds, m.why(err)
	}
	for i, next := 0, 0; i < fdCount; i++ {
		if msg.fds>>i&1 != 0 {
			fds[i] = list[next]
			next++
		}
	}
	return msg, fds, nil
}

// why translates an error of the connection.
func (m *meeting) why(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded) && m.ctx.Err() != nil:
		return m.over()
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &Error{Pkg: kind.Pkg, Op: opMeet, Err: ErrPeerGone,
			Hint: "it died, or closed the connection"}
	}
	return err
}

// over returns why the context has ended.
func (m *meeting) over() error {
	switch cause := context.Cause(m.ctx); cause {
	case ErrClosed, errCrowded: // by Close, or by who has the place now; not by the caller
		return cause
	case errLate: // as of a context with that deadline
		return fmt.Errorf("cq: wait: %w", context.DeadlineExceeded)
	case errSilent:
		return &Error{Pkg: kind.Pkg, Op: opMeet, Err: ErrTimedOut,
			Hint: "the peer went silent in the middle: close the connection"}
	}
	return ended(m.ctx)
}

// passed are the descriptors of a message, -1 where there is none.
type passed [fdCount]int

var noFDs = passed{-1, -1, -1, -1}

func (p *passed) close() {
	shm.CloseFDs(p[:])
	*p = noFDs
}
