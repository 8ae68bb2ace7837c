package netif

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestChanges: everything that can change about an interface is told once. Polling is off, so the
// kernel must have said it.
func TestChanges(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{Poll: -1})
	s := w.State()
	if s.Name != p.A.Name || s.Index != p.A.Index || !s.Up || s.MTU != 1500 ||
		s.MAC != [6]byte(p.A.MAC) || !s.Addresses[netip.PrefixFrom(p.A.Addr, 24)] ||
		len(s.Addresses) != 1 || s.ProgramID != 0 || s.RxQueues != 1 || s.TxQueues != 1 {
		t.Fatalf("%+v", s)
	}
	quiet(t, w)
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }))
	expect(t, w, Event{Kind: MTUChanged, MTU: 1400})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) }))
	expect(t, w, Event{Kind: MACChanged, MAC: [6]byte(mac)})
	more := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 1), Mask: net.CIDRMask(28, 32)}}
	prefix := netip.MustParsePrefix("198.51.100.1/28")
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.AddrAdd(l, more) }))
	expect(t, w, Event{Kind: AddressAdded, Prefix: prefix})
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.AddrDel(l, more) }))
	expect(t, w, Event{Kind: AddressRemoved, Prefix: prefix})
	must(t, p.B.SetUp(false)) // takes the carrier away
	expect(t, w, Event{Kind: Down})
	must(t, p.B.SetUp(true))
	expect(t, w, Event{Kind: Up})
	must(t, p.A.SetUp(false))
	expect(t, w, Event{Kind: Down})
	must(t, p.A.SetUp(true))
	expect(t, w, Event{Kind: Up})
	must(t, p.B.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }))
	quiet(t, w) // another interface
	must(t, p.A.Remove())
	for w.event(t) != (Event{Kind: Removed}) { // down and without address first, perhaps
	}
	quiet(t, w)
	if s := w.State(); !s.Removed || !errors.Is(w.ended(), xdp.ErrDeviceGone) {
		t.Errorf("%+v, %v", s, w.ended())
	}
}

// TestPeerAddress: an address that an interface has for two peers stays as long as one is left.
func TestPeerAddress(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{Poll: -1})
	own := netip.MustParsePrefix("198.51.100.1/32")
	to := func(peer byte) *netlink.Addr {
		mask := net.CIDRMask(32, 32)
		return &netlink.Addr{IPNet: &net.IPNet{IP: own.Addr().AsSlice(), Mask: mask},
			Peer: &net.IPNet{IP: net.IPv4(198, 51, 100, peer), Mask: mask}}
	}
	change := func(f func(netlink.Link, *netlink.Addr) error, a *netlink.Addr) {
		t.Helper()
		must(t, p.A.Change(func(l netlink.Link) error { return f(l, a) }))
	}
	change(netlink.AddrAdd, to(2))
	expect(t, w, Event{Kind: AddressAdded, Prefix: own})
	change(netlink.AddrAdd, to(3))
	change(netlink.AddrDel, to(2))
	quiet(t, w)
	if s := w.State(); !s.Addresses[own] {
		t.Errorf("%+v", s)
	}
	change(netlink.AddrDel, to(3))
	expect(t, w, Event{Kind: AddressRemoved, Prefix: own})
}

// TestMoved: an interface that goes to another namespace is removed from this one.
func TestMoved(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{Poll: -1})
	must(t, p.A.Change(func(l netlink.Link) error {
		return errors.Join(netlink.LinkSetName(l, "moving"),
			netlink.LinkSetNsFd(l, int(p.B.NetNS().Fd())))
	}))
	for w.event(t) != (Event{Kind: Removed, Moved: true}) {
	}
}

