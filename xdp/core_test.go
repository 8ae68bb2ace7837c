package xdp

import (
	"encoding/binary"
	"errors"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xskernel"
)

func TestRingFaultIsFullNotWild(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{})
	k.Fill.Cons.Add(5) // taken more than was ever given
	k.Tx.Cons.Add(1 << 31)
	k.Rx.Prod.Add(1 << 20)
	k.Comp.Prod.Add(^uint32(0))
	if n := c.Fill(20); n != 0 {
		t.Errorf("filled %d", n)
	}
	if n := c.Receive(make([]Received, 8)); n != 0 {
		t.Errorf("received %d", n)
	}
	if _, _, ok := c.Acquire(); ok && c.tx.room(17) != 0 {
		t.Error("room in an impossible ring")
	}
	if n := c.Reap(make([]Sent, 8)); n != 0 {
		t.Errorf("reaped %d", n)
	}
	if s := c.RingStats(); s.RingFaults < 3 {
		t.Errorf("faults not counted: %+v", s)
	}
}

func TestAcquireReservesRingRoom(t *testing.T) {
	t.Parallel()
	c, _ := newFake(fakeConfig{frames: 64, rxFrames: 8, entries: 16})
	var frames []uint32
	for {
		f, _, ok := c.Acquire()
		if !ok {
			break
		}
		frames = append(frames, f)
	}
	if len(frames) != 16 {
		t.Fatalf("acquired %d frames with room for 16", len(frames))
	}
	for _, f := range frames {
		shmtest.Must(t, c.Post(f, 60, 0))
	}
	if err := c.Post(frames[0], 60, 0); !errors.Is(err, ErrFrame) || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("posted twice: %v", err)
	}
	if err := c.Post(1<<30, 60, 0); !errors.Is(err, ErrFrame) {
		t.Errorf("no such frame: %v", err)
	}
}

func TestReceiveFloodLeavesRoomToSend(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{})
	buf := make([]Received, 8)
	for range 100 { // nobody returns anything
		c.Fill(8)
		for k.Deliver(make([]byte, 60)) {
		}
		for i, r := range buf[:c.Receive(buf)] {
			c.Loan(uint32(i), r)
		}
	}
	if n := c.FrameStats().Loaned; n != 16 {
		t.Fatalf("%d frames on loan, want all 16 of the receive pool", n)
	}
	if _, _, ok := c.Acquire(); !ok {
		t.Error("no frame to send from")
	}
}

// TestConcurrentKernel lets the fake kernel run beside the core, so that the race detector sees
// whether the indices order the entries.
func TestConcurrentKernel(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{start: ^uint32(100)})
	const packets = 20000
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		var p [64]byte
		for sent := uint64(0); !stop.Load(); {
			binary.LittleEndian.PutUint64(p[14:], sent)
			if sent < packets && k.Deliver(p[:]) {
				sent++
			}
			begun := k.Transmit(1) == 1
			if !k.CompleteAt(0) && !begun {
				runtime.Gosched() // with one CPU the other side is not running now
			}
		}
	}()
	buf, sent := make([]Received, 8), make([]Sent, 8)
	var got, posted, completed uint64
	for got < packets || completed < packets {
		c.Fill(16)
		for _, r := range buf[:c.Receive(buf)] {
			if seq := binary.LittleEndian.Uint64(c.Packet(r)[14:]); seq != got {
				t.Fatalf("packet %d, want %d", seq, got)
			}
			got++
			c.Drop(r.Frame)
		}
		if posted < packets {
			if f, b, ok := c.Acquire(); ok {
				b[0] = byte(posted)
				shmtest.Must(t, c.Post(f, 60, posted))
				c.Flush()
				posted++
			}
		}
		n := c.Reap(sent)
		if completed += uint64(n); n == 0 {
			runtime.Gosched()
		}
	}
	stop.Store(true)
	<-done
	if s := c.FrameStats(); s.Illegal != 0 || s.Sum() != s.Frames {
		t.Errorf("%+v", s)
	}
}

