// Package place has the ways to where an object lives. To a queue: its lanes, as its reader has
// them ([Lanes]), and a writer's way to one, by a claim in a directory ([Named], [Claim]) or over
// a socket ([Joining]); and the bell of a process beside its queues ([ProcessBell], [BellHold]).
// Whose it is, and who of its owners died ([OwnerWatch]). Over a unix socket, whatever is handed
// out there: who is at the other end and whether that process has died ([MeetPeer], [CheckPeer]),
// an accept that a context ends ([Accept]), who of many is served ([Places], [Turns]), and what is
// said there ([Protocol], [Conversation]; [Meeting] for a lane): whatever a peer does is a message
// or an error, in the time that it is given, and leaves no descriptor behind.
package place

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/shm"
)

// Protocol is what the messages of one kind have in common, which two processes say to each other
// over a connected unix socket, with descriptors. All have one size, and begin with a header,
// little-endian:
//
//	0   magic, 8 bytes
//	8   version u16, step u16, status u32: 0, or the reason of a no
//	16  body
type Protocol struct {
	Pkg, Op string // what errors are said to be of
	Magic   string
	Version uint16
	Bytes   int      // of a message
	Steps   []string // names of the steps. These are numbered from 1
	MostFDs int      // that come with any message
	// Count returns how many descriptors come with a message, and whether its step may have these.
	Count func(step uint16, message []byte) (n int, ok bool)
	// No returns what the no of a peer means here.
	No func(status uint32, message []byte) error
	// Wrong is the sentinel of what a peer must not say.
	Wrong error
}

// HeaderBytes is where the body begins.
const HeaderBytes = 16

// Message returns a message without a body.
func (p *Protocol) Message(step uint16, status uint32) []byte {
	b := make([]byte, 0, p.Bytes)
	b = append(b, p.Magic...)
	b = binary.LittleEndian.AppendUint16(b, p.Version)
	b = binary.LittleEndian.AppendUint16(b, step)
	b = binary.LittleEndian.AppendUint32(b, status)
	return b[:p.Bytes]
}

