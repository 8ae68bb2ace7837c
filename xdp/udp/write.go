package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/retry"
)

// Write sends a datagram to the peer of a connected socket.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.remote.IsValid() {
		if isClosed(c.done) {
			return 0, c.writeError("write", c.remote, net.ErrClosed)
		}
		return 0, c.writeError("write", c.remote, syscall.EDESTADDRREQ)
	}
	return c.write("write", b, c.remote)
}

// WriteTo sends a datagram to addr, a *[net.UDPAddr]. It waits while the device has no room, until
// the write deadline. It does not wait for the next hop to be found: a few datagrams are kept until
// it is, and dropped if it is not, as the kernel does.
func (c *Conn) WriteTo(b []byte, addr net.Addr) (int, error) {
	a, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, &net.OpError{Op: "write", Net: "udp", Source: c.laddr, Addr: addr,
			Err: syscall.EINVAL}
	}
	return c.WriteToUDP(b, a)
}

// WriteToUDP is WriteTo with the type of the address.
func (c *Conn) WriteToUDP(b []byte, addr *net.UDPAddr) (int, error) {
	to, err := c.target(addr)
	if err != nil {
		return 0, c.writeError("sendto", to, err)
	}
	return c.write("sendto", b, to)
}

// WriteToUDPAddrPort is WriteTo without an allocation.
func (c *Conn) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	switch {
	case c.remote.IsValid():
		return 0, c.writeError("sendto", to, net.ErrWriteToConnected)
	case !to.IsValid():
		return 0, c.missing(to)
	}
	return c.write("sendto", b, to)
}

// WriteMsgUDP is WriteTo, or on a connected socket, where addr has to be nil, Write. Control data
// is refused with [ErrNoControl].
func (c *Conn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	to := c.remote
	if addr != nil || !to.IsValid() {
		if to, err = c.target(addr); err != nil {
			return 0, 0, c.writeError("sendmsg", to, err)
		}
	}
	n, err = c.writeMsg(b, oob, to)
	return n, 0, err
}

// WriteMsgUDPAddrPort is WriteMsgUDP without an allocation.
func (c *Conn) WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error) {
	to := c.remote
	switch {
	case to.IsValid() && addr.IsValid():
		return 0, 0, c.writeError("sendmsg", addr, net.ErrWriteToConnected)
	case !to.IsValid() && !addr.IsValid():
		return 0, 0, c.missing(addr)
	case addr.IsValid():
		to = addr
	}
	n, err = c.writeMsg(b, oob, to)
	return n, 0, err
}

// missing is the error of a call that takes an address by value: package net names it all the same.
func (c *Conn) missing(to netip.AddrPort) error {
	return &net.OpError{Op: "write", Net: "udp", Source: c.laddr,
		Addr: net.UDPAddrFromAddrPort(to), Err: errMissingAddress}
}

func (c *Conn) writeMsg(b, oob []byte, to netip.AddrPort) (int, error) {
	if len(oob) > 0 {
		return 0, c.writeError("sendmsg", to, ErrNoControl)
	}
	return c.write("sendmsg", b, to)
}

// target is where addr means. The address is valid even with an error, if there is one to name.
func (c *Conn) target(addr *net.UDPAddr) (to netip.AddrPort, err error) {
	if addr != nil {
		to = addr.AddrPort()
		if len(addr.IP) == 0 {
			to = netip.AddrPortFrom(unspecified(c.local.Addr()), uint16(addr.Port))
		}
	}
	switch {
	case c.remote.IsValid():
		return to, net.ErrWriteToConnected
	case addr == nil:
		return to, errMissingAddress
	case !to.IsValid():
		return to, &net.AddrError{Err: "invalid address", Addr: addr.String()}
	}
	return to, nil
}

// unspecified is the address of the same family that stands for any.
func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (c *Conn) write(call string, b []byte, to netip.AddrPort) (int, error) {
	if err := c.send(b, to); err != nil {
		c.refused.Add(1)
		return 0, c.writeError(call, to, err)
	}
	c.sent.Add(1)
	return len(b), nil
}

// check refuses what the kernel refuses before it looks for a route.
func (c *Conn) check(to netip.AddrPort) (netip.AddrPort, error) {
	to = bare(to)
	local := c.local.Addr()
	switch {
	case to.Addr().Is6() && local.Is4():
		return to, &net.AddrError{Err: "non-IPv4 address", Addr: to.Addr().String()}
	case to.Addr().Is4() && local.Is6() && !local.IsUnspecified():
		return to, syscall.ENETUNREACH
	case to.Port() == 0:
		return to, syscall.EINVAL
	}
	return to, nil
}

// A device without room has no descriptor that tells of it once it has, so a write that waits for
// it looks again at intervals that grow.
const (
	firstPause = 20 * time.Microsecond
	lastPause  = 2 * time.Millisecond
)