func TestNoAllocationPerPacket(t *testing.T) {
	c, k := newFake(fakeConfig{})
	packet, buf, sent := make([]byte, 60), make([]Received, 8), make([]Sent, 8)
	k.OnSend(func([]byte) {})
	n := testing.AllocsPerRun(200, func() {
		c.Fill(8)
		k.Deliver(packet)
		for _, r := range buf[:c.Receive(buf)] {
			c.Loan(7, r)
			c.Return(Returned{r.Off, 7})
		}
		f, _, _ := c.Acquire()
		if c.Post(f, 60, 1) != nil || !c.Flush() || k.Transmit(1) != 1 || !k.CompleteAt(0) ||
			c.Reap(sent) != 1 {
			t.Error("the packet was not sent")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// chainOf puts the descriptors of one packet of n frames into the receive ring, its end included or
// not.
func chainOf(t *testing.T, c *core, k *xskernel.Kernel, n int, whole bool) {
	t.Helper()
	for i := range n {
		addr, ok := k.Fill.Pop()
		if !ok {
			t.Fatal("no frame")
		}
		d := xskernel.Desc{Addr: addr + c.headroom + xskernel.HeadroomBytes, Len: 100}
		if i < n-1 || !whole {
			d.Options = xskernel.PacketContinues
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
	if f := c.FrameStats(); f.Received != 0 || f.Illegal != 0 {
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
	if f := c.FrameStats(); f.Sum() != f.Frames || f.Received != 0 || f.Illegal != 0 {
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
	k.ForgeReceive(xskernel.Desc{Addr: 1 << 40, Len: 100, Options: xskernel.PacketContinues})
	chainOf(t, c, k, 3, true)
	chainOf(t, c, k, 2, true)
	if n := c.Receive(buf[:]); n != 2 || !buf[0].More || buf[1].More || buf[0].Len != 100 {
		t.Fatalf("%d: %+v", n, buf[:n])
	}
	c.Recycle(buf[:2])
	f := c.FrameStats()
	if f.Received != 0 || f.Quarantine != 0 || f.Sum() != f.Frames {
		t.Errorf("%+v", f)
	}
}

// TestForeignFrames: a socket can do nothing with frames that another one of its queue acquired.
func TestForeignFrames(t *testing.T) {
	t.Parallel()
	c, k := newFake(fakeConfig{chains: true, frames: 64})
	newFakeMember(c.pool, k.Queue, Options{RxEntries: 16, TxEntries: 16}, fakeConfig{chains: true})
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
	if other.Drop(f) {
		t.Error("abandoned")
	}
	if !c.Drop(f) || !other.Drop(g) || c.FrameStats().Build != 0 {
		t.Errorf("%+v", c.FrameStats())
	}
}

// What a packet costs in this package, without the kernel, whose side is played by loops that move
// indices and addresses and no more.

const benchBatch = 64

func newBenchCore() (*core, *xskernel.Kernel) {
	return newFake(fakeConfig{frames: 2048, rxFrames: 1536, entries: 1024})
}

// loop gives every frame of the fill ring back with a packet.
func loop(k *xskernel.Kernel) {
	fill, rx := k.Fill, k.Rx
	cons, prod := fill.Cons.Load(), rx.Prod.Load()
	for end := fill.Prod.Load(); cons != end && prod-rx.Cons.Load() <= rx.Mask(); cons++ {
		addr := fill.Slots[cons&fill.Mask()]
		rx.Slots[prod&rx.Mask()] = xskernel.Desc{Addr: addr + 320, Len: 64}
		prod++
	}
	fill.Cons.Store(cons)
	rx.Prod.Store(prod)
}

// done completes all that is in the transmit ring.
func done(k *xskernel.Kernel) {
	tx, comp := k.Tx, k.Comp
	cons, prod := tx.Cons.Load(), comp.Prod.Load()
	for end := tx.Prod.Load(); cons != end; cons++ {
		comp.Slots[prod&comp.Mask()] = tx.Slots[cons&tx.Mask()].Addr
		prod++
	}
	tx.Cons.Store(cons)
	comp.Prod.Store(prod)
}

func BenchmarkReceiveRecycle(b *testing.B) {
	for _, batch := range []int{1, benchBatch} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			c, k := newBenchCore()
			c.Fill(1024)
			got := make([]Received, batch)
			for i := 0; i < b.N; {
				loop(k)
				for n := 1; n > 0; i += n {
					n = c.Receive(got)
					for _, r := range got[:n] {
						_ = c.Packet(r)[0]
					}
					c.Recycle(got[:n])
				}
			}
		})
	}
}

func BenchmarkPostReap(b *testing.B) {
	c, k := newBenchCore()
	var sent [benchBatch]Sent
	for i := 0; i < b.N; i += benchBatch {
		for range benchBatch {
			frame, buf, ok := c.Acquire()
			if !ok {
				b.Fatal("no frame")
			}
			buf[0] = 1
			if err := c.Post(frame, 64, 7); err != nil {
				b.Fatal(err)
			}
		}
		c.Flush()
		done(k)
		c.Reap(sent[:])
	}
}
