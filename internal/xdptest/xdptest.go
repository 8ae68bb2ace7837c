// Package xdptest helps tests that need a network device: a pair of veth interfaces in namespaces
// of their own, or an honest skip.
package xdptest

import (
	"cmp"
	"context"
	"errors"
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
	if err := e.Do(f); err != nil {
		t.Fatal(err)
	}
}

// NewUMEM returns a UMEM that is closed when the test ends, after sockets that were opened later.
func NewUMEM(t testing.TB, o xdp.UMEMOptions) *xdp.UMEM {
	t.Helper()
	u, err := xdp.NewUMEM(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return u
}

// Attach attaches the steering program to an end for the time of the test. Where the kernel has no
// XDP or the privilege is missing the test is skipped, or fails if SHMRING_REQUIRE has xdp.
func Attach(t testing.TB, e *veth.End, o xdp.ProgramOptions) *xdp.Program {
	t.Helper()
	var p *xdp.Program
	err := e.Do(func() (err error) {
		p, err = xdp.Attach(e.Name, o)
		return err
	})
	return shmtest.Have(p, err).Where(t, "xdp")
}

// Open opens a socket on queue 0 of an end for the time of the test.
func Open(t testing.TB, e *veth.End, queue uint32, u *xdp.UMEM, o xdp.Options) *xdp.Socket {
	t.Helper()
	var s *xdp.Socket
	err := e.Do(func() (err error) {
		s, err = xdp.Open(context.Background(), e.Name, queue, u, o)
		return err
	})
	return shmtest.Have(s, err).Where(t, "xdp")
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

// Steer adds the rule that UDP datagrams to a port go to the sockets from slot base on.
func Steer(t testing.TB, p *xdp.Program, port uint16, base uint32) {
	t.Helper()
	if _, err := p.AddRule(xdp.Rule{UDPPort: port}, xdp.Target{Base: base}); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		w.t.Fatal(err)
	}
	b := make([]byte, 1600)
	n, err := tpl.Build(b, []byte(payload))
	if err != nil {
		w.t.Fatal(err)
	}
	return b[:n]
}

// Send sends one, as soon as there is room.
func (w *Raw) Send(frame []byte) {
	w.t.Helper()
	var done [16]xdp.Sent
	for end := time.Now().Add(time.Minute); ; {
		w.s.Reap(done[:])
		if id, buf, ok := w.s.Acquire(); ok {
			err := w.s.Post(id, copy(buf, frame), 0)
			if err == nil {
				w.s.Flush()
				_, err = w.s.Kick()
			}
			if err != nil {
				w.t.Fatal(err)
			}
			return
		}
		if time.Now().After(end) {
			w.t.Fatal("a frame to send never came free")
		}
	}
}

// FewerGoroutines waits until there are no more goroutines than there were: one that has said its
// last word, as that of Do has, may not have ended yet.
func FewerGoroutines(t testing.TB, before int, most time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		n := runtime.NumGoroutine()
		if n <= before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", n, before)
		}
	}
}
