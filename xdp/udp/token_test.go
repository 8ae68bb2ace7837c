package udp

import (
	"net/netip"
	"testing"
)

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
