package udp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/xdp/udp"
)

// TestPatience: looks that find nothing become rare, those that find something frequent, and one
// that finds nothing among many that do changes nothing.
func TestPatience(t *testing.T) {
	var p udp.Patience
	for i, c := range []struct {
		looks              int
		found, interrupted bool
		waits              int // without a look, after the last of these looks
	}{{9, true, false, 0}, {4, false, false, 0}, {1, false, false, 16}, {1, false, false, 0},
		{1, false, false, 32}, {2, false, false, 64}, {2, false, false, 128}, {2, false, false, 256},
		{2, false, false, 256}, {20, true, false, 0}, {7, false, false, 0}, {1, false, false, 16},
		{1, true, true, 32}, {1, true, false, 0}, {1, false, true, 64}} {
		n := 0
		for range c.looks {
			n = p.Waits(c.found, c.interrupted)
		}
		if n != c.waits {
			t.Errorf("%d: %d waits without a look, want %d", i, n, c.waits)
		}
	}
}

// TestReadersLook: a reader that would have to sleep finds what nobody told of, and does not look
// while as many as there are CPUs do.
func TestReadersLook(t *testing.T) {
	_, b, _, fb := newPair(t, udp.StackOptions{})
	stack := b.Stack()
	fb.set(func() {
		fb.queue = append(fb.queue, udp.Datagram{From: netip.AddrPortFrom(addrA, 1000),
			To: addrPort(b), Payload: []byte("found")})
	})
	udp.Looking.Add(udp.MaxLooking())
	for range 100 {
		if stack.Linger(b) {
			t.Fatal("one more than there are CPUs looks")
		}
	}
	udp.Looking.Add(-udp.MaxLooking())
	found := false
	for i := 0; i < 1000 && !found; i++ { // the first, unless others need the processors
		found = stack.Linger(b)
	}
	if n := udp.Looking.Load(); !found || n != 0 {
		t.Errorf("found %v; %d look", found, n)
	}
	buf := make([]byte, 10)
	n, _, err := b.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != "found" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	for range 100 {
		if stack.Linger(b) {
			t.Fatal("found what is not there")
		}
	}
}
