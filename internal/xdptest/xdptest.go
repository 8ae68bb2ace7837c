// Package xdptest helps tests that need a network device: a pair of veth interfaces in namespaces
// of their own, or an honest skip.
package xdptest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
)

// NewPair returns two joined ends that are gone when the test ends. Where they cannot be made the
// test is skipped, or fails if SHMRING_REQUIRE has netns.
func NewPair(t testing.TB, c veth.Config) *veth.Pair {
	t.Helper()
	return shmtest.Have(veth.Open(c)).Where(t, "netns")
}

// Do runs f in the namespace of an end and fails the test if it returns an error.
func Do(t testing.TB, e *veth.End, f func() error) {
	t.Helper()
	shmtest.Must(t, e.Do(f))
}

// Have is [shmtest.Have] of what open returns in the namespace of an end.
func Have[C io.Closer](e *veth.End, open func() (C, error)) shmtest.Opening[C] {
	var c C
	err := e.Do(func() (err error) {
		c, err = open()
		return err
	})
	return shmtest.Have(c, err)
}

// UDP opens a socket of the kernel on the IPv4 address of an end for the time of the test. What
// waits at it fails after a minute.
func UDP(t testing.TB, e *veth.End, port uint16) *net.UDPConn {
	t.Helper()
	return UDPOn(t, e, netip.AddrPortFrom(e.Addr, port))
}

// UDPOn is UDP on any address.
func UDPOn(t testing.TB, e *veth.End, local netip.AddrPort) *net.UDPConn {
	t.Helper()
	network := "udp4"
	if local.Addr().Is6() {
		network = "udp6"
	}
	c := Have(e, func() (*net.UDPConn, error) {
		return net.ListenUDP(network, net.UDPAddrFromAddrPort(local))
	}).In(t)
	shmtest.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// NewUMEM returns a UMEM that is closed when the test ends, after sockets that were opened later.
func NewUMEM(t testing.TB, o xdp.UMEMOptions) *xdp.UMEM {
	t.Helper()
	u, err := xdp.NewUMEM(o)
	shmtest.Must(t, err)
	t.Cleanup(func() { shmtest.Must(t, u.Close(context.WithoutCancel(t.Context()))) })
	return u
}

// Attach attaches the steering program to an end for the time of the test. Where the kernel has no
// XDP or the privilege is missing the test is skipped, or fails if SHMRING_REQUIRE has xdp.
func Attach(t testing.TB, e *veth.End, o xdp.ProgramOptions) *xdp.Program {
	t.Helper()
	return Have(e, func() (*xdp.Program, error) { return xdp.Attach(e.Name, o) }).Where(t, "xdp")
}

// Open opens a socket on queue 0 of an end for the time of the test.
func Open(t testing.TB, e *veth.End, queue uint32, u *xdp.UMEM, o xdp.Options) *xdp.Socket {
	t.Helper()
	return Have(e, func() (*xdp.Socket, error) {
		return xdp.Open(context.Background(), e.Name, queue, u, o)
	}).Where(t, "xdp")
}

// SimOptions describe a simulated device and the socket on it. Zero values stand for the defaults.
type SimOptions struct {
	xdp.Options
	Name       string // of the interface; "sim0" by default
	Queue      uint32
	MTU        int    // 1500 by default
	StartIndex uint32 // of all rings, which wrap at 2^32
}

// Simulate makes a socket whose kernel is played by the program, over ordinary memory: no
// interface, no privilege, no traffic but that of Kernel.Deliver, and the race detector sees all of
// it. Its descriptor can be polled for packets; it becomes quiet when Receive or Pending find
// nothing.
func Simulate(umem *xdp.UMEM, o SimOptions) (*xdp.Socket, *xskernel.Kernel, error) {
	if xskernel.Simulate == nil {
		return nil, nil, errors.ErrUnsupported // not Linux
	}
	s, k, err := xskernel.Simulate(umem, o.Options, xskernel.Device{Name: cmp.Or(o.Name, "sim0"),
		Queue: o.Queue, MTU: cmp.Or(o.MTU, 1500), StartIndex: o.StartIndex})
	if err != nil {
		return nil, nil, err
	}
	return s.(*xdp.Socket), k, nil
}

// NewSim is Simulate with a UMEM of its own, for the time of the test.
func NewSim(t testing.TB, u xdp.UMEMOptions, o SimOptions) (*xdp.Socket, *xskernel.Kernel) {
	t.Helper()
	s, k, err := Simulate(NewUMEM(t, u), o)
	return shmtest.Have(s, err).In(t), k
}

// Steer adds the rule that UDP datagrams to a port go to the sockets from slot base on.
func Steer(t testing.TB, p *xdp.Program, port uint16, base uint32) {
	t.Helper()
	_, err := p.AddRule(xdp.Rule{UDPPort: port}, xdp.Target{Base: base})
	shmtest.Must(t, err)
}

// Raw sends whole frames from end A of a pair.
type Raw struct {
	t    testing.TB
	pair *veth.Pair
	s    *xdp.Socket
}

// NewRaw opens a socket on queue 0 of end A for the time of the test.
func NewRaw(t testing.TB, p *veth.Pair) *Raw {
	return &Raw{t: t, pair: p, s: Open(t, p.A, 0, NewUMEM(t, xdp.UMEMOptions{Frames: 256}),
		xdp.Options{SendFrames: 192})}
}

// Frame is a datagram to a destination, from an address that neither end has.
func (w *Raw) Frame(mac [6]byte, to netip.AddrPort, tags []packet.Tag, payload string) []byte {
	w.t.Helper()
	src := netip.MustParseAddr("192.0.2.77")
	if to.Addr().Is6() {
		src = netip.MustParseAddr("fd00::77")
	}
	tpl, err := packet.Path{LocalMAC: [6]byte(w.pair.A.MAC), NextMAC: mac, Tags: tags,
		Src: netip.AddrPortFrom(src, 7000), Dst: to, HopLimit: 9}.Template()
	shmtest.Must(w.t, err)
	b := make([]byte, 1600)
	n, err := tpl.Build(b, []byte(payload))
	shmtest.Must(w.t, err)
	return b[:n]
}

// Send sends one, as soon as there is room.
func (w *Raw) Send(frame []byte) {
	w.t.Helper()
	var done [16]xdp.Sent
	for end := time.Now().Add(time.Minute); ; {
		w.s.Reap(done[:])
		if id, buf, ok := w.s.Acquire(); ok {
			shmtest.Must(w.t, w.s.Post(id, copy(buf, frame), 0))
			w.s.Flush()
			_, err := w.s.Kick()
			shmtest.Must(w.t, err)
			return
		}
		if time.Now().After(end) {
			w.t.Fatal("a frame to send never came free")
		}
	}
}

// FewerGoroutines waits until there are no more goroutines than there were: one that has said its
// last word, as that of Do has, may not have ended yet.
func FewerGoroutines(t testing.TB, before int) {
	t.Helper()
	shmtest.Eventually(t, "the end of goroutines", func() bool {
		return runtime.NumGoroutine() <= before
	})
}