func (c *Conn) send(b []byte, to netip.AddrPort) error {
	over := c.writeBy.wait()
	switch {
	case isClosed(c.done):
		return net.ErrClosed
	case isClosed(over):
		return os.ErrDeadlineExceeded
	}
	to, err := c.check(to)
	if err != nil {
		return err
	}
	s := c.stack.shardFor(to)
	err = s.send(b, c.local, to)
	for pause := firstPause; err != nil && errors.Is(err, syscall.EAGAIN); {
		if errors.Is(err, packet.ErrResolving) {
			return c.stack.keep(s, b, c.local, to)
		}
		select {
		case <-time.After(pause):
		case <-over:
			return os.ErrDeadlineExceeded
		case <-c.done:
			return net.ErrClosed
		}
		pause = min(2*pause, lastPause)
		err = s.send(b, c.local, to)
	}
	switch {
	case err == ErrNoAnswer && !c.remote.IsValid():
		c.stack.lost.Add(1)
		return nil
	case errors.Is(err, os.ErrClosed):
		return net.ErrClosed // the stack is
	}
	return err
}

// What waits for a next hop. The kernel keeps 208 KiB for each neighbour, and gives up after three
// questions, a second apart.
const (
	maxPending = 128
	firstRetry = 50 * time.Microsecond // the kernel may have known
	lastRetry  = 4 * time.Millisecond
)

// resolveTries is how long a datagram waits, which tests change.
var resolveTries = 3 * time.Second

// settleWait bounds how long Close waits for what was written just before it. Only what waits for
// a next hop that does not answer takes longer.
const settleWait = 200 * time.Millisecond

// pending is the datagrams of which the next hop is not known yet. They are tried again at
// intervals while there are any, and so is what the device did not take at once.
type pending struct {
	waiting  atomic.Int32 // len(held)
	lost     atomic.Uint64
	later    retry.Later // calls retryAll
	failOnce sync.Once

	heldMu  sync.Mutex // after a shard's
	held    []heldDatagram
	blocked []netip.Addr // scratch
}

// StackStats counts what a stack could not send at once.
type StackStats struct {
	Waiting int    // datagrams that wait for a next hop
	Lost    uint64 // datagrams that were accepted, and not sent for want of one
}

// Stats returns the counts.
func (s *Stack) Stats() StackStats {
	return StackStats{Waiting: int(s.waiting.Load()), Lost: s.lost.Load()}
}

type heldDatagram struct {
	shard    *shard
	payload  []byte
	from, to netip.AddrPort
	until    time.Time
}

// keep puts a datagram aside until its next hop is known. When there are too many the oldest one
// goes, as in the kernel.
func (s *Stack) keep(sh *shard, b []byte, from, to netip.AddrPort) error {
	s.heldMu.Lock()
	if len(s.held) == maxPending {
		s.held = slices.Delete(s.held, 0, 1)
		s.lost.Add(1)
	}
	s.held = append(s.held, heldDatagram{sh, slices.Clone(b), from, to,
		time.Now().Add(resolveTries)})
	s.waiting.Store(int32(len(s.held)))
	s.heldMu.Unlock()
	s.later.Want()
	return nil
}

// letOut waits until nothing waits for a next hop any more, for a while.
func (s *Stack) letOut() {
	end := time.Now().Add(s.o.settle)
	for pause := firstPause; s.waiting.Load() > 0 && time.Now().Before(end); {
		time.Sleep(pause)
		pause = min(2*pause, lastPause)
	}
}

// retryAll sends what waits, and what the device did not take.
func (s *Stack) retryAll(time.Duration) {
	all := true
	for _, sh := range s.shards {
		sh.mu.Lock()
		if !sh.closed {
			s.retry(sh, netip.Addr{})
			all = sh.b.Flush() && all
		}
		sh.mu.Unlock()
	}
	if !all || s.waiting.Load() > 0 {
		s.later.Want()
	}
}

// retry sends what a shard has waiting, in order for each destination, and forgets what failed or
// took too long. It reports whether something to this address still waits, so that nothing
// overtakes it. The lock of the shard is held.
func (s *Stack) retry(sh *shard, to netip.Addr) (waits bool) {
	s.heldMu.Lock()
	defer s.heldMu.Unlock()
	now := time.Now()
	s.blocked = s.blocked[:0]
	s.held = slices.DeleteFunc(s.held, func(h heldDatagram) bool {
		if h.shard != sh {
			return false
		}
		late := now.After(h.until)
		if !late && slices.Contains(s.blocked, h.to.Addr()) {
			return false
		}
		err := sh.b.Send(h.payload, h.from, h.to)
		if errors.Is(err, syscall.EAGAIN) && !late {
			s.blocked = append(s.blocked, h.to.Addr())
			return false
		}
		if err != nil {
			s.lost.Add(1)
		}
		return true
	})
	s.waiting.Store(int32(len(s.held)))
	return slices.Contains(s.blocked, to)
}
