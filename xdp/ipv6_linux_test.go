package xdp_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp/veth"
	"github.com/shmring/shmring/xdp/xdptest"
)

var (
	sixA = netip.MustParseAddr("fd00::a")
	sixB = netip.MustParseAddr("fd00::b")
)

// withIPv6 gives both ends an IPv6 address.
func withIPv6(t testing.TB, pair *veth.Pair) {
	t.Helper()
	for e, addr := range map[*veth.End]netip.Addr{pair.A: sixA, pair.B: sixB} {
		xdptest.Do(t, e, func() error {
			// The tests switch it off first of all; see package veth.
			name := "/proc/sys/net/ipv6/conf/" + e.Name + "/disable_ipv6"
			if err := os.WriteFile(name, []byte("0"), 0); err != nil {
				return err
			}
			l, err := netlink.LinkByName(e.Name)
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, &netlink.Addr{Flags: unix.IFA_F_NODAD, IPNet: &net.IPNet{
				IP: addr.AsSlice(), Mask: net.CIDRMask(64, 128)}})
		})
	}
}

// forget removes what an end knows of a neighbour.
func forget(t testing.TB, e *veth.End, addr netip.Addr) {
	t.Helper()
	xdptest.Do(t, e, func() error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: e.Index, IP: addr.AsSlice()})
	})
}
