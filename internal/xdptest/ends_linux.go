package xdptest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

// UMEMFile is a descriptor of a UMEM, to be handed to a child, that is closed when the test ends.
func UMEMFile(t testing.TB, u *xdp.UMEM) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(u.Region().Object().FD()), unix.F_DUPFD_CLOEXEC, 0)
	shmtest.Must(t, err)
	return shmtest.Have(os.NewFile(uintptr(fd), "umem"), nil).In(t)
}

// Forget has an end know no IPv4 neighbour, of which package veth makes the other end known.
func Forget(t testing.TB, e *veth.End) {
	t.Helper()
	Do(t, e, func() error {
		ns, err := netlink.NeighList(e.Index, unix.AF_INET)
		for i := range ns {
			err = errors.Join(err, netlink.NeighDel(&ns[i]))
		}
		return err
	})
}

// Member is UDPOn a group, as a member of it on the interface of an end.
func Member(t testing.TB, e *veth.End, group netip.AddrPort) *net.UDPConn {
	t.Helper()
	network := "udp4"
	if group.Addr().Is6() {
		network = "udp6"
	}
	c := Have(e, func() (*net.UDPConn, error) {
		ifi, err := net.InterfaceByName(e.Name)
		if err != nil {
			return nil, err
		}
		return net.ListenMulticastUDP(network, ifi, net.UDPAddrFromAddrPort(group))
	}).In(t)
	shmtest.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

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
