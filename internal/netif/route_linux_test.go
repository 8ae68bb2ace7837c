package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

func addRoute(t testing.TB, e *veth.End, r netlink.Route) {
	t.Helper()
	xdptest.Do(t, e, func() error { return netlink.RouteReplace(&r) })
}

// TestGateway: the next hop of what is not on the link is the gateway, and follows the routes.
func TestGateway(t *testing.T) {
	t.Parallel()
	p := forgetful(t)
	table := openTable(t, p.A, TableOptions{})
	dst := addr("198.51.100.7")
	if _, err := resolve(t, table, dst); !errors.Is(err, ErrNoRoute) ||
		!errors.Is(err, syscall.ENETUNREACH) || !errors.Is(err, packet.ErrUnreachable) ||
		errors.Is(err, syscall.EHOSTUNREACH) {
		t.Fatal(err)
	}
	addRoute(t, p.A, netlink.Route{LinkIndex: p.A.Index, Dst: network("198.51.100.0/24"),
		Gw: p.B.Addr.AsSlice()})
	await(t, table, dst, "by the gateway", func(h xdp.Hop, err error) bool {
		return err == nil && h.NextMAC == [6]byte(p.B.MAC) && h.Source == p.A.Addr
	})
	// On the link now, where nobody has it but by word of us.
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	addRoute(t, p.A, netlink.Route{LinkIndex: p.A.Index, Dst: network("198.51.100.0/24"),
		Scope: netlink.SCOPE_LINK})
	xdptest.Do(t, p.A, func() error {
		return netlink.NeighSet(neigh(p.A, dst, mac, netlink.NUD_PERMANENT))
	})
	await(t, table, dst, "on the link", func(h xdp.Hop, err error) bool {
		return err == nil && h.NextMAC == [6]byte(mac)
	})
	xdptest.Do(t, p.A, func() error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: p.A.Index,
			Dst: network("198.51.100.0/24"), Scope: netlink.SCOPE_LINK})
	})
	await(t, table, dst, "no more", func(_ xdp.Hop, err error) bool {
		return errors.Is(err, ErrNoRoute)
	})
}

// TestSixForFour: the gateway of an IPv4 route may have an IPv6 address.
func TestSixForFour(t *testing.T) {
	t.Parallel()
	p := forgetful(t)
	xdptest.AddIPv6(t, p, addr("2001:db8::1"), addr("2001:db8::2"))
	addRoute(t, p.A, netlink.Route{LinkIndex: p.A.Index, Dst: network("198.51.100.0/24"),
		Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("2001:db8::2")}})
	hop := mustResolve(t, openTable(t, p.A, TableOptions{}), addr("198.51.100.7"))
	if hop.NextMAC != [6]byte(p.B.MAC) || hop.Source != p.A.Addr {
		t.Errorf("%+v", hop)
	}
}

// TestIPv6: neighbour discovery, link-local destinations with and without zone, and groups.
func TestIPv6(t *testing.T) {
	t.Parallel()
	p := forgetful(t)
	xdptest.AddIPv6(t, p, addr("2001:db8::1"), addr("2001:db8::2"))
	xdptest.AddIPv6(t, p, addr("fe80::1"), addr("fe80::2"))
	table := openTable(t, p.A, TableOptions{})
	for dst, source := range map[string]string{"2001:db8::2": "2001:db8::1", "fe80::2": "fe80::1",
		"fe80::2%" + p.A.Name: "fe80::1"} {
		hop := mustResolve(t, table, addr(dst))
		if hop.NextMAC != [6]byte(p.B.MAC) || hop.MTU != 1500 {
			t.Errorf("%s: %+v", dst, hop)
		}
		if hop.Source != addr(source) && !strings.HasPrefix(source, "fe80") {
			t.Errorf("%s: %+v", dst, hop)
		}
	}
	if _, err := table.Lookup(addr("fe80::2%lo")); !errors.Is(err, ErrWrongInterface) {
		t.Error(err)
	}
	hop := mustResolve(t, table, addr("ff02::1:ff00:7"))
	if hop.NextMAC != [6]byte{0x33, 0x33, 0xff, 0, 0, 7} || !hop.Source.Is6() {
		t.Errorf("%+v", hop)
	}
	if _, err := resolve(t, table, addr("2001:db8:1::1")); !errors.Is(err, ErrNoRoute) {
		t.Error(err)
	}
	addRoute(t, p.A, netlink.Route{Dst: network("2001:db8:2::/48"), Type: unix.RTN_BLACKHOLE})
	if _, err := resolve(t, table, addr("2001:db8:2::1")); !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}

