package udp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
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
	"github.com/shmring/shmring/xdp/udp"
)

// openOn opens a stack on an end of a pair for the time of the test.
func openOn(t testing.TB, e *veth.End, o udp.Options) *udp.Stack {
	t.Helper()
	return xdptest.Have(e, func() (*udp.Stack, error) {
		return udp.Open(t.Context(), e.Name, o)
	}).Where(t, "xdp")
}

// kernelHosts are the two ends of a pair with sockets of the kernel.
type kernelHosts struct{ *veth.Pair }

func (k kernelHosts) end(host int) *veth.End { return []*veth.End{k.A, k.B}[host] }

func (k kernelHosts) addr(host int) netip.Addr { return k.end(host).Addr }

func (k kernelHosts) listen(t testing.TB, host int, local netip.AddrPort) socket {
	t.Helper()
	return xdptest.Have(k.end(host), func() (socket, error) { return loopback{}.open(local) }).In(t)
}

func (k kernelHosts) dial(t testing.TB, host int, local, remote netip.AddrPort) socket {
	t.Helper()
	return xdptest.Have(k.end(host), func() (socket, error) {
		return net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
	}).In(t)
}

// mixed has a stack on one of the ends and sockets of the kernel on the other.
type mixed struct {
	kernelHosts
	ours int // the host
	s    *udp.Stack
}

func (m mixed) stack() stacks { return stacks{m.s, m.s} }

func (m mixed) listen(t testing.TB, host int, local netip.AddrPort) socket {
	if host == m.ours {
		return m.stack().listen(t, host, local)
	}
	return m.kernelHosts.listen(t, host, local)
}

func (m mixed) dial(t testing.TB, host int, local, remote netip.AddrPort) socket {
	if host == m.ours {
		return m.stack().dial(t, host, local, remote)
	}
	return m.kernelHosts.dial(t, host, local, remote)
}

// TestParity compares, over a veth pair, with kernel sockets on both ends: this package on one end,
// on the other, and on both.
func TestParity(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	kernel := kernelHosts{p}
	t.Run("sender", func(t *testing.T) {
		runParity(t, kernel, mixed{kernel, 0, openOn(t, p.A, udp.Options{})})
	})
	t.Run("receiver", func(t *testing.T) {
		runParity(t, kernel, mixed{kernel, 1, openOn(t, p.B, udp.Options{})})
	})
	t.Run("both", func(t *testing.T) {
		runParity(t, kernel, stacks{openOn(t, p.A, udp.Options{}), openOn(t, p.B, udp.Options{})})
	})
}

// TestListen does it all in one call, either of two, and leaves the interface as it was.
func TestListen(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	peer := xdptest.UDP(t, p.A, 0)
	at := netip.AddrPortFrom(p.B.Addr, 5353)
	for _, open := range []func() (*udp.Conn, error){
		func() (*udp.Conn, error) { return udp.Listen(t.Context(), p.B.Name, at, udp.Options{}) },
		func() (*udp.Conn, error) {
			to := peer.LocalAddr().(*net.UDPAddr).AddrPort()
			return udp.Dial(t.Context(), p.B.Name, at, to, udp.Options{})
		},
	} {
		c := xdptest.Have(p.B, open).Where(t, "xdp")
		var err error
		if c.RemoteAddr() != nil { // others do not reach it
			shmtest.Got(xdptest.UDP(t, p.A, 0).WriteTo([]byte("pong"), c.LocalAddr())).Or(t)
		}
		shmtest.Got(peer.WriteTo([]byte("ping"), c.LocalAddr())).Or(t)
		must(t, c.SetDeadline(time.Now().Add(long)))
		buf := make([]byte, 16)
		n, from, err := c.ReadFrom(buf)
		must(t, err)
		if c.RemoteAddr() != nil {
			_, err = c.Write(buf[:n])
		} else {
			_, err = c.WriteTo(buf[:n], from)
		}
		must(t, err)
		n, _, err = peer.ReadFrom(buf)
		if err != nil || string(buf[:n]) != "ping" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		must(t, c.Close())
		// The port is the kernel's again.
		k := xdptest.UDP(t, p.B, 5353)
		shmtest.Got(peer.WriteTo([]byte("kernel"), k.LocalAddr())).Or(t)
		if n, _, err := k.ReadFrom(buf); err != nil || string(buf[:n]) != "kernel" {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		must(t, k.Close())
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	s := openOn(t, p.B, udp.Options{})
	open := func(ifname string) error {
		return p.B.Do(func() error {
			s, err := udp.Open(t.Context(), ifname, udp.Options{})
			if err == nil {
				s.Close()
			}
			return err
		})
	}
	if err := open(p.B.Name); !errors.Is(err, xdp.ErrProgramAttached) {
		t.Errorf("a second stack: %v", err)
	}
	if err := open("none"); !errors.Is(err, xdp.ErrNoDevice) {
		t.Errorf("no interface: %v", err)
	}
	if err := open("lo"); !errors.Is(err, udp.ErrOptions) {
		t.Errorf("loopback: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	xdptest.Do(t, p.A, func() error {
		s, err := udp.Open(ctx, p.A.Name, udp.Options{})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("context: %v, %v", s, err)
		}
		return nil
	})
	// What the kernel has we do not get, and the other way round.
	k := xdptest.UDP(t, p.B, 0)
	var op *net.OpError
	_, err := s.Listen(k.LocalAddr().(*net.UDPAddr).AddrPort())
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &op) || op.Op != "listen" {
		t.Errorf("in use: %v", err)
	}
	c := listen(t, s, p.B.Addr, 0)
	xdptest.Do(t, p.B, func() error {
		if k, err := net.ListenUDP("udp", c.LocalAddr().(*net.UDPAddr)); !errors.Is(err,
			syscall.EADDRINUSE) {
			t.Errorf("the kernel gives our port away: %v, %v", k, err)
		}
		return nil
	})
	if _, err := s.Listen(netip.MustParseAddrPort("198.51.100.1:7")); !errors.Is(err,
		syscall.EADDRNOTAVAIL) {
		t.Errorf("foreign address: %v", err)
	}
}