// TestProgram: a program that is attached, replaced and detached is told of, also where the kernel
// does not say so.
func TestProgram(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{Poll: 10 * time.Millisecond})
	x := xdptest.Attach(t, p.A, xdp.ProgramOptions{})
	e := w.event(t)
	if e.Kind != ProgramChanged || e.ProgramID == 0 {
		t.Fatalf("%+v", e)
	}
	was := watchEnd(t, p.A, WatchOptions{ProgramID: e.ProgramID, Poll: 10 * time.Millisecond})
	quiet(t, was)
	must(t, x.Close())
	expect(t, w, Event{Kind: ProgramChanged})
	expect(t, was, Event{Kind: ProgramChanged})
	late := watchEnd(t, p.A, WatchOptions{ProgramID: e.ProgramID, Poll: -1})
	expect(t, late, Event{Kind: ProgramChanged})
}

// TestQueues: the number of queues in use is told, which takes a poll.
func TestQueues(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{Queues: 4})
	w := watchEnd(t, p.A, WatchOptions{Poll: 10 * time.Millisecond})
	if s := w.State(); s.RxQueues != 4 || s.TxQueues != 4 {
		t.Fatalf("%+v", s)
	}
	xdptest.Do(t, p.A, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return channelsOf(fd, p.A.Name, &ethtoolChannels{cmd: unix.ETHTOOL_SCHANNELS, rx: 3, tx: 2})
	})
	expect(t, w, Event{Kind: QueuesChanged, RxQueues: 3, TxQueues: 2})
}

// TestIPv6Address: an address is told of when it may be used.
func TestIPv6Address(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{Poll: -1})
	xdptest.Do(t, p.A, func() error {
		for _, which := range []string{"all", "default", p.A.Name} {
			name := "/proc/sys/net/ipv6/conf/" + which
			if err := errors.Join(os.WriteFile(name+"/disable_ipv6", []byte("0"), 0),
				os.WriteFile(name+"/addr_gen_mode", []byte("1"), 0)); err != nil {
				return err
			}
		}
		return nil
	})
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}}
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.AddrAdd(l, ip) }))
	want := netip.MustParsePrefix("2001:db8::1/64")
	for w.event(t) != (Event{Kind: AddressAdded, Prefix: want}) {
	}
	must(t, p.A.Change(func(l netlink.Link) error {
		all, err := netlink.AddrList(l, netlink.FAMILY_V6)
		for _, a := range all {
			if a.IP.Equal(ip.IP) && a.Flags&unix.IFA_F_TENTATIVE != 0 {
				err = fmt.Errorf("told of too early: %v", a)
			}
		}
		return err
	}))
}

// TestCoalesce: who does not listen misses what came and went, and learns what is.
func TestCoalesce(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	var listens atomic.Bool
	got := make(chan Event, 100)
	w := watchEnd(t, p.A, WatchOptions{Poll: 5 * time.Millisecond, OnEvent: func(e Event) bool {
		if !listens.Load() {
			return false
		}
		got <- e
		return true
	}})
	for i := range 101 {
		must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300+i) }))
	}
	eventually(t, "the last", func() bool { return w.State().MTU == 1400 })
	listens.Store(true)
	eventually(t, "an event", func() bool { return len(got) > 0 })
	must(t, w.Close())
	if e := <-got; e != (Event{Kind: MTUChanged, MTU: 1400}) || len(got) > 0 {
		t.Errorf("%+v, and %d more", e, len(got))
	}
}

// TestCallback: an event that is not taken comes again.
func TestCallback(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	got := make(chan Event, 100)
	n := 0
	watchEnd(t, p.A, WatchOptions{Poll: 5 * time.Millisecond, OnEvent: func(e Event) bool {
		got <- e
		n++
		return n > 3
	}})
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }))
	for i := range 4 {
		select {
		case e := <-got:
			if e != (Event{Kind: MTUChanged, MTU: 1400}) {
				t.Errorf("%d: %+v", i, e)
			}
		case <-time.After(hang):
			t.Fatal(i)
		}
	}
	select {
	case e := <-got:
		t.Errorf("a fifth: %+v", e)
	case <-time.After(50 * time.Millisecond):
	}
}