// TestSource: the source address is the one that the route prefers, and follows the interface's.
func TestSource(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	mustResolve(t, table, p.B.Addr)
	must(t, p.A.Change(func(l netlink.Link) error {
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: network("192.0.2.50/24")})
	}))
	dst := addr("198.51.100.7")
	addRoute(t, p.A, netlink.Route{LinkIndex: p.A.Index, Dst: network("198.51.100.0/24"),
		Gw: p.B.Addr.AsSlice(), Src: net.IPv4(192, 0, 2, 50)})
	await(t, table, dst, "preferred", func(h xdp.Hop, err error) bool {
		return err == nil && h.Source == addr("192.0.2.50")
	})
	if hop := mustResolve(t, table, p.B.Addr); hop.Source != p.A.Addr {
		t.Errorf("%+v", hop)
	}
	must(t, p.A.Change(func(l netlink.Link) error {
		return netlink.AddrDel(l, &netlink.Addr{IPNet: network("192.0.2.50/24")})
	}))
	await(t, table, dst, "gone with its address", func(h xdp.Hop, err error) bool {
		return h.Source != addr("192.0.2.50")
	})
}

// TestMTU: that of the interface, or the route's if it is smaller.
func TestMTU(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	dst := addr("198.51.100.7")
	addRoute(t, p.A, netlink.Route{LinkIndex: p.A.Index, Dst: network("198.51.100.0/24"),
		Gw: p.B.Addr.AsSlice(), MTU: 1300})
	if hop := mustResolve(t, table, dst); hop.MTU != 1300 {
		t.Errorf("%+v", hop)
	}
	before := mustResolve(t, table, p.B.Addr)
	if before.MTU != 1500 {
		t.Errorf("%+v", before)
	}
	setMTU := func(mtu int) {
		must(t, p.A.Change(func(l netlink.Link) error {
			return netlink.LinkSetMTU(l, mtu)
		}))
	}
	setMTU(1400)
	after := await(t, table, p.B.Addr, "smaller", func(h xdp.Hop, _ error) bool {
		return h.MTU == 1400
	})
	if after.Generation == before.Generation {
		t.Error("the same generation")
	}
	setMTU(1200)
	await(t, table, dst, "smaller than the route's", func(h xdp.Hop, _ error) bool {
		return h.MTU == 1200
	})
}

// TestRefused: routes that refuse, and routes that leave elsewhere.
func TestRefused(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	for prefix, c := range map[string]struct {
		kind  int
		errno syscall.Errno
	}{"10.9.0.0/16": {unix.RTN_BLACKHOLE, syscall.EINVAL},
		"10.8.0.0/16": {unix.RTN_UNREACHABLE, syscall.EHOSTUNREACH},
		"10.7.0.0/16": {unix.RTN_PROHIBIT, syscall.EACCES}} {
		addRoute(t, p.A, netlink.Route{Dst: network(prefix), Type: c.kind})
		_, err := resolve(t, table, netip.MustParsePrefix(prefix).Addr().Next())
		if !errors.Is(err, ErrRefused) || !errors.Is(err, c.errno) ||
			!errors.Is(err, packet.ErrUnreachable) {
			t.Errorf("%s: %v", prefix, err)
		}
	}
	addRoute(t, p.A, netlink.Route{LinkIndex: 1, Dst: network("10.6.0.0/16"),
		Scope: netlink.SCOPE_LINK})
	for _, dst := range []netip.Addr{addr("10.6.0.1"), p.A.Addr} {
		_, err := resolve(t, table, dst)
		if !errors.Is(err, ErrWrongInterface) || !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("%v: %v", dst, err)
		}
	}
	for _, dst := range []netip.Addr{{}, addr("0.0.0.0"), addr("::")} {
		if _, err := table.Lookup(dst); !errors.Is(err, ErrAddress) {
			t.Errorf("%v: %v", dst, err)
		}
	}
}

// TestGroups: multicast and broadcast need no neighbour and no route.
func TestGroups(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	all := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for dst, mac := range map[string][6]byte{"224.129.2.3": {1, 0, 0x5e, 1, 2, 3},
		"255.255.255.255": all, "192.0.2.255": all} {
		hop := mustResolve(t, table, addr(dst))
		if hop.NextMAC != mac || hop.Source != p.A.Addr || hop.LocalMAC != [6]byte(p.A.MAC) {
			t.Errorf("%s: %+v", dst, hop)
		}
	}
	if s := table.Stats(); s.Solicits != 0 {
		t.Errorf("%+v", s)
	}
}

// TestInterface: down and up, another hardware address, and the end of it.
func TestInterface(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{})
	mustResolve(t, table, p.B.Addr)
	must(t, p.A.SetUp(false))
	await(t, table, p.B.Addr, "down", func(_ xdp.Hop, err error) bool {
		return err == xdp.ErrLinkDown
	})
	must(t, p.A.SetUp(true))
	await(t, table, p.B.Addr, "up", func(h xdp.Hop, err error) bool {
		return err == nil && h.NextMAC == [6]byte(p.B.MAC)
	})
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 5}
	must(t, p.A.Change(func(l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, mac)
	}))
	await(t, table, p.B.Addr, "another address", func(h xdp.Hop, err error) bool {
		return h.LocalMAC == [6]byte(mac)
	})
	must(t, p.B.Remove())
	await(t, table, p.B.Addr, "removed", func(_ xdp.Hop, err error) bool {
		return errors.Is(err, xdp.ErrDeviceGone)
	})
	if _, err := table.Lookup(addr("192.0.2.33")); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Error(err)
	}
}

