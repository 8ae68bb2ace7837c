package device_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

var (
	sixA = netip.MustParseAddr("fd00::a")
	sixB = netip.MustParseAddr("fd00::b")
)

// later is a resolver that the test fills in when it has the interface.
type later struct{ xdp.Resolver }

// TestIPv6: datagrams over IPv6, with an address that the kernel resolves while the first waits.
func TestIPv6(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	resolver := &later{}
	r := newRig(t, device.Config{Resolver: resolver})
	xdptest.AddIPv6(t, r.pair, sixA, sixB)
	xdptest.Do(t, r.pair.B, func() error {
		table, err := netif.OpenTable(r.pair.B.Index, netif.TableOptions{})
		resolver.Resolver = table
		return err
	})
	defer resolver.Resolver.(*netif.Table).Close()
	e := r.dial(device.Request{Ports: []uint16{5000}})
	var peer *net.UDPConn
	xdptest.Do(t, r.pair.A, func() (err error) {
		peer, err = net.ListenUDP("udp6", &net.UDPAddr{IP: sixA.AsSlice(), Port: 6000})
		return err
	})
	defer peer.Close()
	must(t, peer.SetDeadline(time.Now().Add(time.Minute)))
	most := e.Info().MaxPayload + packet.IPv4Bytes - packet.IPv6Bytes
	want := make([]byte, most)
	copy(want, "over IPv6")
	sendResolved(t, e, want, netip.AddrPortFrom(sixA, 6000))
	buf := make([]byte, 2000)
	n, from, err := peer.ReadFromUDPAddrPort(buf)
	must(t, err)
	if n != most || string(buf[:n]) != string(want) || from != netip.AddrPortFrom(sixB, 5000) {
		t.Errorf("%d bytes from %v", n, from)
	}
	must(t, e.SendTo(make([]byte, most+1), netip.AddrPortFrom(sixA, 6000), 2))
	if c := nextError(t, e); c.Context != 2 || c.Err.Error() != unix.EMSGSIZE.Error() {
		t.Errorf("one byte more: %+v", c)
	}
	_, err = peer.WriteToUDPAddrPort([]byte("answer"), from)
	must(t, err)
	entry := next(t, e)
	rec, err := e.Record(&entry)
	must(t, err)
	if got := text(t, e, &entry); got != "answer" || rec.Src != netip.AddrPortFrom(sixA, 6000) ||
		rec.Dst != netip.AddrPortFrom(sixB, 5000) {
		t.Errorf("%q, %+v", got, rec)
	}
}

// sendResolved sends a datagram with the context 1. It sends it again where the kernel took longer
// to ask for the address, on a machine that has no time, than a datagram waits.
func sendResolved(t testing.TB, e *device.Endpoint, payload []byte, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		must(t, e.SendTo(payload, to, 1))
		var es [1]cq.Entry
		n, err := cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{})
		if n == 1 && es[0].Context == 1 {
			return
		}
		var entry cq.ErrorEntry
		if !errors.Is(err, cq.ErrAvail) || e.Queue().ReadErr(&entry) != nil ||
			!errors.Is(&entry, unix.EHOSTUNREACH) {
			t.Fatalf("%v, %+v, %+v", err, es[0], entry)
		}
	}
}

// TestDeviceGone: when the interface is removed the server ends with that, and its applications
// hear of it as of any other end of a server.
func TestDeviceGone(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	var s *device.Server
	err := pair.B.Do(func() (err error) {
		s, err = device.NewServer(t.Context(), device.Config{Interface: pair.B.Name,
			Resolver: wires{pair.B, pair.A}})
		return err
	})
	shmtest.Require(t, "xdp", err)
	path := socketPath(t)
	l, err := device.Listen(path)
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l.UnixListener) }()
	events := make(chan device.Event, 1)
	e, err := device.Dial(t.Context(), path, device.Request{Ports: []uint16{5000},
		NoReconnect: true, Notify: func(ev device.Event) { events <- ev }})
	must(t, err)
	// Down first: it goes on, and up again it is as before.
	must(t, pair.B.SetUp(false))
	must(t, e.SendTo([]byte("x"), netip.AddrPortFrom(pair.A.Addr, 6000), 1))
	must(t, pair.B.SetUp(true))
	if c := next(t, e); c.Context != 1 {
		t.Errorf("%+v", c)
	}
	must(t, pair.B.Remove())
	if err := <-served; !isGone(err) {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Err(); !isGone(err) {
		t.Errorf("Err: %v", err)
	}
	must(t, s.Close())
	if ev := <-events; ev.Kind != device.EventGone {
		t.Errorf("%+v", ev)
	}
	must(t, e.Close())
	must(t, l.Close())
}
