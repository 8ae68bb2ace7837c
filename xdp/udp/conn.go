package udp

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// Conn is a UDP socket beside the kernel's stack. It implements [net.PacketConn] and [net.Conn],
// and has the methods of *[net.UDPConn] that do not need a descriptor. Any number of goroutines may
// use it at once.
type Conn struct {
	stack     *Stack
	local     netip.AddrPort // as bound, without a zone; the address may be unspecified
	remote    netip.AddrPort // of a connected one, without a zone
	laddr     *net.UDPAddr
	raddr     *net.UDPAddr
	ownsStack atomic.Bool

	readBy, writeBy deadline
	readable        chan struct{} // has a token when a waiting reader should look
	done            chan struct{} // closed by Close
	ended           chan struct{} // closed when Close has ended
	failed          chan struct{} // closed when the device is gone

	mu       sync.Mutex // after a shard's
	inbox    inbox
	limit    int // of the inbox, datagrams
	waiting  int // readers
	patience spin.Patience
	closed   bool
	err      error // why failed is closed

	received, dropped, truncated atomic.Uint64
	sent, refused                atomic.Uint64
}

var (
	_ net.PacketConn = (*Conn)(nil)
	_ net.Conn       = (*Conn)(nil)
)

// ConnStats counts what passed a Conn.
type ConnStats struct {
	Received  uint64 // datagrams that were read
	Truncated uint64 // of these, those that did not fit the buffer
	Dropped   uint64 // datagrams for which the receive buffer had no room
	Sent      uint64 // datagrams accepted, those that wait for a next hop included
	Refused   uint64 // datagrams that a write returned an error for
}

// Stats returns the counts.
func (c *Conn) Stats() ConnStats {
	return ConnStats{Received: c.received.Load(), Truncated: c.truncated.Load(),
		Dropped: c.dropped.Load(), Sent: c.sent.Load(), Refused: c.refused.Load()}
}

func newConn(s *Stack, local, remote netip.AddrPort) *Conn {
	c := &Conn{stack: s, local: bare(local), remote: bare(remote), limit: s.o.Backlog,
		laddr: net.UDPAddrFromAddrPort(local), readable: make(chan struct{}, 1),
		done: make(chan struct{}), ended: make(chan struct{}), failed: make(chan struct{})}
	if remote.IsValid() {
		c.raddr = net.UDPAddrFromAddrPort(remote)
	}
	return c
}

// LocalAddr returns the *[net.UDPAddr] that the connection is bound to.
func (c *Conn) LocalAddr() net.Addr { return c.laddr }

// RemoteAddr returns the *[net.UDPAddr] that the connection is connected to, or nil.
func (c *Conn) RemoteAddr() net.Addr {
	if c.raddr == nil {
		return nil
	}
	return c.raddr
}

