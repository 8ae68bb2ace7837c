package fabric

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/shm"
)

// A call is a request and its reply on a connection, which carries one at a time and is kept for
// the next. All numbers are u64, little-endian.
//
//	request   bytes, room for the reply, the bytes
//	reply     bytes, or noReply; the bytes, as far as there is room
//
// A connection whose call was given up is closed, so that a late reply is for nobody. One that ends
// before a reply, though its server lives, had no handler run: the server always replies after
// that.
const (
	requestHead = 16
	replyHead   = 8
	// noReply in place of a length: the handler ended, and returned nothing or what had no room.
	noReply = ^uint64(0)
)

// ErrNotRun says of a call that failed that its handler has not run, and will not: it is safe to
// repeat. Of any other failed call nobody knows: it may have run.
var ErrNotRun = errors.New("the call has not run, and is safe to repeat")

var (
	errMayHaveRun = errors.New("the call may have run")
	errNoReply    = errors.New("the handler ended without a reply")
)

// Caller makes calls to the process that serves a name. Any number of goroutines may use it at
// once.
type Caller struct {
	m       *mux
	name    string
	dialing chan struct{} // by one at a time, since the backlog of a server is bounded
	over    context.Context
	end     context.CancelFunc

	mu   sync.Mutex
	all  map[*callConn]bool // nil: closed
	idle []*callConn
}

// callConn is a connection of a caller.
type callConn struct {
	*conn
	r     *bufio.Reader
	head  [replyHead]byte
	buf   []byte
	whole bool // its last call has its reply, and nothing else is under way
}

// NewCaller returns a caller of whoever serves a name in a directory ([Serve]), now or later. Close
// ends it. Errors are those of [Open].
func NewCaller(d *shm.Dir, name string) (*Caller, error) {
	m, err := dialMux(d)
	if err != nil {
		return nil, fault("call", name, err)
	}
	a := &Caller{m: m, name: name, dialing: make(chan struct{}, 1), all: map[*callConn]bool{}}
	a.over, a.end = context.WithCancel(context.Background())
	return a, nil
}

// Call has the server's handler answer a request, of up to MaxMessage bytes, and returns how many
// bytes the reply has. They are in reply; neither slice is used after the return. Calls at once run
// at once, up to 4096 from a process.
//
// Errors match [ErrNotRun] if the handler has not run: there is no server (ECONNREFUSED), the
// context ended before all of the request was sent, or the server ended before it examined that.
// What was sent on a connection of an earlier call, and has not run, is tried again first. Others
// say that it may have run: [ErrPeerDied], [ErrPeerClosed], those of the context, os.ErrClosed.
// [ErrTooLong]: the reply has more bytes than there is room for; n fit.
func (a *Caller) Call(ctx context.Context, request, reply []byte) (n int, err error) {
	for {
		x, kept, err := a.take(ctx)
		if err == nil {
			n, err = x.call(ctx, request, reply)
			a.give(x)
		}
		switch {
		case err == nil:
			return n, nil
		case !kept || !errors.Is(err, ErrNotRun) || ctx.Err() != nil:
			return n, fault("call", a.name, err)
		}
	}
}

// take returns a connection that nobody uses. kept says that it was used before.
func (a *Caller) take(ctx context.Context) (x *callConn, kept bool, err error) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		x = a.idle[n-1]
		a.idle = a.idle[:n-1]
	}
	a.mu.Unlock()
	if x != nil {
		return x, true, nil
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.over, cancel)()
	select {
	case a.dialing <- struct{}{}:
		defer func() { <-a.dialing }()
	case <-within.Done():
		return nil, false, notRun(a.why(ctx, within.Err()))
	}
	var c *conn
	a.m.e.bell.Lock()
	if err = a.over.Err(); err == nil { // else the endpoint may be closed
		c, err = a.m.dial(within, a.name)
	}
	a.m.e.bell.Unlock()
	if err != nil {
		return nil, false, notRun(a.why(ctx, err))
	}
	x = &callConn{conn: c, r: bufio.NewReaderSize(c, mostKept)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all == nil {
		x.abandon()
		return nil, false, notRun(errClosed)
	}
	a.all[x] = true
	return x, false, nil
}

// give keeps a connection for the next call, or closes it.
func (a *Caller) give(x *callConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x.whole && a.all != nil {
		a.idle = append(a.idle, x)
		return
	}
	delete(a.all, x)
	x.abandon()
}

// Close ends calls that are under way, as if their contexts had ended, with os.ErrClosed. Closing
// twice is harmless.
func (a *Caller) Close() error {
	a.mu.Lock()
	all := a.all
	a.all, a.idle = nil, nil
	a.mu.Unlock()
	if all == nil {
		return nil
	}
	a.end()
	for x := range all {
		x.abandon()
	}
	a.m.unpin()
	a.m.leave()
	return nil
}

