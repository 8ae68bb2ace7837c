package udp

import (
	"math/rand/v2"
	"net/netip"
	"syscall"
)

// bind claims an address where there is no kernel to be asked.
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
