package udp_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/udp"
)

// forget takes the permanent neighbours that package veth sets away from both ends.
func forget(t *testing.T, p *veth.Pair) {
	t.Helper()
	for _, e := range []*veth.End{p.A, p.B} {
		xdptest.Do(t, e, func() error {
			ns, err := netlink.NeighList(e.Index, unix.AF_INET)
			for i := range ns {
				err = errors.Join(err, netlink.NeighDel(&ns[i]))
			}
			return err
		})
	}
}

// TestUnknownNeighbour: the first datagrams wait for the kernel to find the next hop, and a program
// does not notice but for the time.
func TestUnknownNeighbour(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	forget(t, p)
	k := kernelHosts{p}.listen(t, 1, netip.AddrPortFrom(p.B.Addr, 0))
	defer k.Close()
	must(t, k.SetDeadline(time.Now().Add(long)))
	c := listen(t, openOn(t, p.A, udp.Options{}), p.A.Addr, 0)
	for i := range 20 {
		_, err := c.WriteTo([]byte{byte(i)}, k.LocalAddr())
		must(t, err)
	}
	buf := make([]byte, 8)
	for i := range 20 {
		n, _, err := k.ReadFrom(buf)
		if err != nil || n != 1 || int(buf[0]) != i {
			t.Fatalf("datagram %d: %v, %v", i, buf[:n], err)
		}
	}
}

// TestNowhere: what has no route is refused at once with the kernel's number; what nobody answers
// for is sent in vain, and a connected socket learns of it in the end.
func TestNowhere(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	xdptest.Do(t, p.A, func() error { // else the kernel takes three seconds to give up
		name := "/proc/sys/net/ipv4/neigh/" + p.A.Name + "/retrans_time_ms"
		return os.WriteFile(name, []byte("20"), 0)
	})
	s := openOn(t, p.A, udp.Options{})
	c := listen(t, s, p.A.Addr, 0)
	await(t, func() bool { // the way is asked for while the first ones wait
		_, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.IPv4(203, 0, 113, 1), Port: 9})
		return errors.Is(err, syscall.ENETUNREACH)
	})
	silent := netip.AddrPortFrom(netip.MustParseAddr("192.0.2.99"), 9)
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		if _, err := c.WriteToUDPAddrPort([]byte("x"), silent); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	d, err := s.Dial(netip.AddrPortFrom(p.A.Addr, 0), silent)
	must(t, err)
	await(t, func() bool {
		_, err := d.Write([]byte("x"))
		return errors.Is(err, syscall.EHOSTUNREACH)
	})
}

// enable6 gives both ends an IPv6 address.
func enable6(t *testing.T, p *veth.Pair) (a, b netip.Addr) {
	t.Helper()
	a, b = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	xdptest.AddIPv6(t, p, a, b)
	return a, b
}

