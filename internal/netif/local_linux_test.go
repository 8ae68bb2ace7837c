package netif

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestGroupFiles: the kernel's lists are read for one interface, and what is no address is left.
func TestGroupFiles(t *testing.T) {
	got := map[netip.Addr]bool{}
	addGroups4(got, []byte("Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"+
		"1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"+
		"4\teth0      :     2      V3\n\t\t\t\tFB0000E0     1 0:00000000\t\t0\n"+
		"\t\t\t\t010000E0     1 0:00000000\t\t0\n\t\t\t\tFFFFFFFFFF 1\n\t\n\n"+
		"44\teth1      :     1      V3\n\t\t\t\t020000E0     1 0:00000000\t\t0\n"), 4)
	addGroups6(got, []byte("1    lo              ff020000000000000000000000000001     1 0000000C 0\n"+
		"4    eth0            ff0200000000000000000000000000fb     1 00000004 0\n"+
		"4    eth0            ff02     1 00000004 0\n4    eth0            zz\n4 eth0\n"+
		"44   eth1            ff0200000000000000000000000000fc     1 00000004 0\n"), 4)
	want := map[netip.Addr]bool{}
	for _, a := range []string{"224.0.0.1", "224.0.0.251", "ff02::fb"} {
		want[netip.MustParseAddr(a)] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// localOf returns the options of a watcher that tells what is local, and where it does so.
func localOf(poll time.Duration) (WatchOptions, chan xdp.Local) {
	told := make(chan xdp.Local, 100)
	return WatchOptions{Poll: poll, OnEvent: func(Event) bool { return true },
		OnLocal: func(l xdp.Local) { told <- l }}, told
}

// become waits until that is local which is wanted, beside the groups that each IPv6 interface is
// in.
func become(t *testing.T, told chan xdp.Local, want xdp.Local) {
	t.Helper()
	var got xdp.Local
	for end := time.After(time.Minute); !maps.Equal(got, want); {
		select {
		case got = <-told:
			maps.DeleteFunc(got, func(a netip.Addr, _ [6]byte) bool { return a.Is6() })
		case <-end:
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// TestLocalTold: what is local is told before Watch returns, when it changes, and is nothing once
// the kernel cannot be heard.
func TestLocalTold(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	group, odd := netip.MustParseAddr("239.1.2.3"), netip.MustParseAddr("192.0.2.3")
	s := newScript()
	s.addrs, s.groups = []netip.Addr{a}, map[netip.Addr]bool{group: true, odd: true}
	o, told := localOf(-1)
	watchScript(t, s, o)
	groups := xdp.Local{group: {1, 0, 0x5e, 1, 2, 3}}
	want := xdp.Local{a: ourMAC, group: groups[group]}
	if got := <-told; !maps.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	s.out <- addressMessage(unix.RTM_NEWADDR, 0, 0, 0, b)
	become(t, told, xdp.Local{a: ourMAC, b: ourMAC, group: groups[group]})
	s.out <- addressMessage(unix.RTM_DELADDR, 0, 0, 0, a)
	become(t, told, xdp.Local{b: ourMAC, group: groups[group]})
	s.set(func(s *script) { s.groups = nil })
	s.out <- addressMessage(unix.RTM_NEWADDR, 0, 0, 0, b) // nothing new but the groups
	become(t, told, xdp.Local{b: ourMAC})
	s.fails <- errors.New("deaf")
	become(t, told, xdp.Local{})
}

// TestLocalFollowed: addresses of either family, the hardware address and the groups of a real
// interface are followed until it is gone.
func TestLocalFollowed(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	o, told := localOf(5 * time.Millisecond)
	watchEnd(t, p.A, o)
	mac, all := [6]byte(p.A.MAC), netip.MustParseAddr("224.0.0.1")
	want := xdp.Local{p.A.Addr: mac, all: {1, 0, 0x5e, 0, 0, 1}}
	become(t, told, want)
	more := netip.MustParseAddr("198.51.100.1")
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: more.AsSlice(), Mask: net.CIDRMask(28, 32)}}
	change(t, p.A, func(l netlink.Link) error { return netlink.AddrAdd(l, addr) })
	want[more] = mac
	become(t, told, want)
	var member *net.UDPConn
	group := netip.MustParseAddr("239.1.130.3")
	xdptest.Do(t, p.A, func() (err error) {
		ifi, err := net.InterfaceByName(p.A.Name)
		if err == nil {
			member, err = net.ListenMulticastUDP("udp4", ifi, &net.UDPAddr{IP: group.AsSlice()})
		}
		return err
	})
	want[group] = [6]byte{1, 0, 0x5e, 1, 130, 3}
	become(t, told, want)
	must(t, member.Close())
	delete(want, group)
	become(t, told, want)
	mac = [6]byte{2, 0, 0, 0, 0, 5}
	change(t, p.A, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac[:]) })
	want[more], want[p.A.Addr] = mac, mac
	become(t, told, want)
	change(t, p.A, func(l netlink.Link) error { return netlink.AddrDel(l, addr) })
	delete(want, more)
	become(t, told, want)
	must(t, p.A.Remove())
	become(t, told, xdp.Local{})
}
