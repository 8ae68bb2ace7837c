package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

const (
	testPort = 4791
	patience = time.Minute
)

// wired is a side on end B of a veth pair, with the kernel's way of finding neighbours.
type wired struct {
	*side
	pair  *veth.Pair
	prog  *xdp.Program
	table *netif.Table
}

func newWired(t testing.TB, mode xdp.AttachMode, change func(c *endpoint.Config)) *wired {
	t.Helper()
	pair := xdptest.NewPair(t, veth.Config{})
	prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{Mode: mode})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 512})
	socket := xdptest.Open(t, pair.B, 0, umem, xdp.Options{})
	must(t, socket.Register(prog, 0))
	xdptest.Steer(t, prog, testPort, 0)
	return wire(t, "wired", pair, prog, socket, testPort, change)
}

// wire opens an endpoint on a socket of end B that packets to the port are steered to.
func wire(t testing.TB, name string, pair *veth.Pair, prog *xdp.Program, socket *xdp.Socket,
	port uint16, change func(c *endpoint.Config)) *wired {
	t.Helper()
	w := &wired{pair: pair, prog: prog, side: &side{name: name}}
	w.table = xdptest.Have(pair.B, func() (*netif.Table, error) {
		return netif.OpenTable(pair.B.Index, netif.TableOptions{Attempt: 100 * time.Millisecond})
	}).In(t)
	w.prepare(t, cq.Options{}, 0)
	w.open(t, endpoint.Config{Socket: socket, Resolver: w.table,
		Local: netip.AddrPortFrom(netip.Addr{}, port)}, // the address is the route's
		func(c *endpoint.Config) {
			if change != nil {
				change(c)
			}
			if c.Watch != nil {
				c.Watch.Program = prog
			}
		})
	return w
}

// kernelSocket opens a UDP socket of the kernel on end A and makes it known.
func (w *wired) kernelSocket(t testing.TB) (*net.UDPConn, cq.Addr) {
	t.Helper()
	c := xdptest.UDP(t, w.pair.A, 0)
	return c, w.know(t, c.LocalAddr().(*net.UDPAddr).AddrPort())
}

// know makes an address known.
func (s *side) know(t testing.TB, a netip.AddrPort) cq.Addr {
	t.Helper()
	as := shmtest.Got(s.av.Insert([][]byte{cq.AppendSockaddr(nil, a)}, cq.InsertOptions{})).Or(t)
	return as[0]
}

func (w *wired) target() *net.UDPAddr {
	return &net.UDPAddr{IP: w.pair.B.Addr.AsSlice(), Port: testPort}
}

// persist repeats what is EAGAIN or waits for the link, driving the endpoint.
func (w *wired) persist(t testing.TB, f func() error) (err error) {
	t.Helper()
	w.await(t, "a post that is accepted", func() bool {
		err = f()
		return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, xdp.ErrLinkDown)
	})
	return err
}

// await drives until ok.
func (w *wired) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	shmtest.Eventually(t, what, func() bool {
		if ok() {
			return true
		}
		shmtest.Got(w.Progress()).Or(t)
		return false
	})
}

// sleeps waits until a Run in another goroutine has nothing to do.
func (w *wired) sleeps(t testing.TB) {
	t.Helper()
	before := w.Stats().Polls
	shmtest.Eventually(t, "sleep", func() bool { return w.Stats().Polls >= before+2 })
}