// call is one call. A context that ends wakes it by a deadline, after which nobody uses the
// connection.
func (x *callConn) call(ctx context.Context, request, reply []byte) (n int, err error) {
	x.whole = false
	switch {
	case len(request) > MaxMessage:
		return 0, notRun(ErrTooLong)
	case ctx.Err() != nil:
		return 0, notRun(why(ctx, nil))
	}
	stop := context.AfterFunc(ctx, func() { _ = x.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			x.whole = false
		}
	}()
	if err = x.ask(request, len(reply)); err != nil {
		return 0, notRun(why(ctx, err))
	}
	if n, err = io.ReadFull(x.r, x.head[:]); err != nil {
		if err == io.EOF || n == 0 && x.unexamined() {
			return 0, notRun(why(ctx, err))
		}
		return 0, mayHaveRun(why(ctx, err))
	}
	size := binary.LittleEndian.Uint64(x.head[:])
	switch {
	case size == noReply:
		return 0, mayHaveRun(errNoReply)
	case size > MaxMessage:
		return 0, mayHaveRun(ErrCorrupt)
	}
	n = min(int(size), len(reply))
	if n, err = io.ReadFull(x.r, reply[:n]); err != nil {
		return n, mayHaveRun(why(ctx, err))
	}
	x.whole = true
	if n < int(size) {
		err = fmt.Errorf("a reply of %d bytes, room for %d: %w", size, n, ErrTooLong)
	}
	return n, err
}

// ask sends a request. An error says that the server will never have all of it.
func (x *callConn) ask(request []byte, room int) error {
	x.buf = binary.LittleEndian.AppendUint64(x.buf[:0], uint64(len(request)))
	x.buf = binary.LittleEndian.AppendUint64(x.buf, uint64(room))
	_, err := x.writeBoth(&x.buf, request)
	return err
}

// writeBoth writes a head and what follows it, together as far as the head's buffer is kept. n is
// what of that was written, or the first part of it.
func (c *conn) writeBoth(head *[]byte, b []byte) (n int, err error) {
	first := min(len(b), mostKept-len(*head))
	*head = append(*head, b[:first]...)
	n, err = c.Write(*head)
	if err == nil && first < len(b) {
		_, err = c.Write(b[first:])
	}
	return n, err
}

// sayNoReply says in place of a reply that there is none. It waits for no room: without that word
// the end of the connection would say that no handler has run.
func (c *conn) sayNoReply() {
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if c.err == nil && !c.said && c.allowed-c.wrote >= replyHead {
		c.wrote += replyHead
		c.m.say(c.p, connData|c.to, 0, binary.LittleEndian.AppendUint64(nil, noReply))
	}
}

// unexamined reports that the peer has gone, and had not examined the last that was written. A dead
// one's lane may fail before its row is looked at.
func (c *conn) unexamined() bool {
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	l := c.lane
	if l.err == nil {
		l.look()
	}
	return (l.err == ErrPeerDied || l.err == ErrPeerClosed) && l.seen < c.behind
}

// abandon is Close that waits for nothing.
func (c *conn) abandon() {
	c.m.e.bell.Lock()
	defer c.m.e.bell.Unlock()
	if !c.closed {
		c.close()
	}
}

func notRun(err error) error     { return fmt.Errorf("%w: %w", ErrNotRun, err) }
func mayHaveRun(err error) error { return fmt.Errorf("%w: %w", errMayHaveRun, err) }

// why is an error of a connection as one of a call.
func why(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && context.Cause(ctx) != ctx.Err():
		return fmt.Errorf("%w: %w", ctx.Err(), context.Cause(ctx))
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, net.ErrClosed):
		return errClosed
	case errors.Is(err, syscall.ECONNRESET):
		return ErrPeerDied
	case errors.Is(err, syscall.EPIPE), err == io.EOF:
		return ErrPeerClosed
	}
	return err
}

// why is why of a dial, which ends with the caller.
func (a *Caller) why(ctx context.Context, err error) error {
	if a.over.Err() != nil && ctx.Err() == nil {
		return errClosed
	}
	return why(ctx, err)
}

// Serve takes calls to a name in a directory, which [Caller] in processes of the same user makes,
// until the context ends: then it waits for handlers that run, whose replies still go to callers
// that take them within ten seconds, and returns nil. The handler runs in a goroutine for each call
// that is under way. It may return a part of the request, which is used again after its reply, and
// is not told of a caller that gives up. If it ends its goroutine, or its reply is longer than
// MaxMessage, the caller learns that it may have run. Errors are those of [Listen].
func Serve(ctx context.Context, d *shm.Dir, name string,
	handler func(ctx context.Context, request []byte) (reply []byte)) error {
	l, err := listen(d, name, nil)
	if err != nil {
		return fault("serve", name, err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var calls sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		calls.Go(func() { serve(ctx, c.(*conn), handler) })
	}
	calls.Wait()
	l.m.leave()
	return nil
}

// serve answers the calls of a connection.
func serve(ctx context.Context, c *conn, handler func(context.Context, []byte) []byte) {
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	var request bytes.Buffer
	var head [requestHead]byte
	var reply []byte
	r, runs := bufio.NewReaderSize(c, mostKept), false
	defer func() {
		if runs { // it panics, has ended its goroutine, or its reply found no room
			c.sayNoReply()
		}
		c.abandon()
	}()
	for {
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return
		}
		n := binary.LittleEndian.Uint64(head[:])
		room := binary.LittleEndian.Uint64(head[8:])
		if request.Reset(); request.Cap() > connWindow {
			request = bytes.Buffer{}
		}
		if n > MaxMessage {
			return
		}
		if _, err := io.CopyN(&request, r, int64(n)); err != nil {
			return
		}
		runs = true
		answer := handler(ctx, request.Bytes())
		if len(answer) > MaxMessage {
			return
		}
		reply = binary.LittleEndian.AppendUint64(reply[:0], uint64(len(answer)))
		late := context.AfterFunc(ctx, func() {
			_ = c.SetWriteDeadline(time.Now().Add(10 * c.m.patience))
		})
		sent, err := c.writeBoth(&reply, answer[:min(uint64(len(answer)), room)])
		late()
		if runs = sent == 0; err != nil {
			return
		}
	}
}