// TestQueues: datagrams of all queues come together, and what is sent to one peer stays in order.
func TestQueues(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{Queues: 2})
	a, b := openOn(t, p.A, udp.Options{}), openOn(t, p.B, udp.Options{})
	to := listen(t, b, p.B.Addr, 0)
	must(t, to.SetReadDeadline(time.Now().Add(long)))
	const socks, each = 8, 50
	for i := range each {
		for range socks {
			from := listen(t, a, p.A.Addr, 0)
			shmtest.Got(from.WriteToUDPAddrPort([]byte{byte(i)}, addrPort(to))).Or(t)
			must(t, from.Close())
		}
		for range socks {
			buf := make([]byte, 8)
			n, _, err := to.ReadFromUDPAddrPort(buf)
			if err != nil || n != 1 || int(buf[0]) != i {
				t.Fatal(n, buf, err)
			}
		}
	}
}

// TestSomeQueues: a stack on some of the queues gets what arrives on these. The program counts the
// rest of what is for its connections, which is the kernel's.
func TestSomeQueues(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{Queues: 2})
	prog := xdptest.Attach(t, p.B, xdp.ProgramOptions{})
	s := openOn(t, p.B, udp.Options{Queues: []uint32{1}, Program: prog})
	c := listen(t, s, p.B.Addr, 7)
	var counts xdp.Counters
	await(t, func() bool { // each sender's datagrams arrive on the same queue
		k := xdptest.UDP(t, p.A, 0)
		shmtest.Got(k.WriteTo([]byte("x"), c.LocalAddr())).Or(t)
		counts = shmtest.Got(prog.Counters()).Or(t)
		return counts.Redirected > 0 && counts.NoSocket > 0
	})
	must(t, c.SetReadDeadline(time.Now().Add(long)))
	for range counts.Redirected {
		reads(t, c, 'x')
	}
}

// TestRemoved: a reader learns that its device is gone.
func TestRemoved(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	s := openOn(t, p.B, udp.Options{})
	c := listen(t, s, p.B.Addr, 0)
	done := make(chan error)
	go func() {
		_, _, err := c.ReadFrom(make([]byte, 8))
		done <- err
	}()
	must(t, p.A.Remove())
	select {
	case err := <-done:
		if !errors.Is(err, syscall.ENXIO) && !errors.Is(err, xdp.ErrDeviceGone) {
			t.Error(err)
		}
	case <-time.After(long):
		t.Fatal("the reader sleeps on")
	}
	if _, err := s.Listen(netip.AddrPortFrom(p.B.Addr, 0)); err == nil {
		t.Error("a connection on a device that is gone")
	}
}

// TestManyGroups: somebody who joins more groups on the interface than the program has room for
// does not keep connections from what is for the interface's own address.
func TestManyGroups(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	xdptest.Do(t, p.B, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/igmp_max_memberships", []byte("1050"), 0)
	})
	for i := range 4 {
		raw := shmtest.Got(xdptest.UDP(t, p.B, 0).SyscallConn()).Or(t)
		must(t, raw.Control(func(fd uintptr) {
			for k := range 1050 {
				must(t, unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
					&unix.IPMreqn{Ifindex: int32(p.B.Index),
						Multiaddr: [4]byte{239, byte(i), byte(k >> 8), byte(k)}}))
			}
		}))
	}
	c := listen(t, openOn(t, p.B, udp.Options{}), netip.IPv4Unspecified(), 5000)
	must(t, c.SetReadDeadline(time.Now().Add(long)))
	shmtest.Got(xdptest.UDP(t, p.A, 0).WriteTo([]byte("x"), net.UDPAddrFromAddrPort(
		netip.AddrPortFrom(p.B.Addr, 5000)))).Or(t)
	reads(t, c, 'x')
}

