package xdp

import (
	"errors"
	"testing"
)

// chainOf puts the descriptors of one packet of n frames into the receive ring, its end included or
// not.
func chainOf(t *testing.T, c *core, k *fakeKernel, n int, whole bool) {
	t.Helper()
	for i := range n {
		addr, ok := k.fill.pop()
		if !ok {
			t.Fatal("no frame")
		}
		d := Desc{Addr: addr + c.headroom + kernelHeadroomBytes, Len: 100}
		if i < n-1 || !whole {
			d.Options = packetContinues
		}
		if !k.ForgeReceive(d) {
			t.Fatal("no room")
		}
	}
}

// TestReceiveChainsWhole: nobody ever gets a part of a packet, however little room there is.
func TestReceiveChainsWhole(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{chains: true, frames: 128, rxFrames: 96, entries: 64})
	var buf [MaxChain]Received
	c.Fill(64)
	chainOf(t, c, k, 3, true)
	chainOf(t, c, k, 2, true)
	if n := c.Receive(buf[:4]); n != 3 || !buf[0].More || !buf[1].More || buf[2].More {
		t.Fatalf("%d of 3 in a packet, with room for 4", n)
	}
	c.Recycle(buf[:3])
	if n := c.Receive(buf[:2]); n != 2 || !buf[0].More || buf[1].More {
		t.Fatalf("%d of 2 in a packet", n)
	}
	c.Recycle(buf[:2])
	// A packet whose end is not there yet waits; it is there as soon as the end is.
	chainOf(t, c, k, 2, false)
	if n := c.Receive(buf[:]); n != 0 || c.Pending(10) != 2 {
		t.Fatalf("%d of a packet without end, %d wait", n, c.Pending(10))
	}
	chainOf(t, c, k, 1, true)
	if n := c.Receive(buf[:]); n != 3 {
		t.Fatalf("%d of 3", n)
	}
	c.Recycle(buf[:3])
	// One that no buffer of the caller will ever hold is given up, the next one is not.
	chainOf(t, c, k, 5, true)
	chainOf(t, c, k, 1, true)
	if n := c.Receive(buf[:4]); n != 1 || buf[0].More || c.RingStats().BadDescriptors != 1 {
		t.Fatalf("%d, %+v", n, c.RingStats())
	}
	c.Recycle(buf[:1])
	if f := c.FrameStats(); f.States[FrameReceived] != 0 || f.Illegal != 0 {
		t.Errorf("%+v", f)
	}
}

// TestReceiveChainsEndless: a kernel that fills the ring with one packet does not stop the socket;
// the rest of that packet, whenever it comes, is not taken for a packet.
func TestReceiveChainsEndless(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{chains: true, frames: 128, rxFrames: 96, entries: 32})
	var buf [MaxChain]Received
	c.Fill(32)
	chainOf(t, c, k, 32, false)
	if n := c.Receive(buf[:]); n != 0 || c.Pending(100) != 0 {
		t.Fatalf("%d of an endless packet, %d wait", n, c.Pending(100))
	}
	c.Fill(32)
	chainOf(t, c, k, 4, true) // its rest
	chainOf(t, c, k, 2, true)
	chainOf(t, c, k, MaxChain+1, true)
	chainOf(t, c, k, 1, true)
	if n := c.Receive(buf[:]); n != 3 || !buf[0].More || buf[1].More || buf[2].More {
		t.Fatalf("%d, want 2 of one packet and 1 of another: %+v", n, buf[:n])
	}
	c.Recycle(buf[:3])
	if f := c.FrameStats(); f.Sum() != f.Frames || f.States[FrameReceived] != 0 || f.Illegal != 0 {
		t.Errorf("%+v", f)
	}
	if s := c.RingStats(); s.BadDescriptors != 3 || s.Received != 2 {
		t.Errorf("%+v", s)
	}
}

// TestReceiveChainsSpoiled: one part that cannot be spoils its packet, and what follows it of that
// packet is not taken for another one.
func TestReceiveChainsSpoiled(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{chains: true, frames: 128, rxFrames: 96, entries: 64})
	var buf [MaxChain]Received
	c.Fill(64)
	chainOf(t, c, k, 2, false)
	k.ForgeReceive(Desc{Addr: 1 << 40, Len: 100, Options: packetContinues})
	chainOf(t, c, k, 3, true)
	chainOf(t, c, k, 2, true)
	if n := c.Receive(buf[:]); n != 2 || !buf[0].More || buf[1].More || buf[0].Len != 100 {
		t.Fatalf("%d: %+v", n, buf[:n])
	}
	c.Recycle(buf[:2])
	f := c.FrameStats()
	if f.States[FrameReceived] != 0 || f.States[FrameQuarantine] != 0 || f.Sum() != f.Frames {
		t.Errorf("%+v", f)
	}
}

// TestForeignFrames: a socket can do nothing with frames that another one of its queue acquired.
func TestForeignFrames(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{chains: true, frames: 64})
	newFakeMember(c.pool, k.simQueue, Options{RxEntries: 16, TxEntries: 16}, fakeConfig{chains: true})
	other := c.members[1]
	f, _, _ := c.Acquire()
	g, _, _ := other.Acquire()
	parts := []Part{{g, 100}, {f, 100}}
	if err := other.Post(f, 60, 0); !errors.Is(err, ErrFrame) {
		t.Errorf("post: %v", err)
	}
	if err := other.PostChain(parts, 0); !errors.Is(err, ErrFrame) {
		t.Errorf("post a chain: %v", err)
	}
	if other.Abandon(f) {
		t.Error("abandoned")
	}
	if !c.Abandon(f) || !other.Abandon(g) || c.FrameStats().States[FrameBuild] != 0 {
		t.Errorf("%+v", c.FrameStats())
	}
}