// deliver hands a datagram to the connection. It reports false if its frame is to be released.
// While frames are scarce those who have some waiting get no more, and others get copies: so
// connections that nobody reads, however many, leave frames to the others. The lock of the shard is
// held.
func (c *Conn) deliver(d *datagram, s *shard, scarce bool) bool {
	if c.remote.IsValid() && d.From != c.remote {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	if c.inbox.n >= c.limit || scarce && c.inbox.n >= minBacklog {
		c.dropped.Add(1)
		return false
	}
	if scarce {
		c.inbox.push(&datagram{Payload: slices.Clone(d.Payload), From: d.From, To: d.To}, nil)
	} else {
		c.inbox.push(d, s)
	}
	c.pass()
	return !scarce
}

// pass wakes a reader if there is something for it. The lock is held.
func (c *Conn) pass() {
	if c.waiting > 0 && c.inbox.n > 0 {
		select {
		case c.readable <- struct{}{}:
		default: // one is on its way, and passes on what it leaves
		}
	}
}

// take copies the oldest datagram out. It reports false if there is none.
func (c *Conn) take(b []byte, r *result) bool {
	c.mu.Lock()
	if c.inbox.n == 0 {
		c.mu.Unlock()
		return false
	}
	it := c.inbox.first()
	r.n = copy(b, it.d.Payload)
	r.truncated = r.n < len(it.d.Payload)
	r.from = c.stack.zoned(it.d.From)
	loan := *it
	it.d.Payload = nil
	c.inbox.pop()
	c.pass()
	c.mu.Unlock()
	loan.release()
	c.received.Add(1)
	if r.truncated {
		c.truncated.Add(1)
	}
	return true
}

// result is what a read found.
type result struct {
	n         int
	from      netip.AddrPort
	truncated bool
}

// receive waits for a datagram and copies what fits of it to b.
func (c *Conn) receive(b []byte) (r result, err error) {
	for {
		over := c.readBy.wait()
		switch {
		case isClosed(c.done):
			return r, net.ErrClosed
		case isClosed(over):
			return r, os.ErrDeadlineExceeded
		case c.take(b, &r):
			return r, nil
		case isClosed(c.failed):
			return r, c.err
		}
		if c.stack.look(c) || c.stack.linger(c) {
			continue
		}
		c.park(over)
	}
}

// park waits until there may be something to read, or a reason not to wait, which then is one for
// all that wait: so nobody leaves with a token that another one needs.
func (c *Conn) park(over <-chan struct{}) {
	c.mu.Lock()
	if c.inbox.n > 0 {
		c.mu.Unlock()
		return
	}
	c.waiting++
	c.mu.Unlock()
	select {
	case <-c.readable:
	case <-over:
	case <-c.done:
	case <-c.failed:
	}
	c.mu.Lock()
	c.waiting--
	c.mu.Unlock()
}

// fail ends the connection's reads, after what has come, for the device is gone.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.failed)
	}
}

// Close ends the connection and everything that waits in it, and gives the port back to the kernel.
// The second time it fails as net.UDPConn's does, when the first has ended.
func (c *Conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.ended
		return &net.OpError{Op: "close", Net: "udp", Source: c.laddr, Addr: c.RemoteAddr(),
			Err: net.ErrClosed}
	}
	c.closed = true
	defer close(c.ended)
	close(c.done)
	left := c.inbox
	c.inbox = inbox{}
	c.mu.Unlock()
	for ; left.n > 0; left.pop() {
		left.first().release()
	}
	c.readBy.set(time.Time{}) // stops the timers
	c.writeBy.set(time.Time{})
	err := c.stack.remove(c)
	if c.ownsStack.Load() {
		if e := c.stack.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		return &net.OpError{Op: "close", Net: "udp", Source: c.laddr, Addr: c.RemoteAddr(),
			Err: err}
	}
	return nil
}

// SetDeadline sets both deadlines. The zero time means none; one that is past ends calls that wait.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy, &c.writeBy) }

// SetReadDeadline sets the deadline of reads, those that wait already included.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, &c.readBy) }

// SetWriteDeadline sets the deadline of writes. They wait only while the device has no room.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, &c.writeBy) }

func (c *Conn) setDeadlines(t time.Time, ds ...*deadline) error {
	if isClosed(c.done) {
		return c.setError(net.ErrClosed)
	}
	for _, d := range ds {
		d.set(t)
	}
	return nil
}

func (c *Conn) setError(err error) error {
	return &net.OpError{Op: "set", Net: "udp", Addr: c.laddr, Err: err}
}

// SetReadBuffer bounds what waits to be read: one datagram for every 2048 bytes, since each takes a
// frame whatever its length, and no more than StackOptions.MaxBacklog. A larger value is taken for
// that, as the kernel does with what exceeds net.core.rmem_max.
func (c *Conn) SetReadBuffer(bytes int) error {
	if isClosed(c.done) {
		return c.setError(net.ErrClosed)
	}
	if bytes < 0 {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	c.mu.Lock()
	c.limit = min(max(bytes/datagramBytes, minBacklog), c.stack.o.MaxBacklog)
	c.mu.Unlock()
	return nil
}

// SetWriteBuffer is accepted and changes nothing: what is sent waits in the transmit ring, which
// all connections of the interface share (Options.Socket).
func (c *Conn) SetWriteBuffer(bytes int) error {
	if isClosed(c.done) {
		return c.setError(net.ErrClosed)
	}
	if bytes < 0 {
		return c.setError(os.NewSyscallError("setsockopt", syscall.EINVAL))
	}
	return nil
}

// deadline is a moment that may be moved while others wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{} // closed when the moment has come
}

