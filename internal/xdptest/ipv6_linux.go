package xdptest

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
)

// AddIPv6 gives both ends of a pair an IPv6 address, which package veth leaves out so that nothing
// is on the wire that a test did not send.
func AddIPv6(t testing.TB, pair *veth.Pair, a, b netip.Addr) {
	t.Helper()
	for e, addr := range map[*veth.End]netip.Addr{pair.A: a, pair.B: b} {
		Do(t, e, func() error {
			// Without the search for duplicates, which takes a second or two, of link-local addresses too.
			for _, name := range []string{"accept_dad", "dad_transmits", "disable_ipv6"} {
				name = "/proc/sys/net/ipv6/conf/" + e.Name + "/" + name
				if err := os.WriteFile(name, []byte("0"), 0); err != nil {
					return err
				}
			}
			l, err := netlink.LinkByName(e.Name)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(l, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{
				IP: addr.AsSlice(), Mask: net.CIDRMask(64, 128)}}); err != nil {
				return err
			}
			// A worker of the kernel makes the route by which packets for the address come in.
			shmtest.Eventually(t, "the route of the address", func() bool {
				routes, err := netlink.RouteGet(addr.AsSlice())
				return err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL
			})
			return nil
		})
	}
}
