package fabric

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// mux is an endpoint with connections over it: a listener's with those that it took, or that of all
// dials of this process in a directory. It ends with the last of them. The lock of the endpoint's
// bell is that of all connections.
type mux struct {
	e         *Endpoint
	conns     map[uint64]*conn // by number
	numbers   uint64           // the last one that was given
	owing     int              // messages that wait for room
	pins      int              // dials that begin
	listener  *listener
	keeper    waiter
	spare     bytes.Buffer // empty, for the next connection that keeps much
	over      bool
	abandoned bool          // its peer is waited for no more
	done      chan struct{} // closed when its endpoint is
	used      chan struct{} // nil, or closed when the next dial begins
	patience  time.Duration // closePatience
}

// connOptions are those of a mux's endpoint. What a peer may have on its way is bounded for each
// connection, so this window is no limit.
var connOptions = Options{Slots: 16, Chunks: 16, Window: 16 << 20}

// openMux makes a mux of an endpoint, which open makes.
func openMux(open func(Options) (*Endpoint, error)) (m *mux, err error) {
	m = &mux{patience: closePatience, conns: map[uint64]*conn{}, done: make(chan struct{})}
	o := connOptions
	o.mux = m
	if m.e, err = open(o); err == nil {
		m.e.keeper, m.e.budget = &m.keeper, spin.Budget(lookFor)
	}
	return m, err
}

// lookFor is how long a reader looks before it sleeps: about as long as it takes its peer to be
// woken, and to answer. With less, one end that sleeps makes the other's looks fruitless, and both
// sleep on.
const lookFor = 100 * time.Microsecond

// newConn gives a connection with a peer a number.
func (m *mux) newConn(p *peer, is connState) *conn {
	m.numbers += connWhat + 1
	c := &conn{m: m, p: p, is: is, number: m.numbers}
	if p.conns == nil {
		p.conns = map[*conn]bool{}
	}
	m.conns[c.number], p.conns[c] = c, true
	return c
}

// free gives up the number of a connection that neither side says anything more about.
func (m *mux) free(c *conn) {
	if m.conns[c.number] == c {
		delete(m.conns, c.number)
		if delete(c.p.conns, c); len(c.p.conns) == 0 {
			m.e.later.Want() // the lane to the peer ends, if there is no other one by then
		}
		crash.At(crash.ConnFreed)
		m.settle()
	}
}

// keep is the keeper, and ends the mux when there is nothing to keep.
func (m *mux) keep() {
	m.e.bell.Lock()
	for !m.abandoned && !m.idle() {
		switch {
		case m.e.recent: // first: one that rests is woken by each leader that leaves
			m.e.recent = false
			m.e.bell.Unlock()
			time.Sleep(keepAfter)
			m.e.bell.Lock()
		case m.e.leader != nil:
			m.e.rest(&m.keeper)
		default:
			m.e.leader = &m.keeper
			if m.e.poll() == 0 {
				m.e.sleep(&m.keeper)
			}
			if m.e.leader == &m.keeper {
				m.e.leader = nil
				if m.e.poll(); len(m.e.followers) > 0 {
					m.e.handOver()
				}
			}
		}
	}
	m.over = true
	m.e.bell.Unlock()
	_ = m.e.Close()
	close(m.done)
}

// closePatience is how long Close waits for room in the lane, and again for the peer. Ten times as
// long that is kept which one that was met over a socket has not answered.
var closePatience = time.Second // a variable for tests only

// leave waits for the end of a mux that its program has left, so that a process which ends next
// leaves nothing behind. Who is stopped at the other end is not waited for long, and of one that
// was met over a socket, who may never answer, nothing is kept for long. A dial that begins
// meanwhile keeps the mux, and whoever leaves that waits.
func (m *mux) leave() {
	m.e.bell.Lock()
	left := m.listener == nil && m.pins == 0
	for _, c := range m.conns {
		if left = left && c.closed; !left {
			break // there may be thousands more
		}
	}
	if m.used == nil {
		m.used = make(chan struct{})
	}
	used := m.used
	m.e.bell.Unlock()
	if !left {
		return
	}
	late := time.NewTimer(m.patience)
	defer late.Stop()
	select {
	case <-m.done:
	case <-used:
	case <-late.C:
		if m.e.met() {
			time.AfterFunc(10*m.patience, m.abandon)
		}
	}
}

// abandon ends a mux whatever its peer has not answered.
func (m *mux) abandon() {
	m.e.bell.Lock()
	defer m.e.bell.Unlock()
	m.abandoned = true
	m.e.wake(&m.keeper)
}