// TestOpenAndClose: no such interface, closing twice, and what is asked afterwards.
func TestOpenAndClose(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	xdptest.Do(t, p.A, func() error {
		for _, index := range []int{4711, 0, -1} {
			if _, err := OpenTable(index, TableOptions{}); !errors.Is(err, xdp.ErrNoDevice) {
				t.Errorf("%d: %v", index, err)
			}
		}
		return nil
	})
	goroutines := runtime.NumGoroutine()
	for range 10 {
		if err := openTable(t, p.A, TableOptions{}).Close(); err != nil {
			t.Error(err)
		}
	}
	xdptest.FewerGoroutines(t, goroutines)
	table := openTable(t, p.A, TableOptions{MaxDestinations: 2})
	mustResolve(t, table, p.B.Addr)
	_, _ = table.Lookup(addr("192.0.2.8"))
	if _, err := table.Lookup(addr("192.0.2.9")); !errors.Is(err, ErrFull) ||
		!errors.Is(err, syscall.ENOBUFS) {
		t.Error(err)
	}
	for range 2 {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, dst := range []netip.Addr{p.B.Addr, addr("192.0.2.10")} {
		if _, err := table.Lookup(dst); !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestLookupCost: a lookup of what is known allocates nothing.
func TestLookupCost(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	table := openTable(t, p.A, TableOptions{Attempt: time.Hour, Refresh: time.Hour})
	mustResolve(t, table, p.B.Addr)
	mapped := netip.AddrFrom16(p.B.Addr.As16())
	if n := testing.AllocsPerRun(1000, func() {
		_, _ = table.Lookup(p.B.Addr)
		_, _ = table.Lookup(mapped)
		_ = table.Generation()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

const nobody = 65534

// TestUnprivileged: without CAP_NET_ADMIN the table knows what the kernel knows, and says that it
// may not ask for more.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	p := forgetful(t)
	cmd := shmtest.Child(t, "unprivileged", "IFINDEX="+strconv.Itoa(p.A.Index),
		"DST="+p.B.Addr.String())
	cmd.ExtraFiles = []*os.File{p.A.NetNS(), p.B.NetNS()}
	out, err := cmd.Output()
	if err != nil || string(out) != "done\n" {
		t.Errorf("child: %q, %v", out, err)
	}
}

func unprivilegedChild() {
	if err := unprivileged(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("done")
}

func unprivileged() error {
	runtime.LockOSThread()
	if err := veth.Enter(3); err != nil {
		return err
	}
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	called := func() error { return errors.New("called") }
	if err := InNamespace(4, called); !errors.Is(err, ErrNamespace) || !errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("not allowed into the other namespace: %w", err)
	}
	if err := InNamespace(3, called); err == nil || err.Error() != "called" {
		return fmt.Errorf("in this namespace already: %w", err)
	}
	index, err := strconv.Atoi(os.Getenv("IFINDEX"))
	if err != nil {
		return err
	}
	table, err := OpenTable(index, TableOptions{})
	if err != nil {
		return err
	}
	defer table.Close()
	deadline := time.Now().Add(hang)
	resolve := func(dst netip.Addr) (hop xdp.Hop, err error) {
		for err = packet.ErrResolving; err == packet.ErrResolving; time.Sleep(time.Millisecond) {
			if hop, err = table.Lookup(dst); time.Now().After(deadline) {
				return hop, fmt.Errorf("never: %w", err)
			}
		}
		return hop, err
	}
	dst := netip.MustParseAddr(os.Getenv("DST"))
	_, err = resolve(dst)
	if !errors.Is(err, ErrNotAllowed) || !errors.Is(err, syscall.EPERM) ||
		!errors.Is(err, packet.ErrUnreachable) {
		return fmt.Errorf("not known, and not allowed to ask: %w", err)
	}
	hop, err := resolve(netip.AddrFrom4([4]byte{255, 255, 255, 255}))
	if err != nil || !hop.Source.IsValid() {
		return fmt.Errorf("broadcast: %+v, %w", hop, err)
	}
	// Somebody else makes the kernel find out.
	ping := &syscall.SockaddrInet4{Port: 9, Addr: dst.As4()}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	if err := syscall.Sendto(fd, []byte("x"), 0, ping); err != nil {
		return err
	}
	for {
		hop, err := table.Lookup(dst)
		if err == nil && hop.NextMAC != [6]byte{} {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("known now: %+v, %w", hop, err)
		}
		time.Sleep(time.Millisecond)
	}
}
