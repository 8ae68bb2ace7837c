package udp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/udp"
)

// serve runs a device process's server on an end, at path, until stop is called.
func serve(t *testing.T, e *veth.End, path string) (stop func()) {
	t.Helper()
	table := xdptest.Have(e, func() (*netif.Table, error) {
		return netif.OpenTable(e.Index, netif.TableOptions{})
	}).In(t)
	s := xdptest.Have(e, func() (*device.Server, error) {
		return device.NewServer(t.Context(), device.Config{Interface: e.Name, Resolver: table})
	}).Where(t, "xdp")
	l := shmtest.Have(device.Listen(path)).In(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l.UnixListener) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		must(t, errors.Join(s.Close(), l.Close(), table.Close()))
	}
}

// openDevice opens a stack on the interface of a device process for the time of the test.
func openDevice(t *testing.T, path string) *udp.Stack {
	t.Helper()
	return shmtest.Have(udp.OpenDevice(t.Context(), path, device.Request{}, udp.StackOptions{})).In(t)
}

func socketPath(t *testing.T) string {
	dir := shmtest.Got(os.MkdirTemp("", "udp")).Or(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// TestParityDevice compares with kernel sockets where a device process has the interface.
func TestParityDevice(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	defer serve(t, p.B, path)()
	s := openDevice(t, path)
	kernel := kernelHosts{p}
	runParity(t, kernel, mixed{kernel, 1, s})
	taken := listen(t, s, p.B.Addr, 7)
	other := openDevice(t, path)
	var op *net.OpError
	_, err := other.Listen(addrPort(taken))
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) {
		t.Errorf("a port of another application: %v", err)
	}
}

// TestWriteThenClose: what was written before Close leaves all the same.
func TestWriteThenClose(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	defer serve(t, p.B, path)()
	s := openDevice(t, path)
	k := xdptest.UDP(t, p.A, 0)
	for range 10 {
		c := listen(t, s, p.B.Addr, 7)
		for range 20 {
			shmtest.Got(c.WriteTo([]byte("last words"), k.LocalAddr())).Or(t)
		}
		must(t, c.Close())
		for range 20 {
			_, _, err := k.ReadFrom(make([]byte, 32))
			must(t, err)
		}
	}
}

// TestDeviceComesBack: a connection outlives the device process.
func TestDeviceComesBack(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	path := socketPath(t)
	stop := serve(t, p.B, path)
	s := openDevice(t, path)
	c := listen(t, s, p.B.Addr, 7)
	go func() { // until it is closed
		buf := make([]byte, 100)
		for {
			n, from, err := c.ReadFrom(buf)
			if err == nil {
				_, err = c.WriteTo(buf[:n], from)
			}
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
				return
			}
		}
	}()
	k := xdptest.UDP(t, p.A, 0)
	echo := func() bool {
		shmtest.Got(k.WriteTo([]byte("there"), c.LocalAddr())).Or(t)
		must(t, k.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, _, err := k.ReadFrom(make([]byte, 100))
		return err == nil
	}
	await(t, echo)
	for range 2 {
		stop()
		// Nobody is there, and a write is as one on a wire that is cut.
		shmtest.Got(c.WriteTo([]byte("void"), k.LocalAddr())).Or(t)
		stop = serve(t, p.B, path)
		await(t, echo)
	}
	stop()
}

// TestUnknownNeighbour: the first datagrams wait for the kernel to find the next hop, and a program
// does not notice but for the time.
func TestUnknownNeighbour(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	xdptest.Forget(t, p.A)
	xdptest.Forget(t, p.B)
	k := xdptest.UDP(t, p.B, 0)
	c := listen(t, openOn(t, p.A, udp.Options{}), p.A.Addr, 0)
	for i := range 20 {
		shmtest.Got(c.WriteTo([]byte{byte(i)}, k.LocalAddr())).Or(t)
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
	d := shmtest.Got(s.Dial(netip.AddrPortFrom(p.A.Addr, 0), silent)).Or(t)
	await(t, func() bool {
		_, err := d.Write([]byte("x"))
		return errors.Is(err, syscall.EHOSTUNREACH)
	})
}

// TestIPv6: both ways, to the byte that still fits; and one connection for both families.
func TestIPv6(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	six := netip.MustParseAddr("2001:db8::1")
	peer := six.Next()
	xdptest.AddIPv6(t, p, six, peer)
	s := openOn(t, p.A, udp.Options{})
	k := xdptest.UDPOn(t, p.B, netip.AddrPortFrom(peer, 0))
	c := listen(t, s, six, 0)
	must(t, c.SetDeadline(time.Now().Add(long)))
	const most = 1500 - 48
	payload := bytes.Repeat([]byte("six"), most)[:most+1]
	if _, err := c.WriteTo(payload, k.LocalAddr()); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("beyond the MTU: %v", err)
	}
	buf := make([]byte, 2048)
	for _, n := range []int{0, 1, most} {
		shmtest.Got(c.WriteTo(payload[:n], k.LocalAddr())).Or(t)
		got, from, err := k.ReadFrom(buf)
		if err != nil || !bytes.Equal(buf[:got], payload[:n]) ||
			from.String() != c.LocalAddr().String() {
			t.Fatalf("%d bytes from %v, %v", got, from, err)
		}
		shmtest.Got(k.WriteTo(buf[:got], from)).Or(t)
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
		k := xdptest.UDPOn(t, p.B, netip.AddrPortFrom(map[bool]netip.Addr{true: peer,
			false: p.B.Addr}[to.Is6()], 0))
		shmtest.Got(k.WriteTo([]byte("any"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port)))).Or(t)
		n, from, err := both.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "any" || from.String() != k.LocalAddr().String() {
			t.Fatalf("%q from %v, %v", buf[:n], from, err)
		}
		shmtest.Got(both.WriteTo(buf[:n], from)).Or(t)
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
	k := xdptest.UDPOn(t, p.B, netip.AddrPortFrom(b, 0))
	must(t, c.SetDeadline(time.Now().Add(long)))
	to := netip.AddrPortFrom(b.WithZone(p.A.Name), k.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	shmtest.Got(c.WriteToUDPAddrPort([]byte("near"), to)).Or(t)
	buf := make([]byte, 8)
	n, from, err := k.ReadFrom(buf)
	must(t, err)
	shmtest.Got(k.WriteTo(buf[:n], from)).Or(t)
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
		s := openOn(t, p.A, udp.Options{})
		var wg sync.WaitGroup
		for range 3 {
			c := listen(t, s, p.A.Addr, 0)
			for range 2 {
				for _, use := range []func(b []byte) error{
					func(b []byte) error { _, err := c.WriteToUDPAddrPort(b, to); return err },
					func(b []byte) error { _, _, err := c.ReadFromUDPAddrPort(b); return err },
				} {
					wg.Go(func() {
						var err error
						for b := make([]byte, 100); err == nil; {
							err = use(b)
						}
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
					})
				}
			}
		}
		time.Sleep(5 * time.Millisecond)
		must(t, s.Close())
		wg.Wait()
	}
}

var (
	macA = [6]byte{2, 0, 0, 0, 0, 1}
	macB = [6]byte{2, 0, 0, 0, 0, 2}
)

// onSim returns an endpoint on a simulated socket as a backend.
func onSim(t testing.TB, name string, way endpoint.Static) (udp.Backend, *xskernel.Kernel,
	*endpoint.Endpoint) {
	t.Helper()
	socket, kernel := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 1024},
		xdptest.SimOptions{Name: name})
	q := shmtest.Got(cq.Create(cq.Unnamed(name), cq.Options{Wait: cq.WaitNone})).Or(t)
	w := shmtest.Got(q.Writer()).Or(t)
	e := shmtest.Got(endpoint.Open(endpoint.Config{Socket: socket, Receive: w, Resolver: way})).Or(t)
	b := shmtest.Got(udp.OnEndpoint(e, q)).Or(t)
	t.Cleanup(func() {
		must(t, w.Close())
		must(t, q.Close())
	})
	return b, kernel, e
}

