//go:build linux && !race

package udp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/xdp/udp"
)

// TestNoAllocation: neither a write nor a read allocates.
func TestNoAllocation(t *testing.T) {
	s, _ := newSims(t, udp.StackOptions{})
	a := s.listen(t, 0, netip.AddrPortFrom(addrA, 1000)).(*udp.Conn)
	b := s.listen(t, 1, netip.AddrPortFrom(addrB, 2000)).(*udp.Conn)
	to, buf := addrPort(b), make([]byte, 64)
	n := testing.AllocsPerRun(1000, func() {
		if _, err := a.WriteToUDPAddrPort(buf[:32], to); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.ReadFromUDPAddrPort(buf); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for a datagram", n)
	}
}