// wait returns a channel that is closed when the moment comes. It stays right when the moment is
// moved before that, so it is to be asked for anew only after it was closed.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel()
}

func (d *deadline) channel() chan struct{} {
	if d.over == nil {
		d.over = make(chan struct{})
	}
	return d.over
}

// set moves the moment; the zero time means never. A moment that is past ends all waits.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // the timer has fired and needs no lock to close this
	}
	d.timer = nil
	over := isClosed(d.channel())
	left := time.Until(t)
	switch {
	case t.IsZero():
		if over {
			d.over = make(chan struct{})
		}
	case left > 0:
		if over {
			d.over = make(chan struct{})
		}
		ch := d.over
		d.timer = time.AfterFunc(left, func() { close(ch) })
	case !over:
		close(d.over)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// inbox is the datagrams that wait for a reader of one connection. It grows as needed, up to what
// its owner allows.
type inbox struct {
	items []item // a power of two
	head  int
	n     int
}

// item is a loan and the shard that it is to be given back to, or a copy and nil.
type item struct {
	d     datagram
	shard *shard
}

func (it *item) release() {
	if it.shard != nil {
		it.shard.release(&it.d)
	}
}

func (b *inbox) push(d *datagram, s *shard) {
	if b.n == len(b.items) {
		grown := make([]item, max(16, 2*len(b.items)))
		for i := range b.n {
			grown[i] = *b.at(i)
		}
		b.items, b.head = grown, 0
	}
	it := b.at(b.n)
	it.d, it.shard = *d, s
	b.n++
}

func (b *inbox) at(i int) *item { return &b.items[(b.head+i)&(len(b.items)-1)] }

// first is the oldest; the pointer is good until pop or push.
func (b *inbox) first() *item { return b.at(0) }

func (b *inbox) pop() {
	b.head = (b.head + 1) & (len(b.items) - 1)
	b.n--
}

// Read copies one datagram to b, of a connected socket one of its peer. What does not fit is lost.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 && !isClosed(c.done) {
		return 0, nil // as package net has it
	}
	r, err := c.receive(b)
	return r.n, c.readError("read", err)
}

// ReadFrom copies one datagram to b and returns its sender, a *[net.UDPAddr]. What does not fit is
// lost.
func (c *Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	r, err := c.receive(b)
	if err != nil {
		return 0, nil, c.readError("recvfrom", err)
	}
	return r.n, net.UDPAddrFromAddrPort(r.from), nil
}

// ReadFromUDP is ReadFrom with the type of the address.
func (c *Conn) ReadFromUDP(b []byte) (int, *net.UDPAddr, error) {
	r, err := c.receive(b)
	if err != nil {
		return 0, nil, c.readError("recvfrom", err)
	}
	return r.n, net.UDPAddrFromAddrPort(r.from), nil
}

// ReadFromUDPAddrPort is ReadFrom without an allocation. IPv4 addresses are not mapped to IPv6.
func (c *Conn) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	r, err := c.receive(b)
	return r.n, r.from, c.readError("recvfrom", err)
}

// ReadMsgUDP is ReadFrom that also says, by the flag MSG_TRUNC, if the datagram did not fit. There
// is never control data.
func (c *Conn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	n, oobn, flags, from, err := c.ReadMsgUDPAddrPort(b, oob)
	if from.IsValid() {
		addr = net.UDPAddrFromAddrPort(from)
	}
	return n, oobn, flags, addr, err
}

// ReadMsgUDPAddrPort is ReadMsgUDP without an allocation.
func (c *Conn) ReadMsgUDPAddrPort(b, _ []byte) (n, oobn, flags int, addr netip.AddrPort,
	err error) {
	r, err := c.receive(b)
	if r.truncated {
		flags = syscall.MSG_TRUNC
	}
	return r.n, 0, flags, r.from, c.readError("recvmsg", err)
}
