package fabric

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// connState says how far a connection has come.
type connState uint8

const (
	connAsking  connState = iota // for the listener's answer
	connAsked                    // for the program's answer
	connOffered                  // accepted, and not opened by who asked
	connReady                    // for Accept
	connOpen
)

// conn implements net.Conn. Its fields are under the bell's lock of its mux.
type conn struct {
	m          *mux
	p          *peer
	number, to uint64 // by which the peer names it, and we
	is         connState
	err        error // it is broken
	mute       error // why the answer to its dial cannot be heard now
	link       *link // it is an endpoint's

	reading, writing sync.Mutex // one call at a time
	reader, writer   waiter
	readBy, writeBy  deadline

	wrote   uint64
	lane    *outLane // that they went by
	behind  uint64   // the last message of them there: its index + 1
	allowed uint64   // bytes in all
	window  uint64   // the peer's
	ended   bool     // no more of us

	in         bytes.Buffer // what came before its Read
	into       []byte       // a Read's that waits, as far as it is not filled
	filled     int
	read, told uint64
	eof        bool // no more of the peer

	closed bool // by Close
	said   bool // our last message: after Close, or the peer's last
}

// deadline is a moment for calls, and stays over until it is moved.
type deadline struct {
	timer *time.Timer
	over  bool
}

// accepted opens a connection that was asked for, or closes it if nobody waits for it any more.
func (c *conn) accepted(number uint64, here []byte) (ok bool) {
	if c.is != connAsking || number&connWhat != 0 {
		return false
	}
	var window uint64
	if c.link == nil {
		window, ok = windowOf(here)
	} else {
		ok = c.link.accepted(here)
	}
	if !ok {
		return false
	}
	c.to, c.window, c.allowed = number, window, window
	if c.is = connOpen; c.closed {
		return c.last()
	}
	c.m.e.wake(&c.reader)
	crash.At(crash.ConnAccepted)
	ok = c.m.say(c.p, connOpened|c.to, 0, nil)
	if c.link != nil {
		c.link.connected()
	}
	return ok
}

// opened has Accept return a connection.
func (c *conn) opened() (ok bool) {
	if c.is != connOffered {
		return false
	}
	if c.link != nil {
		if c.is = connOpen; !c.closed {
			c.link.connected()
		}
		return true
	}
	l := c.m.listener
	c.is = connReady
	if l == nil || c.closed { // it was closed meanwhile, and said so
		return true
	}
	crash.At(crash.ConnReady)
	c.m.e.wake(&l.waiter)
	return true
}

// arrived gives bytes to the Read that waits, or keeps them.
func (c *conn) arrived(b []byte) (ok bool) {
	held := uint64(c.filled + c.in.Len())
	if c.is < connReady || c.eof || !c.closed && held+uint64(len(b)) > connWindow {
		return false
	}
	if c.closed {
		return true // who sent it did not know
	}
	if c.in.Len() == 0 {
		n := copy(c.into[c.filled:], b)
		c.filled += n
		b = b[n:]
	}
	if len(b) > mostKept && c.in.Len() == 0 {
		c.in, c.m.spare = c.m.spare, bytes.Buffer{}
	}
	c.in.Write(b)
	crash.At(crash.ConnArrived)
	c.m.e.wake(&c.reader)
	return true
}

// hung takes the peer's last message, and answers with ours.
func (c *conn) hung() (ok bool) {
	if c.is <= connAsked {
		return false
	}
	c.eof = true
	c.m.e.wake(&c.reader)
	c.m.e.wake(&c.writer)
	ok = true
	crash.At(crash.ConnHeard)
	if !c.said {
		ok = c.last()
	}
	c.m.free(c)
	if c.link != nil {
		c.link.ended(c)
	}
	return ok
}

// last says the last message.
func (c *conn) last() (ok bool) {
	c.said, c.ended = true, true
	return c.m.say(c.p, connClose|c.to, 0, nil)
}