// newSims returns two hosts that are joined by simulated devices.
func newSims(t testing.TB, o udp.StackOptions) (s stacks, es [2]*endpoint.Endpoint) {
	t.Helper()
	hop := func(local, next [6]byte, source netip.Addr) xdp.Hop {
		return xdp.Hop{LocalMAC: local, NextMAC: next, Source: source, MTU: 1500}
	}
	ba, ka, ea := onSim(t, "a", endpoint.Static{addrB: hop(macA, macB, addrA)})
	bb, kb, eb := onSim(t, "b", endpoint.Static{addrA: hop(macB, macA, addrB)})
	xskernel.Connect(ka, kb)
	for i, b := range []udp.Backend{ba, bb} {
		st := shmtest.Got(udp.NewStack(o, b)).Or(t)
		s[i], es[i] = st, []*endpoint.Endpoint{ea, eb}[i]
		t.Cleanup(func() {
			must(t, st.Close())
			if f := es[i].Stats().Frames; f.Sum() != f.Frames || f.Loaned != 0 {
				t.Errorf("frames: %+v", f)
			}
		})
	}
	return s, es
}

// TestUnsent: what the kernel does not take at once, for want of memory or of room in the device,
// is sent when it does, though nobody writes or reads any more; and a write that waits for a frame
// goes on then.
func TestUnsent(t *testing.T) {
	t.Parallel()
	for _, writes := range []int{1, 300} { // 256 frames send
		b, k, _ := onSim(t, "a", endpoint.Static{addrB: {LocalMAC: macA, NextMAC: macB,
			Source: addrA, MTU: 1500}})
		s := shmtest.Got(udp.NewStack(udp.StackOptions{}, b)).Or(t)
		t.Cleanup(func() { must(t, s.Close()) })
		c := listen(t, s, addrA, 1000)
		must(t, c.SetWriteDeadline(time.Now().Add(long)))
		for range writes + 8 { // more than those who write and read make
			k.FailKicks(syscall.ENOBUFS)
		}
		for range writes {
			shmtest.Got(c.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(addrB, 1))).Or(t)
		}
		sent := 0
		await(t, func() bool { sent += len(k.TakeSent()); return sent == writes })
	}
}

// TestParitySim compares with sockets of the kernel over a simulated device.
func TestParitySim(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	s, _ := newSims(t, udp.StackOptions{})
	runParity(t, loopback{}, s)
}

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
	if n != 0 && !shmtest.Race {
		t.Errorf("%v allocations for a datagram", n)
	}
}
