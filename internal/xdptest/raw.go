package xdptest

import (
	"net/netip"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

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