// TestMTU: one datagram is one packet, or none, also when the MTU has changed. Who comes after that
// knows at once.
func TestMTU(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for name, on := range map[string]func(t *testing.T, e *veth.End) (open func() *udp.Stack){
		"linked in": func(t *testing.T, e *veth.End) func() *udp.Stack {
			s := openOn(t, e, udp.Options{})
			return func() *udp.Stack { return s }
		},
		"device process": func(t *testing.T, e *veth.End) func() *udp.Stack {
			path := socketPath(t)
			t.Cleanup(serve(t, e, path))
			return func() *udp.Stack { return openDevice(t, path) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := xdptest.NewPair(t, veth.Config{MTU: 1400})
			k := xdptest.UDP(t, p.B, 0)
			open := on(t, p.A)
			c := listen(t, open(), p.A.Addr, 9)
			const most = 1400 - 28
			payload := make([]byte, most+1)
			for i := range payload {
				payload[i] = byte(rand.Uint32())
			}
			var op *net.OpError
			_, err := c.WriteTo(payload, k.LocalAddr())
			if !errors.Is(err, syscall.EMSGSIZE) || !errors.As(err, &op) || op.Op != "write" {
				t.Errorf("beyond the MTU: %v", err)
			}
			shmtest.Got(c.WriteTo(payload[:most], k.LocalAddr())).Or(t)
			buf := make([]byte, 2000)
			n, _, err := k.ReadFrom(buf)
			if err != nil || !bytes.Equal(buf[:n], payload[:most]) {
				t.Errorf("%d, %v", n, err)
			}
			must(t, p.A.Change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }))
			await(t, func() bool {
				_, err := c.WriteTo(payload[:1300-28+1], k.LocalAddr())
				return errors.Is(err, syscall.EMSGSIZE)
			})
			shmtest.Got(c.WriteTo(payload[:1300-28], k.LocalAddr())).Or(t)
			_, err = listen(t, open(), p.A.Addr, 10).WriteTo(payload[:1300-28+1], k.LocalAddr())
			if !errors.Is(err, syscall.EMSGSIZE) {
				t.Errorf("who came later: %v", err)
			}
		})
	}
}

// TestToGroup: a group can be sent to, also before any neighbour is known.
func TestToGroup(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{})
	group := netip.MustParseAddrPort("239.1.2.3:5353")
	k := xdptest.Member(t, p.B, group)
	c := listen(t, openOn(t, p.A, udp.Options{}), p.A.Addr, 0)
	shmtest.Got(c.WriteToUDPAddrPort([]byte("all"), group)).Or(t)
	buf := make([]byte, 8)
	n, from, err := k.ReadFrom(buf)
	if err != nil || string(buf[:n]) != "all" || from.String() != c.LocalAddr().String() {
		t.Fatalf("%q from %v, %v", buf[:n], from, err)
	}
}

// texts are the datagrams of a connection before the one that says "end".
func texts(t *testing.T, c *udp.Conn) map[string]bool {
	t.Helper()
	got, buf := map[string]bool{}, make([]byte, 100)
	must(t, c.SetReadDeadline(time.Now().Add(long)))
	for {
		n, _, err := c.ReadFromUDPAddrPort(buf)
		must(t, err)
		if string(buf[:n]) == "end" {
			return got
		}
		got[string(buf[:n])] = true
	}
}