// TestIPv6: both ways, to the byte that still fits; and one connection for both families.
func TestIPv6(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	six, peer := enable6(t, p)
	s := openOn(t, p.A, udp.Options{})
	k := kernelHosts{p}.listen(t, 1, netip.AddrPortFrom(peer, 0))
	defer k.Close()
	c := listen(t, s, six, 0)
	must(t, k.SetDeadline(time.Now().Add(long)))
	must(t, c.SetDeadline(time.Now().Add(long)))
	const most = 1500 - 48
	payload := bytes.Repeat([]byte("six"), most)[:most+1]
	if _, err := c.WriteTo(payload, k.LocalAddr()); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("beyond the MTU: %v", err)
	}
	buf := make([]byte, 2048)
	for _, n := range []int{0, 1, most} {
		_, err := c.WriteTo(payload[:n], k.LocalAddr())
		must(t, err)
		got, from, err := k.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:got], payload[:n]) ||
			from.String() != c.LocalAddr().String() {
			t.Fatalf("%d bytes from %v, %v", got, from, err)
		}
		_, err = k.WriteTo(buf[:got], from)
		must(t, err)
		got, ap, err := c.ReadFromUDPAddrPort(buf)
		if err != nil || !bytes.Equal(buf[:got], payload[:n]) || ap.Addr() != peer {
			t.Fatalf("%d bytes from %v, %v", got, ap, err)
		}
	}
	if _, err := c.WriteTo(payload[:1], net.UDPAddrFromAddrPort(
		netip.AddrPortFrom(p.B.Addr, 9))); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("IPv4 from IPv6: %v", err)
	}
	linkLocal(t, p, s)
	both := listen(t, s, netip.IPv6Unspecified(), 0)
	must(t, both.SetDeadline(time.Now().Add(long)))
	port := addrPort(both).Port()
	for _, to := range []netip.Addr{six, p.A.Addr} {
		k := kernelHosts{p}.listen(t, 1, netip.AddrPortFrom(map[bool]netip.Addr{true: peer,
			false: p.B.Addr}[to.Is6()], 0))
		_, err := k.WriteTo([]byte("any"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))
		must(t, err)
		n, from, err := both.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "any" || from.String() != k.LocalAddr().String() {
			t.Fatalf("%q from %v, %v", buf[:n], from, err)
		}
		_, err = both.WriteTo(buf[:n], from)
		must(t, err)
		must(t, k.SetDeadline(time.Now().Add(long)))
		_, back, err := k.ReadFrom(buf)
		if err != nil || back.String() != netip.AddrPortFrom(to, port).String() {
			t.Fatalf("from %v, %v", back, err)
		}
		must(t, k.Close())
	}
}

// linkLocal sends there and back between addresses that mean something on the link only.
func linkLocal(t *testing.T, p *veth.Pair, s *udp.Stack) {
	t.Helper()
	local := func(e *veth.End) (a netip.Addr) {
		await(t, func() bool { // until nobody objects to it
			xdptest.Do(t, e, func() error {
				l, err := netlink.LinkByName(e.Name)
				if err != nil {
					return err
				}
				addrs, err := netlink.AddrList(l, unix.AF_INET6)
				for _, x := range addrs {
					ip, _ := netip.AddrFromSlice(x.IP)
					if ip.IsLinkLocalUnicast() && x.Flags&unix.IFA_F_TENTATIVE == 0 {
						a = ip.WithZone(e.Name)
					}
				}
				return err
			})
			return a.IsValid()
		})
		return a
	}
	a, b := local(p.A), local(p.B)
	c := listen(t, s, a, 0)
	k := kernelHosts{p}.listen(t, 1, netip.AddrPortFrom(b, 0))
	defer k.Close()
	must(t, k.SetDeadline(time.Now().Add(long)))
	must(t, c.SetDeadline(time.Now().Add(long)))
	to := netip.AddrPortFrom(b.WithZone(p.A.Name), k.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	_, err := c.WriteToUDPAddrPort([]byte("near"), to)
	must(t, err)
	buf := make([]byte, 8)
	n, from, err := k.ReadFrom(buf)
	must(t, err)
	_, err = k.WriteTo(buf[:n], from)
	must(t, err)
	n, back, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != "near" || back != to {
		t.Fatalf("%q from %v, %v", buf[:n], back, err)
	}
}

// TestCloseUnderFire: Close of a stack, with readers and writers at work on all its connections,
// returns, and everybody learns of it.
func TestCloseUnderFire(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	b := openOn(t, p.B, udp.Options{})
	to := addrPort(listen(t, b, p.B.Addr, 0))
	for range 5 {
		var s *udp.Stack
		xdptest.Do(t, p.A, func() (err error) {
			s, err = udp.Open(t.Context(), p.A.Name, udp.Options{})
			return err
		})
		var wg sync.WaitGroup
		for range 3 {
			c := listen(t, s, p.A.Addr, 0)
			for range 2 {
				wg.Go(func() {
					for {
						if _, err := c.WriteToUDPAddrPort(make([]byte, 100), to); err != nil {
							if !errors.Is(err, net.ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
				wg.Go(func() {
					for {
						if _, _, err := c.ReadFromUDPAddrPort(make([]byte, 100)); err != nil {
							if !errors.Is(err, net.ErrClosed) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
		}
		time.Sleep(5 * time.Millisecond)
		must(t, s.Close())
		wg.Wait()
	}
}