// idle reports whether there is nothing to keep.
func (m *mux) idle() bool {
	return m.listener == nil && len(m.conns) == 0 && m.owing == 0 && m.pins == 0
}

// settle has the keeper look for that.
func (m *mux) settle() {
	if m.idle() {
		m.e.wake(&m.keeper)
	}
}

// pin keeps the mux for a dial.
func (m *mux) pin() {
	m.pins++
	if m.used != nil {
		close(m.used)
		m.used = nil
	}
}

// unpin ends that. A dial that has failed leaves its program nothing to close: if the mux has
// nothing else to keep, its end is waited for here.
func (m *mux) unpin() {
	m.e.bell.Lock()
	m.pins--
	m.settle()
	idle := m.idle()
	m.e.bell.Unlock()
	if idle {
		m.leave()
	}
}

// Addr is the name of an endpoint.
type connAddr string

func (connAddr) Network() string  { return network }
func (a connAddr) String() string { return string(a) }

const network = "shmring"

// listener implements net.Listener.
type listener struct {
	m         *mux
	accepting sync.Mutex
	waiter    waiter
	news      *news   // nil: for Accept
	waiting   []*conn // and some that do so no more: see waits
}

// Listen takes connections to a name in a directory, which [Dial] in processes of the same user
// asks for. What Accept returns is described there. They are accepted before Accept is called, 128
// of them; more are refused, or take the place of one that a process with several has not opened.
// Close ends those that nobody accepted, and leaves the others; the name can be used again at once.
// As the last Close of a connection it waits for the end of what is shared, up to a second while a
// peer is stopped.
//
// Errors are *[net.OpError], with EADDRINUSE if a living process has the name, and with the errors
// of [Open].
func Listen(d *shm.Dir, name string) (net.Listener, error) {
	l, err := listen(d, name, nil)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: connAddr(name), Err: err}
	}
	return l, nil
}

func listen(d *shm.Dir, name string, events cq.EventSink) (*listener, error) {
	m, err := openMux(func(o Options) (*Endpoint, error) { return Open(d, name, o) })
	if errors.Is(err, fs.ErrExist) {
		err = os.NewSyscallError("bind", syscall.EADDRINUSE)
	}
	if err != nil {
		return nil, err
	}
	var l listener
	if events != nil {
		l.news = &news{}
		if err := l.news.binds(events, cq.FIDPassiveEndpoint, m.e.addr); err != nil {
			return nil, errors.Join(err, m.e.Close())
		}
	}
	l.begin(m)
	return &l, nil
}

// begin takes connections over a mux, which stays until that ends.
func (l *listener) begin(m *mux) {
	l.m = m
	m.e.bell.Lock()
	m.listener = l
	m.e.page.Accepts.Store(1)
	m.e.bell.Unlock()
	go m.keep()
}

// Accept implements net.Listener. Clients that have gone are left out.
func (l *listener) Accept() (net.Conn, error) {
	l.accepting.Lock()
	defer l.accepting.Unlock()
	m := l.m
	m.e.bell.Lock()
	defer m.e.bell.Unlock()
	for {
		at := -1
		m.e.await(&l.waiter, func() bool {
			at = slices.IndexFunc(l.waiting, func(c *conn) bool { return c.is == connReady && !c.closed })
			return m.listener != l || at >= 0 || m.left()
		})
		if m.listener != l || at < 0 {
			return nil, l.fault("accept", net.ErrClosed)
		}
		c := l.waiting[at]
		l.waiting = slices.Delete(l.waiting, at, at+1)
		if c.err == nil || c.in.Len() > 0 || c.eof {
			c.is = connOpen
			return c, nil
		}
	}
}

// left reports that who was met over a socket has gone, and nobody else comes there.
func (m *mux) left() bool { return m.e.met() && m.e.byAddr[0].in == nil }

// Close implements net.Listener.
func (l *listener) Close() error {
	m := l.m
	defer m.leave()
	m.e.bell.Lock()
	defer m.e.bell.Unlock()
	if m.listener != l {
		return l.fault("close", net.ErrClosed)
	}
	m.listener = nil
	if l.news != nil {
		l.news.forget()
	}
	m.e.page.Accepts.Store(0)
	_ = m.e.obj.Unlink()
	crash.At(crash.ConnUnlisted)
	for _, c := range l.waits() {
		if c.is == connAsked {
			m.say(c.p, connReject|c.to, 0, nil)
			m.free(c)
		} else {
			c.close()
		}
	}
	m.e.wake(&l.waiter)
	m.settle()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return connAddr(l.m.e.name) }

func (l *listener) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: l.Addr(), Err: err}
}