// fail breaks a connection of which nothing more comes.
func (c *conn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.m.e.wake(&c.reader)
	c.m.e.wake(&c.writer)
	if c.is == connAsked {
		return // its number stays until the program has answered
	}
	c.m.free(c)
	if c.link != nil {
		c.link.ended(c)
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if err = c.stopped(&c.readBy); err != nil || len(b) == 0 {
		return 0, c.fault("read", err)
	}
	if c.in.Len() == 0 && !c.drained() {
		c.into = b
		c.m.e.await(&c.reader, func() bool {
			return c.filled > 0 || c.drained() || c.stopped(&c.readBy) != nil
		})
		n, c.into, c.filled = c.filled, nil, 0
	}
	if c.in.Len() > 0 {
		kept, _ := c.in.Read(b[n:])
		n += kept
	}
	if c.in.Len() == 0 && c.in.Cap() > mostKept {
		c.in.Reset()
		c.m.spare, c.in = c.in, bytes.Buffer{}
	}
	if n > 0 {
		c.tell(n)
		return n, nil
	}
	switch err = c.stopped(&c.readBy); {
	case err != nil:
	case c.eof:
		return 0, io.EOF
	default:
		err = c.err
	}
	return 0, c.fault("read", err)
}

// mostKept is how large a buffer may be that is kept while it is empty.
const mostKept = 4 << 10

// drained reports that nothing more comes.
func (c *conn) drained() bool { return c.eof || c.err != nil }

// stopped says why a call ends at once.
func (c *conn) stopped(d *deadline) error {
	switch {
	case c.closed:
		return net.ErrClosed
	case d.over:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// tell allows the peer to send what was read, half a window at a time.
func (c *conn) tell(n int) {
	c.read += uint64(n)
	if c.read-c.told >= connWindow/2 && !c.said && !c.drained() {
		c.told = c.read
		crash.At(crash.ConnRead)
		c.m.grant(c, c.read+connWindow)
	}
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	ready := func() bool {
		for err = c.unwritable(); n < len(b) && err == nil; err = c.unwritable() {
			sent, ok := c.put(b[n:])
			if !ok {
				return false
			}
			n += sent
			crash.At(crash.ConnSent)
		}
		return true
	}
	if !ready() {
		c.writer.room = true
		c.m.e.await(&c.writer, ready)
		c.writer.room = false
	}
	if n == len(b) && n > 0 {
		err = nil // what came after it is the next one's
	}
	return n, c.fault("write", err)
}

func (c *conn) unwritable() error {
	err := c.stopped(&c.writeBy)
	switch {
	case err != nil:
		return err
	case c.ended:
		return syscall.EPIPE
	case c.err != nil:
		return c.err
	case c.p.outEnded():
		return syscall.ECONNRESET
	}
	return nil
}

// put sends as much as may be sent now. It is false if that is nothing.
func (c *conn) put(b []byte) (n int, ok bool) {
	b = b[:min(uint64(len(b)), c.allowed-c.wrote)]
	if len(b) == 0 || len(c.p.owed) > 0 {
		return 0, false
	}
	n, ok = c.p.out.stream(connData|c.to, 0, b)
	c.wrote += uint64(n)
	c.lane, c.behind = c.p.out, c.p.out.sent
	c.writer.moved = c.wrote
	return n, ok
}

// CloseWrite ends this direction: the peer reads what was written, and then io.EOF.
func (c *conn) CloseWrite() error {
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	switch {
	case c.closed:
		return c.fault("close", net.ErrClosed)
	case c.err != nil || c.said || c.p.outEnded():
		return c.fault("close", syscall.ENOTCONN)
	case !c.ended:
		c.ended = true
		crash.At(crash.ConnShut)
		c.m.say(c.p, connEnd|c.to, 0, nil)
		c.m.e.wake(&c.writer)
	}
	return nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.m.leave()
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if c.closed {
		return c.fault("close", net.ErrClosed)
	}
	c.close()
	if len(c.p.owed) == 0 {
		return nil
	}
	late, cancel := context.WithTimeout(context.Background(), c.m.patience)
	defer cancel()
	c.m.e.untilRoom(late, func() bool { return len(c.p.owed) > 0 })
	return nil
}

// close ends both directions.
func (c *conn) close() {
	c.closed = true
	c.in = bytes.Buffer{}
	c.readBy.stop()
	c.writeBy.stop()
	c.m.e.wake(&c.reader)
	c.m.e.wake(&c.writer)
	crash.At(crash.ConnClosing)
	switch {
	case c.err != nil || c.said:
	case c.is == connAsking:
		c.m.say(c.p, connLeave, c.number, nil)
	default:
		c.last()
	}
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return connAddr(c.m.e.name) }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return connAddr(c.p.name) }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error { return c.setDeadline(t, true, true) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.setDeadline(t, true, false) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, false, true) }

func (c *conn) setDeadline(t time.Time, read, write bool) error {
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if c.closed {
		return c.fault("set", net.ErrClosed)
	}
	if read {
		c.readBy.set(c.m, t, &c.reader)
	}
	if write {
		c.writeBy.set(c.m, t, &c.writer)
	}
	return nil
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}

func (d *deadline) set(m *mux, t time.Time, w *waiter) {
	d.stop()
	left := time.Until(t)
	if d.over = !t.IsZero() && left <= 0; d.over {
		m.e.wake(w)
	}
	if t.IsZero() || d.over {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(left, func() { // it comes to the lock after timer is set
		m.e.bell.Lock()
		defer m.e.bell.Unlock()
		if d.timer == timer {
			d.over = true
			m.e.wake(w)
		}
	})
	d.timer = timer
}

// fault is an error of a call, as package net has them.
func (c *conn) fault(op string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
