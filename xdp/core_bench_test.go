package xdp

import (
	"testing"
	"time"
)

// benchRing is how many packets one measured run moves.
const benchRing = 1024

// newBench returns a core with full-size rings.
func newBench() (*core, *fakeKernel) {
	return newFake(fakeConfig{frames: 4 * benchRing, rxFrames: 2 * benchRing, entries: benchRing})
}

// measured reports what f took per packet, without what came before it in each round.
func measured(b *testing.B, before, f func()) {
	var took time.Duration
	for b.Loop() {
		before()
		start := time.Now()
		f()
		took += time.Since(start)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(benchRing*b.N), "ns/packet")
}

// BenchmarkDrain takes packets out of a full receive ring, 64 at a time, reads the first byte of
// each and gives the frames back to the kernel.
func BenchmarkDrain(b *testing.B) {
	c, k := newBench()
	packet := make([]byte, 60)
	var buf [64]Received
	sum := 0
	c.Fill(benchRing)
	measured(b, func() {
		for k.deliver(packet) {
		}
	}, func() {
		for n := 0; n < benchRing; {
			got := c.Receive(buf[:])
			for _, r := range buf[:got] {
				sum += int(c.Packet(r)[0])
				c.Drop(r.Frame)
			}
			c.Fill(got)
			n += got
		}
	})
}

// BenchmarkDrainChains is BenchmarkDrain on a socket with MultiBuffer; the packets need one frame.
func BenchmarkDrainChains(b *testing.B) {
	c, k := newFake(fakeConfig{frames: 4 * benchRing, rxFrames: 2 * benchRing, entries: benchRing,
		chains: true})
	packet := make([]byte, 60)
	var buf [64]Received
	c.Fill(benchRing)
	measured(b, func() {
		for k.deliver(packet) {
		}
	}, func() {
		for n := 0; n < benchRing; {
			got := c.Receive(buf[:])
			for _, r := range buf[:got] {
				c.Drop(r.Frame)
			}
			c.Fill(got)
			n += got
		}
	})
}

// BenchmarkPost posts a ring full of packets, 64 at a time.
func BenchmarkPost(b *testing.B) {
	c, k := newBench()
	k.HoldCompletions(false)
	k.OnSend(func([]byte) {})
	var done [64]Sent
	clear := func() {
		k.Transmit(benchRing)
		for c.Reap(done[:]) > 0 {
		}
	}
	measured(b, clear, func() {
		for n := range benchRing {
			f, buf, ok := c.Acquire()
			if !ok {
				b.Fatal("no frame")
			}
			buf[0] = byte(n)
			if err := c.Post(f, 60, uint64(n)); err != nil {
				b.Fatal(err)
			}
			if n%64 == 63 {
				c.Flush()
			}
		}
	})
}

// BenchmarkReap takes completions, of a socket alone on its queue and of one that shares it.
func BenchmarkReap(b *testing.B) {
	for name, members := range map[string]int{"alone": 1, "shared": 2} {
		b.Run(name, func(b *testing.B) {
			c, k := newBench()
			for range members - 1 {
				c.pool.join(&core{})
			}
			k.HoldCompletions(false)
			k.OnSend(func([]byte) {})
			var done [64]Sent
			measured(b, func() {
				for range benchRing {
					f, _, _ := c.Acquire()
					_ = c.Post(f, 60, 0)
				}
				c.Flush()
				k.Transmit(benchRing)
			}, func() {
				for n := 0; n < benchRing; {
					n += c.Reap(done[:])
				}
			})
		})
	}
}

// TestNoAllocationShared: two sockets of a queue, packets in several frames, and a kick.
func TestNoAllocationShared(t *testing.T) {
	c, k := newFake(fakeConfig{chains: true, frames: 64})
	k.HoldCompletions(false)
	k.OnSend(func([]byte) {})
	o := Options{RxEntries: 16, TxEntries: 16}
	other := newFakeMember(c.pool, k.simQueue, o, fakeConfig{chains: true})
	other.HoldCompletions(false)
	other.OnSend(func([]byte) {})
	second := c.members[1]
	packet := make([]byte, 4000)
	var buf [MaxChain]Received
	var done [8]Sent
	var parts [2]Part
	n := testing.AllocsPerRun(200, func() {
		c.Fill(8)
		if !k.deliver(packet) || c.Receive(buf[:]) != 3 || !buf[1].More || buf[2].More {
			t.Error("not received")
		}
		for _, r := range buf[:3] {
			c.Drop(r.Frame)
		}
		for _, s := range []*core{c, second} {
			for i := range parts {
				f, _, ok := s.Acquire()
				if parts[i] = (Part{f, 700}); !ok {
					t.Error("no frame")
				}
			}
			if s.PostChain(parts[:], 1) != nil || !s.Flush() {
				t.Error("not posted")
			}
		}
		k.Transmit(8)
		other.Transmit(8)
		if second.Reap(done[:])+c.Reap(done[:]) != 2 || c.Sending()+second.Sending() != 0 {
			t.Error("not completed")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