// TestWhoseDatagrams: a connection on no address gets what is for the interface itself, and one on
// an address what is untagged and for that. Options.Any takes what comes for the port.
func TestWhoseDatagrams(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	six := netip.MustParseAddr("fd00::2")
	xdptest.AddIPv6(t, p, netip.MustParseAddr("fd00::1"), six)
	w, own := xdptest.NewRaw(t, p), [6]byte(p.B.MAC)
	other := [6]byte{2, 9, 9, 9, 9, 9}
	v4, v6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	vlan := []packet.Tag{{TCI: 7}}
	frames := []struct {
		name string
		mac  [6]byte
		to   netip.Addr
		tags []packet.Tag
		// Who gets it: a connection on 0.0.0.0, on ::, and on the address itself.
		four, both, exact bool
	}{
		{"own", own, p.B.Addr, nil, true, true, true},
		{"own priority", own, p.B.Addr, []packet.Tag{{TCI: 0xe000}}, true, true, true},
		{"own v6", own, six, nil, false, true, false},
		{"transit", own, netip.MustParseAddr("203.0.113.1"), nil, false, false, false},
		{"transit v6", own, netip.MustParseAddr("fd00:1::9"), nil, false, false, false},
		{"VLAN", own, p.B.Addr, vlan, false, false, false},
		{"VLAN v6", own, six, vlan, false, false, false},
		{"other host's", other, p.B.Addr, nil, false, false, true},
		{"other host's v6", other, six, nil, false, false, false},
		{"unjoined", [6]byte{1, 0, 0x5e, 1, 2, 4}, netip.MustParseAddr("239.1.2.4"), nil, false, false,
			false},
	}
	for _, every := range []bool{false, true} {
		for i, local := range []netip.Addr{v4, v6, p.B.Addr} {
			t.Run(fmt.Sprintf("any=%v %v", every, local), func(t *testing.T) {
				s := openOn(t, p.B, udp.Options{Any: every})
				c := listen(t, s, local, 5000)
				if local == v6 { // from when on the address may be used is the kernel's affair
					await(t, func() bool {
						w.Send(w.Frame(own, netip.AddrPortFrom(six, 5000), nil, "known"))
						must(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
						_, _, err := c.ReadFrom(make([]byte, 8))
						return err == nil
					})
				}
				want := map[string]bool{}
				for _, f := range frames {
					mine := []bool{f.four, f.both, f.exact}[i]
					if every {
						mine = local == v6 || local == v4 && f.to.Is4() || local == f.to
					}
					if mine {
						want[f.name] = true
					}
					w.Send(w.Frame(f.mac, netip.AddrPortFrom(f.to, 5000), f.tags, f.name))
				}
				w.Send(w.Frame(own, netip.AddrPortFrom(p.B.Addr, 5000), nil, "end"))
				got := texts(t, c)
				delete(got, "known")
				if !maps.Equal(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				must(t, c.Close())
			})
		}
	}
}

// TestAddressesFollowed: a connection on no address gets what is for an address that came after it,
// and no more once the address is gone.
func TestAddressesFollowed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	p := xdptest.NewPair(t, veth.Config{})
	w, own := xdptest.NewRaw(t, p), [6]byte(p.B.MAC)
	c := listen(t, openOn(t, p.B, udp.Options{}), netip.IPv4Unspecified(), 5000)
	late := shmtest.Got(netlink.ParseAddr("198.51.100.2/32")).Or(t)
	comes := func() bool {
		w.Send(w.Frame(own, netip.MustParseAddrPort("198.51.100.2:5000"), nil, "late"))
		w.Send(w.Frame(own, netip.AddrPortFrom(p.B.Addr, 5000), nil, "end"))
		return texts(t, c)["late"]
	}
	if comes() {
		t.Error("before the address is there")
	}
	change := func(f func(netlink.Link, *netlink.Addr) error) {
		t.Helper()
		must(t, p.B.Change(func(l netlink.Link) error { return f(l, late) }))
	}
	change(netlink.AddrAdd)
	await(t, comes)
	change(netlink.AddrDel)
	await(t, func() bool { return !comes() })
}

// BenchmarkEcho is a datagram there and back, blocking on both ends.
func BenchmarkEcho(b *testing.B) {
	for _, c := range []struct {
		name string
		ours [2]bool
	}{{"kernel", [2]bool{}}, {"server", [2]bool{false, true}}, {"both", [2]bool{true, true}}} {
		b.Run(c.name, func(b *testing.B) {
			client, server := benchPair(b, c.ours)
			to := server.LocalAddr()
			go func() {
				buf := make([]byte, 2048)
				for {
					n, from, err := server.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					_, _ = server.WriteToUDPAddrPort(buf[:n], from)
				}
			}()
			buf := make([]byte, 2048)
			for b.Loop() {
				if _, err := client.WriteTo(buf[:64], to); err != nil {
					b.Fatal(err)
				}
				if _, _, err := client.ReadFromUDPAddrPort(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrite is a datagram to a peer that nobody reads at.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name string
		ours [2]bool
	}{{"kernel", [2]bool{}}, {"ours", [2]bool{true, false}}} {
		b.Run(c.name, func(b *testing.B) {
			client, server := benchPair(b, c.ours)
			to := server.LocalAddr()
			buf := make([]byte, 64)
			for b.Loop() {
				if _, err := client.WriteTo(buf, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchPair(b *testing.B, ours [2]bool) (client, server socket) {
	b.Helper()
	p := xdptest.NewPair(b, veth.Config{})
	out := [2]socket{}
	for i, e := range []*veth.End{p.A, p.B} {
		if ours[i] {
			out[i] = listen(b, openOn(b, e, udp.Options{}), e.Addr, 7)
		} else {
			out[i] = kernelHosts{p}.listen(b, i, netip.AddrPortFrom(e.Addr, 7))
		}
	}
	return out[0], out[1]
}