// dialing are the muxes of this process for its dials, one for each directory.
var dialing struct {
	sync.Mutex
	all []*mux
}

// dialMux returns the mux for a directory, which stays until its pin is taken off.
func dialMux(d *shm.Dir) (*mux, error) {
	dialing.Lock()
	defer dialing.Unlock()
	kept := dialing.all[:0]
	var found *mux
	for _, m := range dialing.all {
		m.e.bell.Lock()
		if !m.over {
			kept = append(kept, m)
			if found == nil && m.e.dir.Is(d) {
				m.pin()
				found = m
			}
		}
		m.e.bell.Unlock()
	}
	clear(dialing.all[len(kept):])
	dialing.all = kept
	if found != nil {
		return found, nil
	}
	m, err := openMux(func(o Options) (*Endpoint, error) {
		return Open(d, "dial-"+shm.NewUUID().String(), o)
	})
	if err != nil {
		return nil, err
	}
	m.pin()
	go m.keep()
	dialing.all = append(dialing.all, m)
	return m, nil
}

// Dial connects to the listener that has a name in a directory: a stream of bytes in each
// direction, as with sockets of the kernel.
//
// A Write returns when all of it is on its way: it is read even if this process ends. It waits
// while 256 KiB have not been read. Close delivers what was written, and then the end, for which
// the peer reads [io.EOF]. It takes up to a second while the peer's process is stopped, and leaves
// what is to be said to a goroutine then. CloseWrite() error, as *[net.TCPConn] has it, ends one
// direction. Writes after the peer's Close fail with EPIPE; after the end of its process with
// ECONNRESET, as do reads when all that it had written was read. Errors are *[net.OpError]; blocked
// calls end at deadlines and by Close.
//
// The dial fails with ECONNREFUSED if nobody listens, the listener's process ends, or too many
// wait for it; as the context ends if its process is stopped; with [ErrPeers] if the listener, or
// this process, has connections with 64 others; and with [ErrCorrupt] or the errors of [Open], also
// if the memory with the answer cannot be mapped.
func Dial(ctx context.Context, d *shm.Dir, name string) (net.Conn, error) {
	m, err := dialMux(d)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: connAddr(name), Err: err}
	}
	m.e.bell.Lock()
	c, err := m.dial(ctx, name)
	m.e.bell.Unlock()
	m.unpin()
	if err != nil {
		// It has no Source: that is a name of this process which nobody knows.
		return nil, &net.OpError{Op: "dial", Net: network, Addr: connAddr(name), Err: err}
	}
	return c, nil
}

func (m *mux) dial(ctx context.Context, name string) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var c *conn
	var err error
	if m.e.untilRoom(ctx, func() (wait bool) {
		p, failed := m.reach(name)
		if err = failed; err == nil {
			c = m.ask(p) // at once: who has waited gets the lock back later, and p may have gone by then
		}
		return err == cq.ErrFull
	}) {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return c.answered(ctx)
}

// ask wants a connection with a peer who listens.
func (m *mux) ask(p *peer) *conn {
	c := m.newConn(p, connAsking)
	c.window = connWindow
	m.say(p, connAsk, c.number, windowBytes())
	crash.At(crash.ConnAsked)
	return c
}

// answered waits for the answer.
func (c *conn) answered(ctx context.Context) (*conn, error) {
	c.m.e.within(ctx, &c.reader, func() bool {
		return c.is != connAsking || c.err != nil || c.mute != nil
	})
	switch {
	case c.is == connOpen:
		return c, nil
	case c.err != nil:
		return nil, c.err
	}
	c.closed = true // its number stays until there is an answer
	return nil, cmp.Or(c.mute, ctx.Err())
}

// reach finds who listens by a name, and attaches to it.
func (m *mux) reach(name string) (*peer, error) {
	m.e.seekPlace() // it may forget peers that have gone
	p, err := m.e.resolve(name)
	if errors.Is(err, ErrNoPeer) {
		return nil, fmt.Errorf("%w; %s", os.NewSyscallError("connect", syscall.ECONNREFUSED), hintName)
	}
	if err == nil {
		err = p.open()
	}
	if err == nil && p.words.page.Accepts.Load() != 1 {
		err = ErrNoPeer
	}
	if err == nil && p.unanswered() >= mostBacklog {
		err = ErrNoPeer
	}
	if err == nil && p.out == nil {
		_, err = m.e.attach(p)
	}
	if err == nil {
		err = p.out.err
	}
	if err != nil && p != nil {
		p.forget()
	}
	if isAny(err, ErrNoPeer, ErrPeerDied, ErrPeerClosed) {
		return nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	}
	return p, err
}
