package udp

import (
	"errors"
	"hash/maphash"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

const (
	// datagramBytes is what one waiting datagram costs, however short it is: a frame.
	datagramBytes = 2048
	minBacklog    = 8
)

// StackOptions say how a stack queues and binds. Zero values stand for the defaults.
type StackOptions struct {
	// Backlog is how many datagrams wait for the readers of one connection; 256 by default.
	// Conn.SetReadBuffer changes it for one.
	Backlog int
	// MaxBacklog bounds SetReadBuffer; the greater of Backlog and 1024 by default.
	MaxBacklog int
	// Zone names the interface in link-local addresses.
	Zone string
	// bind claims an address for a connection, and has datagrams to it sent to the backends. It
	// chooses a port if that is 0. What it returns is undone by unbind.
	bind func(local netip.AddrPort) (bound netip.AddrPort, unbind func() error, err error)
	// settle is how long Close waits for next hops. 0 is settleWait.
	settle time.Duration
}

func (o StackOptions) resolve() StackOptions {
	if o.Backlog <= 0 {
		o.Backlog = 256
	}
	if o.MaxBacklog <= 0 {
		o.MaxBacklog = max(o.Backlog, 1024)
	}
	if o.settle <= 0 {
		o.settle = settleWait
	}
	return o
}

// Stack is UDP on one interface: connections by address and port over one backend for each queue.
// Its methods may be called from any goroutine.
type Stack struct {
	o       StackOptions
	shards  []*shard
	table   atomic.Pointer[table]
	seed    maphash.Seed
	done    chan struct{}
	running sync.WaitGroup
	onClose []func() error
	watcher func() error // ends what watches the interface; nil if nothing does
	pending
	budget time.Duration // of a look before a sleep; 0 with one CPU

	mu     sync.Mutex // of whoever changes the table
	unbind map[*Conn]func() error
	closed bool
	err    error // the device is gone
}

// table is the connections by address; it is not changed but replaced.
type table struct{ byAddr map[netip.AddrPort]*Conn }

// find prefers the connection on the very address to one on any address of the family, and that to
// one on any address.
func (t *table) find(to netip.AddrPort) *Conn {
	if c := t.byAddr[to]; c != nil {
		return c
	}
	if to.Addr().Is4() {
		if c := t.byAddr[netip.AddrPortFrom(netip.IPv4Unspecified(), to.Port())]; c != nil {
			return c
		}
	}
	return t.byAddr[netip.AddrPortFrom(netip.IPv6Unspecified(), to.Port())]
}

// newStack runs UDP over backends, one for each queue of an interface, which it owns from then on:
// Close closes them. [Open] makes them too.
func newStack(o StackOptions, backends ...backend) (*Stack, error) {
	if len(backends) == 0 {
		return nil, &shm.Error{Pkg: pkg, Op: "make stack", Err: ErrOptions, Hint: "give it a backend"}
	}
	s := &Stack{o: o.resolve(), seed: maphash.MakeSeed(), done: make(chan struct{}),
		unbind: map[*Conn]func() error{}, budget: spin.Budget(lookFor)}
	s.later.First, s.later.Most, s.later.Try = firstRetry, lastRetry, s.retryAll
	s.table.Store(&table{byAddr: map[netip.AddrPort]*Conn{}})
	for _, b := range backends {
		s.shards = append(s.shards, &shard{stack: s, b: b})
	}
	for _, sh := range s.shards {
		s.running.Go(sh.run)
	}
	return s, nil
}

// Listen returns a connection on an address of the interface. Without an address, 0.0.0.0 or ::, it
// gets what comes to any; without a port one is chosen. Errors are *[net.OpError], with EADDRINUSE
// where the kernel or the stack has the address already.
func (s *Stack) Listen(local netip.AddrPort) (*Conn, error) {
	c, err := s.open(local, netip.AddrPort{})
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(local),
			Err: err}
	}
	return c, nil
}

// Dial returns a connection that sends to and receives from one peer only.
func (s *Stack) Dial(local, remote netip.AddrPort) (*Conn, error) {
	remote = unmap(remote)
	if !remote.IsValid() {
		return nil, &net.OpError{Op: "dial", Net: "udp", Err: errMissingAddress}
	}
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(unspecified(remote.Addr()), local.Port())
	}
	c, err := s.open(local, remote)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "udp", Source: net.UDPAddrFromAddrPort(local),
			Addr: net.UDPAddrFromAddrPort(remote), Err: err}
	}
	return c, nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// bare is an address as packets have it.