// TestClose: closing ends everything, however often, with an event waiting to be taken.
func TestClose(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	w := watchEnd(t, p.A, WatchOptions{})
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) }))
	goroutines := runtime.NumGoroutine()
	for range 10 {
		must(t, watchEnd(t, p.A, WatchOptions{}).Close())
	}
	xdptest.FewerGoroutines(t, goroutines)
	must(t, w.Close())
	must(t, w.Close())
	xdptest.Do(t, p.A, func() error {
		for _, index := range []int{4711, 0, -1} {
			if _, err := Watch(index, WatchOptions{}); !errors.Is(err, xdp.ErrNoDevice) {
				t.Errorf("%d: %v", index, err)
			}
		}
		return nil
	})
}

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
		OnLocal: func(l xdp.Local) bool { told <- l; return true }}, told
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
	t.Parallel()
	a, b := addr("192.0.2.1"), addr("192.0.2.2")
	group, odd := addr("239.1.2.3"), addr("192.0.2.3")
	s := newScript("192.0.2.1")
	s.groups = map[netip.Addr]bool{group: true, odd: true}
	o, told := localOf(-1)
	watchScript(t, s, o)
	groups := xdp.Local{group: {1, 0, 0x5e, 1, 2, 3}}
	want := xdp.Local{a: ourMAC, group: groups[group]}
	if got := <-told; !maps.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	now := func(own ...string) {
		s.own(own...)
		s.news <- news(unix.RTM_NEWADDR)
	}
	now("192.0.2.1", "192.0.2.2")
	become(t, told, xdp.Local{a: ourMAC, b: ourMAC, group: groups[group]})
	s.set(func(s *script) { s.groups, s.unread = nil, unix.ENOMEM }) // those of before stand
	now("192.0.2.2")
	become(t, told, xdp.Local{b: ourMAC, group: groups[group]})
	s.set(func(s *script) { s.unread = nil })
	now("192.0.2.2") // nothing new but the groups
	become(t, told, xdp.Local{b: ourMAC})
	s.fail <- errors.New("deaf")
	become(t, told, xdp.Local{})
}

// TestLocalAgain: what is local comes again, though nothing changes, until it is taken.
func TestLocalAgain(t *testing.T) {
	t.Parallel()
	told := make(chan bool, 100)
	times := 0
	watchScript(t, newScript(), WatchOptions{Poll: time.Millisecond, OnLocal: func(xdp.Local) bool {
		times++
		told <- times == 3
		return times == 3
	}})
	for end := time.After(time.Minute); ; {
		select {
		case taken := <-told:
			if taken {
				return
			}
		case <-end:
			t.Fatal("it did not come again")
		}
	}
}

// TestLocalFollowed: addresses of either family, the hardware address and the groups of a real
// interface are followed until it is gone.
func TestLocalFollowed(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	o, told := localOf(5 * time.Millisecond)
	watchEnd(t, p.A, o)
	mac, all := [6]byte(p.A.MAC), netip.MustParseAddr("224.0.0.1")
	want := xdp.Local{p.A.Addr: mac, all: {1, 0, 0x5e, 0, 0, 1}}
	become(t, told, want)
	more := netip.MustParseAddr("198.51.100.1")
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: more.AsSlice(), Mask: net.CIDRMask(28, 32)}}
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.AddrAdd(l, addr) }))
	want[more] = mac
	become(t, told, want)
	group := netip.MustParseAddr("239.1.130.3")
	member := xdptest.Member(t, p.A, netip.AddrPortFrom(group, 0))
	want[group] = [6]byte{1, 0, 0x5e, 1, 130, 3}
	become(t, told, want)
	must(t, member.Close())
	delete(want, group)
	become(t, told, want)
	mac = [6]byte{2, 0, 0, 0, 0, 5}
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac[:]) }))
	want[more], want[p.A.Addr] = mac, mac
	become(t, told, want)
	must(t, p.A.Change(func(l netlink.Link) error { return netlink.AddrDel(l, addr) }))
	delete(want, more)
	become(t, told, want)
	must(t, p.A.Remove())
	become(t, told, xdp.Local{})
}