// Header reads the header of a message. The step is one of the protocol, and nothing else of the
// message is believed.
func (p *Protocol) Header(b []byte) (step uint16, status uint32, err error) {
	if len(b) != p.Bytes || string(b[:8]) != p.Magic {
		return 0, 0, p.Refuse("message", fmt.Sprintf("%d bytes, %.8q", len(b), b),
			fmt.Sprintf("%d bytes, %q", p.Bytes, p.Magic))
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != p.Version {
		return 0, 0, &shm.Error{Pkg: p.Pkg, Op: p.Op, Field: "version", Got: v, Want: p.Version,
			Err: shm.ErrVersion, Hint: "both processes are to be of one version"}
	}
	step = binary.LittleEndian.Uint16(b[10:])
	if step == 0 || int(step) >= len(p.Steps) {
		return 0, 0, p.Refuse("step", step, fmt.Sprintf("1 to %d", len(p.Steps)-1))
	}
	return step, binary.LittleEndian.Uint32(b[12:]), nil
}

// Expect refuses a message, whose header is right, that says no, or is of another step.
func (p *Protocol) Expect(b []byte, want uint16) error {
	step, status, err := p.Header(b)
	switch {
	case err != nil:
		return err
	case status != 0:
		return p.No(status, b)
	case step != want:
		return p.Refuse("step", p.Steps[step], p.Steps[want])
	}
	return nil
}

// Refuse returns an error that says what of a message was wrong.
func (p *Protocol) Refuse(field string, got, want any) error {
	return &shm.Error{Pkg: p.Pkg, Op: p.Op, Field: field, Got: got, Want: want, Err: p.Wrong}
}

// Conversation is one side of what is said over a connection for a while, during which the deadline
// of the connection is its own. One goroutine may send and another one receive; the other methods
// are for the one that began it, but for Cancel and Limited.
type Conversation struct {
	Conn   *net.UnixConn
	p      *Protocol
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   func() bool   // of the function that ends a blocked call when the context does
	fired  chan struct{} // closed when that function has run
	// It ends the conversation if the peer says no more; nil while the peer may take its time.
	silent atomic.Pointer[time.Timer]
}

// Begin begins a conversation, which ends when the context does; End must follow if that can end.
func (p *Protocol) Begin(ctx context.Context, conn *net.UnixConn) *Conversation {
	c := &Conversation{Conn: conn, p: p, fired: make(chan struct{})}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	_ = conn.SetDeadline(time.Time{})
	c.stop = context.AfterFunc(c.ctx, func() {
		defer close(c.fired)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return c
}

// End leaves the connection without a deadline.
func (c *Conversation) End() {
	c.Pause()
	if !c.stop() {
		<-c.fired
	}
	_ = c.Conn.SetDeadline(time.Time{})
	c.cancel(nil)
}

// Limit bounds how long the rest may take, whatever the context says, and why is the error if it
// takes longer.
func (c *Conversation) Limit(d time.Duration, why error) {
	c.Pause()
	c.silent.Store(time.AfterFunc(d, func() { c.cancel(why) }))
}

// Pause lets the peer wait for us: how long that takes is not held against it.
func (c *Conversation) Pause() {
	if t := c.silent.Swap(nil); t != nil {
		t.Stop()
	}
}

// Limited reports that Limit bounds the rest. It may be called from anywhere.
func (c *Conversation) Limited() bool { return c.silent.Load() != nil }

// Cancel ends the conversation. It may be called from anywhere.
func (c *Conversation) Cancel(why error) { c.cancel(why) }

// Context is done when the conversation is over.
func (c *Conversation) Context() context.Context { return c.ctx }

// Send sends a message and descriptors, which stay the caller's.
func (c *Conversation) Send(message []byte, fds ...int) error {
	return c.over(shm.SendFDs(c.Conn, message, fds...))
}

// SendNow sends a message if there is room for it, and is EAGAIN else. It looks at no deadline,
// which a process that was stopped would find to be past before the first try.
func (c *Conversation) SendNow(message []byte) error {
	raw, err := c.Conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { // sockets of package net never block
		_, sent = syscall.SendmsgN(int(fd), message, nil, nil, 0)
	})
	if err != nil {
		return err
	}
	return sent
}

// Receive returns the peer's next message, which is of this step and no no, and its descriptors,
// which the caller closes.
func (c *Conversation) Receive(want uint16) (message []byte, fds []int, err error) {
	message, fds, err = c.Next()
	if err == nil {
		err = c.p.Expect(message, want)
	}
	if err != nil {
		shm.CloseFDs(fds)
		return nil, nil, err
	}
	return message, fds, nil
}

// Next returns the peer's next message of whatever step, with the descriptors that are its own: a
// no has none. The caller closes them.
func (c *Conversation) Next() (message []byte, fds []int, err error) {
	message, fds, err = c.read()
	if err == nil {
		err = c.p.Check(message, len(fds))
	}
	if err != nil {
		shm.CloseFDs(fds)
		return nil, nil, c.over(err)
	}
	return message, fds, nil
}

// Check refuses a message whose header is wrong, or that came with other descriptors than it says.
func (p *Protocol) Check(message []byte, fds int) error {
	step, status, err := p.Header(message)
	if err != nil {
		return err
	}
	want, ok := 0, true
	if status == 0 {
		want, ok = p.Count(step, message)
	}
	if !ok {
		return p.Refuse("descriptors", "others", "those of "+p.Steps[step])
	}
	if fds != want {
		return p.Refuse("number of descriptors", fds, want)
	}
	return nil
}

// read returns one message. A stream may cut it in pieces, and every other socket keeps it whole.
func (c *Conversation) read() (b []byte, fds []int, err error) {
	stream := c.Conn.LocalAddr().Network() == "unix"
	b = make([]byte, c.p.Bytes)
	got := 0
	for reset := false; got < len(b) && err == nil; {
		n, more, e := shm.RecvFDs(c.Conn, b[got:], c.p.MostFDs-len(fds))
		if errors.Is(e, syscall.ECONNRESET) && !reset {
			// The other end hung up before it read what we sent. What it had said before, a no
			// probably, comes after that news.
			reset = true
			continue
		}
		fds = append(fds, more...)
		if got += n; e == nil && n == 0 {
			e = io.EOF
		}
		if err = e; !stream {
			break
		}
	}
	return b[:got], fds, err
}

// Peek waits until the peer says something, which stays unread, and reports whether that is of this
// protocol.
func (c *Conversation) Peek() (ours bool, err error) {
	raw, err := c.Conn.SyscallConn()
	if err != nil {
		return false, err
	}
	b := make([]byte, len(c.p.Magic))
	var n int
	for range 2 { // see read about a reset
		var got error
		err = raw.Read(func(fd uintptr) bool {
			for got = syscall.EINTR; got == syscall.EINTR; {
				n, _, got = syscall.Recvfrom(int(fd), b, syscall.MSG_PEEK)
			}
			return got != syscall.EAGAIN
		})
		if err = errors.Join(err, got); !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	if err != nil {
		return false, c.over(err)
	}
	return n == len(b) && string(b) == c.p.Magic, nil
}

// LastWord returns what the no means that the peer said before it hung up, or nil. It takes at most
// so many messages, also of other protocols, each with at most so many descriptors. A stream has no
// messages of its own, and so no last one.
func (c *Conversation) LastWord(messages, fds int) error {
	b := make([]byte, c.p.Bytes+1)
	for range messages {
		n, more, err := shm.RecvFDs(c.Conn, b, fds)
		shm.CloseFDs(more)
		switch {
		case errors.Is(err, syscall.ECONNRESET), // see read
			errors.Is(err, shm.ErrTruncated): // of another protocol
			continue
		case err != nil || n == 0:
			return nil
		}
		if _, status, err := c.p.Header(b[:n]); err == nil && status != 0 {
			return c.p.No(status, b[:n])
		}
	}
	return nil
}

// over returns why the conversation has ended, in place of the deadline that ended it.
func (c *Conversation) over(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) && c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// HungUp tells errors of a conversation that say that the other end is gone.
func HungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// accepting is what those share who wait at one listener. It has one deadline for them all, so a
// call that ends disturbs the others, and must not take the deadline back before each one that ends
// has met it.
type accepting struct {
	calls  int           // of Accept
	ending int           // those whose context has ended; the deadline is past while there are any
	times  uint64        // that the deadline was set
	calm   chan struct{} // closed when the deadline was taken back; nil while there is none
}

var (
	acceptsMu sync.Mutex
	accepts   = map[*net.UnixListener]*accepting{}
)

// Accept accepts a connection unless the context ends before, whose cause is the error then. Any
// number of calls may wait at one listener, each with a context of its own, and end as theirs does.
// The listener stays open, and its deadline is ours meanwhile. Others may have what it takes, and
// that does not end a server: wants is told of each try that failed for it, and the next one comes
// after a pause. Other errors are those of [net.UnixListener.AcceptUnix].
func Accept(ctx context.Context, l *net.UnixListener, wants func(error)) (*net.UnixConn, error) {
	a := enterAccept(l)
	defer a.leave(l)
	pause := retry.First
	for ctx.Err() == nil {
		times, calm := a.look()
		if calm != nil {
			select {
			case <-calm:
			case <-ctx.Done():
			}
			continue
		}
		conn, err := a.once(ctx, l)
		if kind.Starved(err) {
			wants(err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, retry.Most)
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if now, _ := a.look(); ctx.Err() == nil && now == times {
			return nil, err // a deadline that the caller has set
		}
	}
	return nil, context.Cause(ctx)
}

func enterAccept(l *net.UnixListener) *accepting {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	a := accepts[l]
	if a == nil {
		a = &accepting{}
		accepts[l] = a
	}
	a.calls++
	return a
}

func (a *accepting) leave(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	if a.calls--; a.calls == 0 {
		delete(accepts, l)
	}
}

// look returns how often the deadline was set, and if that is past, what ends with it.
func (a *accepting) look() (times uint64, calm <-chan struct{}) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	return a.times, a.calm
}

// once accepts until the deadline, which is past from the end of the context to the end of the
// call.
func (a *accepting) once(ctx context.Context, l *net.UnixListener) (*net.UnixConn, error) {
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		a.interrupt(l)
	})
	conn, err := l.AcceptUnix()
	if !stop() {
		<-fired
		a.resume(l)
	}
	return conn, err
}

func (a *accepting) interrupt(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	a.times++
	if a.ending++; a.ending == 1 {
		a.calm = make(chan struct{})
		_ = l.SetDeadline(time.Unix(1, 0)) // fails if it is closed, and so does the call
	}
}

func (a *accepting) resume(l *net.UnixListener) {
	acceptsMu.Lock()
	defer acceptsMu.Unlock()
	if a.ending--; a.ending == 0 {
		_ = l.SetDeadline(time.Time{})
		close(a.calm)
		a.calm = nil
	}
}