func bare(a netip.AddrPort) netip.AddrPort {
	if ip := a.Addr(); ip.Is4In6() || ip.Zone() != "" {
		return netip.AddrPortFrom(ip.Unmap().WithZone(""), a.Port())
	}
	return a
}

// zoned is an address from a packet as package net has it.
func (s *Stack) zoned(a netip.AddrPort) netip.AddrPort {
	if ip := a.Addr(); s.o.Zone != "" && ip.Is6() && ip.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(ip.WithZone(s.o.Zone), a.Port())
	}
	return a
}

func (s *Stack) open(local, remote netip.AddrPort) (*Conn, error) {
	local = unmap(local)
	if !local.Addr().IsValid() {
		local = netip.AddrPortFrom(netip.IPv6Unspecified(), local.Port())
	}
	s.mu.Lock()
	err := s.ended()
	if err == nil { // else Close may not wait for this any more
		s.running.Add(1)
		defer s.running.Done()
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	bound, unbind, err := s.o.bind(local) // without the lock: who is asked may take long
	if err != nil {
		return nil, err
	}
	c := newConn(s, bound, remote)
	s.mu.Lock()
	if err = s.ended(); err == nil {
		s.unbind[c] = unbind
		s.change(func(byAddr map[netip.AddrPort]*Conn) { byAddr[c.local] = c })
	}
	s.mu.Unlock()
	if err != nil {
		_ = unbind()
		return nil, err
	}
	return c, nil
}

// ended is why there are no more connections, or nil. The lock is held.
func (s *Stack) ended() error {
	if s.closed {
		return net.ErrClosed
	}
	return s.err
}

// change replaces the table by one that differs. The lock is held.
func (s *Stack) change(how func(byAddr map[netip.AddrPort]*Conn)) {
	t := &table{byAddr: maps.Clone(s.table.Load().byAddr)}
	how(t.byAddr)
	s.table.Store(t)
}

// remove takes a connection that is closed out of the table. Until its address is given back, which
// may take long, it is one that Close waits for.
func (s *Stack) remove(c *Conn) error {
	s.mu.Lock()
	unbind := s.unbind[c]
	s.change(func(byAddr map[netip.AddrPort]*Conn) { delete(byAddr, c.local) })
	s.mu.Unlock()
	err := unbind()
	s.mu.Lock()
	delete(s.unbind, c)
	s.mu.Unlock()
	return err
}

// shardFor spreads destinations over the queues, and keeps each on one, so that order is kept.
func (s *Stack) shardFor(to netip.AddrPort) *shard {
	if len(s.shards) == 1 {
		return s.shards[0]
	}
	return s.shards[maphash.Comparable(s.seed, to)%uint64(len(s.shards))]
}

// look hands out what has come, for a reader that would have to wait. It reports whether the
// connection has something now.
func (s *Stack) look(c *Conn) bool {
	for _, sh := range s.shards {
		if sh.writers.Load() > 0 || !sh.mu.TryLock() {
			continue // who waits does not hold up who sends; others who have it do the same as we
		}
		if _, err := sh.progress(); err != nil {
			sh.gone(err)
		}
		sh.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inbox.n > 0
}

// fail ends all connections: the device is gone. What has come is read before that.
func (s *Stack) fail(err error) {
	// A shard's lock is held; the stack's comes before it, so somebody else takes that.
	s.failOnce.Do(func() {
		s.running.Go(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.err = err
			for c := range s.unbind {
				c.fail(err)
			}
		})
	})
}

func (s *Stack) isClosed() bool { return isClosed(s.done) }

// Close closes the connections, and then what the stack runs on. What was written before leaves if
// its next hop is known within a fifth of a second.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return os.ErrClosed
	}
	s.closed = true
	close(s.done)
	var conns []*Conn
	for c := range s.unbind {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	if s.watcher != nil {
		keep(s.watcher()) // it may call fail, which must not begin once running is waited for
	}
	errs := make([]error, len(conns))
	var closing sync.WaitGroup // all at once: each may have to wait for a process that is stopped
	for i, c := range conns {
		closing.Go(func() { errs[i] = c.Close() })
	}
	closing.Wait()
	for _, err := range errs {
		if !errors.Is(err, net.ErrClosed) { // else its user was faster
			keep(err)
		}
	}
	s.letOut()
	for _, sh := range s.shards {
		keep(sh.close())
	}
	s.later.Close()
	s.running.Wait()
	for _, f := range s.onClose {
		keep(f())
	}
	return first
}
