package udp

import (
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// A test's machine may stand still for longer than a datagram waits, which is lost then, as it
// should be.
func init() { resolveTries = time.Minute }

// What tests put in place of an interface.
type (
	Backend  = backend
	Datagram = datagram
)

// NewStack runs UDP where there is no kernel to be asked for addresses.
func NewStack(o StackOptions, b ...Backend) (*Stack, error) {
	s, err := newStack(o, b...)
	if err == nil && o.bind == nil {
		s.o.bind = s.bind
	}
	return s, err
}

// Bind has addresses claimed by f.
func (o StackOptions) Bind(f func(netip.AddrPort) (netip.AddrPort, func() error, error),
) StackOptions {
	o.bind = f
	return o
}

// Settling has a stack that is closed wait so long for next hops.
func (o StackOptions) Settling(d time.Duration) StackOptions {
	o.settle = d
	return o
}

// bind finds an address free if the stack has no connection on it.
func (s *Stack) bind(local netip.AddrPort) (netip.AddrPort, func() error, error) {
	const firstEphemeral, ephemeral = 32768, 28232 // as net.ipv4.ip_local_port_range
	free := func(a netip.AddrPort) bool { return s.table.Load().byAddr[bare(a)] == nil }
	if local.Port() != 0 {
		if !free(local) {
			return local, nil, syscall.EADDRINUSE
		}
		return local, func() error { return nil }, nil
	}
	begin := rand.IntN(ephemeral)
	for i := range ephemeral {
		a := netip.AddrPortFrom(local.Addr(), uint16(firstEphemeral+(begin+i)%ephemeral))
		if free(a) {
			return a, func() error { return nil }, nil
		}
	}
	return local, nil, syscall.EADDRINUSE
}

// Linger has a reader look before it sleeps, as on a machine with several CPUs.
func (s *Stack) Linger(c *Conn) bool {
	s.budget = lookFor
	return s.linger(c)
}

// Beside calls f while another writer is on its way to the device.
func (s *Stack) Beside(f func()) {
	s.shards[0].writers.Add(1)
	defer s.shards[0].writers.Add(-1)
	f()
}

// Stack is that of a connection.
func (c *Conn) Stack() *Stack { return c.stack }

// TestTakePassesOn: of two readers on their way to sleep, for whom two datagrams came with one
// token, the first one wakes the second.
func TestTakePassesOn(t *testing.T) {
	t.Parallel()
	s := &Stack{}
	s.o = s.o.resolve()
	closed := &shard{stack: s, closed: true} // nothing is given back
	local := netip.MustParseAddrPort("192.0.2.1:7")
	c := newConn(s, local, netip.AddrPort{})
	c.waiting = 2
	for range 2 {
		if !c.deliver(&datagram{Payload: []byte("x"), To: local}, closed, false) {
			t.Fatal("not taken")
		}
	}
	var r result
	for left := 1; left >= 0; left-- {
		if len(c.readable) != 1 {
			t.Fatalf("no token, and %d datagrams wait", c.inbox.n)
		}
		<-c.readable
		if !c.take(make([]byte, 8), &r) || c.inbox.n != left {
			t.Fatalf("%d datagrams left", c.inbox.n)
		}
	}
	if len(c.readable) != 0 {
		t.Error("a token for nothing")
	}
}