// TestVethEcho: datagrams of a kernel socket come complete and in order, and it takes the answers,
// whose checksums are right.
func TestVethEcho(t *testing.T) {
	shmtest.Conforms(t)
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			w := newWired(t, mode, nil)
			c, peer := w.kernelSocket(t)
			for i := range 300 {
				w.echo(t, c, peer, testPort, fmt.Sprint("datagram ", i))
			}
			if s := w.Stats(); s.Rings.BadDescriptors != 0 || s.Kernel.TxInvalid != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestVethUnreachable: a neighbour that nobody is, is EAGAIN until the kernel gave up and an error
// entry then, and others are not held up by that.
func TestVethUnreachable(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	w := newWired(t, xdp.AttachNative, nil)
	nobody := netip.MustParseAddrPort("192.0.2.77:9")
	err := w.SendMsg(&endpoint.Msg{Dest: nobody, Context: 1})
	if !errors.Is(err, endpoint.ErrResolving) {
		t.Errorf("at first: %v", err)
	}
	_, peer := w.kernelSocket(t)
	must(t, w.persist(t, func() error { return w.Send([]byte("x"), peer, 2) }))
	must(t, w.persist(t, func() error { return w.SendMsg(&endpoint.Msg{Dest: nobody, Context: 3}) }))
	var e cq.ErrorEntry
	w.await(t, "the error", func() bool {
		_ = w.read(t)
		return w.q.ReadErr(&e) == nil
	})
	if e.Context != 3 || !errors.Is(&e, syscall.EHOSTUNREACH) {
		t.Errorf("%+v", e)
	}
	if n := w.tx.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

// TestVethGroup: the kernel keeps the membership of a group that was joined, its datagrams come,
// and datagrams to it are taken by its members.
func TestVethGroup(t *testing.T) {
	shmtest.Conforms(t)
	events := newEvents(t)
	w := newWired(t, xdp.AttachNative, func(c *endpoint.Config) {
		c.HopLimit, c.Events, c.Context = 1, events, 6
	})
	group := netip.MustParseAddr("239.1.2.3")
	member := func() (yes bool) {
		xdptest.Do(t, w.pair.B, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/igmp")
			yes = strings.Contains(string(b), "030201EF")
			return err
		})
		return yes
	}
	must(t, w.Join(group))
	must(t, w.Join(group))
	must(t, w.Leave(group))
	if !member() {
		t.Error("the kernel knows of no membership")
	}
	for range 2 {
		var ev cq.Event
		if _, err := events.Read(&ev, 0); err != nil || ev.Event != cq.EventJoinComplete ||
			ev.Context != 6 || ev.FID != w.FID() {
			t.Errorf("%+v, %v", ev, err)
		}
	}
	c, peer := w.kernelSocket(t)
	_, err := c.WriteToUDP([]byte("to all"), &net.UDPAddr{IP: group.AsSlice(), Port: testPort})
	if errors.Is(err, syscall.ENETUNREACH) { // there is no route to groups on end A: say which way
		raw := shmtest.Got(c.SyscallConn()).Or(t)
		must(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptIPMreqn(int(fd), unix.IPPROTO_IP, unix.IP_MULTICAST_IF,
				&unix.IPMreqn{Ifindex: int32(w.pair.A.Index)})
		}))
		must(t, err)
		_, err = c.WriteToUDP([]byte("to all"), &net.UDPAddr{IP: group.AsSlice(), Port: testPort})
	}
	must(t, err)
	var es []cq.Entry
	w.await(t, "the arrival", func() bool { es = w.read(t); return len(es) > 0 })
	if es[0].Flags&cq.FlagMulticast == 0 || es[0].Src.Addr() != peer || w.text(t, &es[0]) != "to all" {
		t.Errorf("%+v", es[0])
	}
	must(t, w.Release(es[0]))

	l := xdptest.Member(t, w.pair.A, netip.AddrPortFrom(group, 7777))
	must(t, w.persist(t, func() error {
		return w.SendMsg(&endpoint.Msg{Buf: []byte("hello members"),
			Dest: netip.AddrPortFrom(group, 7777), Flags: cq.FlagMulticast})
	}))
	buf := make([]byte, 64)
	if n, err := l.Read(buf); err != nil || string(buf[:n]) != "hello members" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	must(t, w.Leave(group))
	if member() {
		t.Error("the membership stays")
	}
}

// started runs the endpoint in a goroutine of its own.
func started(t testing.TB, run func(context.Context) error) (stop context.CancelFunc,
	result func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return stop, func() error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("Run does not end")
			return nil
		}
	}
}

// TestVethRun: Run sleeps, a packet wakes it, others post meanwhile, and Close from another
// goroutine ends it.
func TestVethRun(t *testing.T) {
	shmtest.Conforms(t)
	w := newWired(t, xdp.AttachNative, func(c *endpoint.Config) { c.Shared = true })
	stop, result := started(t, w.Run)
	defer stop()
	c, peer := w.kernelSocket(t)
	for i := range uint64(20) {
		if i%5 == 0 { // let it fall asleep
			w.sleeps(t)
		}
		shmtest.Got(c.WriteToUDP([]byte("one"), w.target())).Or(t)
		shmtest.Got(c.WriteToUDP([]byte("two"), w.target())).Or(t)
		for range 2 {
			var es [1]cq.Entry
			_, err := cq.ReadContext(context.Background(), w.q, es[:], cq.ReadOptions{Timeout: patience})
			if err != nil || es[0].Src.Addr() != peer {
				t.Fatalf("%+v, %v", es, err)
			}
			must(t, w.Release(es[0]))
		}
		must(t, w.persist(t, func() error { return w.Send([]byte("back"), peer, i) }))
		var m [1]cq.Msg
		if _, err := cq.ReadContext(context.Background(), w.q, m[:],
			cq.ReadOptions{Timeout: patience}); err != nil || m[0].Context != i {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if err := w.Run(t.Context()); !errors.Is(err, endpoint.ErrDriven) {
		t.Errorf("Run beside Run: %v", err)
	}
	stop()
	if err := result(); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	_, result = started(t, w.Run) // it can go on
	w.sleeps(t)
	must(t, w.Close())
	if err := result(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// TestVethRemoved: no poll tells of it, but Run does, and an event.
func TestVethRemoved(t *testing.T) {
	shmtest.Conforms(t)
	events := newEvents(t)
	w := newWired(t, xdp.AttachNative, func(c *endpoint.Config) { c.Events = events })
	_, result := started(t, w.Run)
	must(t, w.pair.B.Remove())
	if err := result(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Errorf("Run: %v", err)
	}
	var e cq.EventError
	if _, err := events.ReadErr(&e, 0); err != nil || e.FID != w.FID() ||
		!errors.Is(&e, syscall.ENXIO) {
		t.Errorf("%+v, %v", e, err)
	}
}

// TestVeth6: a kernel socket and an endpoint talk IPv6, with addresses of the link too, and the
// kernel keeps the membership of a group.
func TestVeth6(t *testing.T) {
	shmtest.Conforms(t)
	w := newWired(t, xdp.AttachNative, nil)
	for _, local := range []string{"2001:db8::1", "fe80::1"} {
		self := netip.MustParseAddr(local)
		xdptest.AddIPv6(t, w.pair, self, self.Next())
		t.Run(strings.ReplaceAll(local, ":", "-"), func(t *testing.T) { w.talk6(t, self) })
	}
	group := netip.MustParseAddr("ff02::4321")
	member := func() (yes bool) {
		xdptest.Do(t, w.pair.B, func() error {
			b, err := os.ReadFile("/proc/thread-self/net/igmp6")
			yes = strings.Contains(string(b), "ff020000000000000000000000004321")
			return err
		})
		return yes
	}
	must(t, w.Join(group))
	if !member() {
		t.Error("the kernel knows of no membership")
	}
	must(t, w.Leave(group))
	if member() {
		t.Error("the membership stays")
	}
}

func (w *wired) talk6(t *testing.T, self netip.Addr) {
	other := self.Next()
	seen := self // as the endpoint sees it
	if self.IsLinkLocalUnicast() {
		seen = self.WithZone(strconv.Itoa(w.pair.B.Index))
		self, other = self.WithZone(w.pair.A.Name), other.WithZone(w.pair.A.Name)
	}
	c := xdptest.UDPOn(t, w.pair.A, netip.AddrPortFrom(self, 0))
	xdptest.Do(t, w.pair.A, func() error { // where the zone has its name
		_, err := c.WriteToUDPAddrPort([]byte("six"), netip.AddrPortFrom(other, testPort))
		return err
	})
	peer := w.know(t, netip.AddrPortFrom(seen, c.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	var es []cq.Entry
	w.await(t, "the arrival", func() bool { es = w.read(t); return len(es) > 0 })
	if es[0].Src.Addr() != peer || w.text(t, &es[0]) != "six" {
		t.Errorf("%+v, %q", es[0], w.text(t, &es[0]))
	}
	must(t, w.persist(t, func() error {
		return w.Forward(&es[0], 3, &endpoint.Msg{To: peer})
	}))
	buf := make([]byte, 16)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != "six" || from.Addr() != other || from.Port() != testPort {
		t.Errorf("%q from %v, %v", buf[:n], from, err)
	}
	w.await(t, "the completion", func() bool { return len(w.read(t)) == 1 })
}
