package xdp_test

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
)

// stats asks the kernel's side of a socket.
func stats(t testing.TB, s *xdp.Socket) xdp.KernelStats {
	t.Helper()
	return shmtest.Got(s.KernelStats()).Or(t)
}

// TestXskDropped (STAT_RX_DROPPED): packets that do not fit a frame are dropped and counted, and
// the others arrive.
func TestXskDropped(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{rxUMEM: xdp.UMEMOptions{HeadroomBytes: 1024}} // leaves 768 bytes for a packet
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		const packets = 200
		for n := range packets {
			x.post(t, x.tx, n/2, 400+400*(n%2), 0)
			x.kick(t, x.tx)
		}
		x.until(t, 400, func() bool { return x.seen == packets/2 })
		await(t, "the count", func() bool { return stats(t, x.rx).RxDropped == packets/2 })
		x.finish(t)
	})
}

// TestXskTransmitInvalid (STAT_TX_INVALID): the kernel counts descriptors that are too long, and
// sends the valid half.
func TestXskTransmitInvalid(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		const packets = 64
		for n := range packets {
			if n%2 == 0 {
				x.post(t, x.tx, n/2, 64, 0)
				x.kick(t, x.tx)
				continue
			}
			f, _, _ := x.tx.Acquire()
			xdp.ForgePost(x.tx, xskernel.Desc{Addr: xdp.SendOffset(x.tx, f), Len: 2048}, uint64(n))
			x.kick(t, x.tx)
		}
		x.until(t, 64, func() bool {
			return x.seen == packets/2 && stats(t, x.tx).TxInvalid == packets/2
		})
		if f := x.tx.FrameStats(); f.Sum() != f.Frames {
			t.Errorf("%+v", f)
		}
		x.next = x.seen
		x.stream(t, x.tx, x.rx, 100, always(64)) // it goes on as if nothing had been
	})
}

// TestXskReceiveFull (STAT_RX_FULL): nobody takes packets out of the receive ring.
func TestXskReceiveFull(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{rx: xdp.Options{RxEntries: 32}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		x.sends(t, 100, 64)
		await(t, "the count", func() bool { return stats(t, x.rx).RxQueueFull == 68 })
		x.until(t, 64, func() bool { return x.seen == 32 })
		x.finish(t)
	})
}

// TestXskFillEmpty (STAT_FILL_EMPTY): nobody gives frames to receive into.
func TestXskFillEmpty(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{rx: xdp.Options{FillEntries: 64}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		x.sends(t, 100, 64)
		await(t, "the count", func() bool { return stats(t, x.rx).RxFillRingEmpty >= 36 })
		x.until(t, 64, func() bool { return x.seen == 64 })
		x.next = x.seen
		x.stream(t, x.tx, x.rx, 200, always(64))
		x.finish(t)
	})
}

// TestXskInvalidDescriptors (ALIGNED_INV_DESC, ALIGNED_INV_DESC_2K_FRAME_SIZE): of a mix of
// descriptors exactly the valid ones arrive. Only a mistake of this package could make the others.
func TestXskInvalidDescriptors(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, chunk := range []uint32{2048, 4096} {
		u := xdp.UMEMOptions{ChunkBytes: chunk, Frames: 64}
		eachXsk(t, xskConfig{txUMEM: u, tx: xdp.Options{SendFrames: 48}}, func(t *testing.T, x *xsk) {
			size := uint64(64 * chunk)
			in := func(at uint64) uint64 { // a frame
				f, _, ok := x.tx.Acquire()
				if !ok {
					t.Fatal("no frame")
				}
				return uint64(f)*uint64(chunk) + at
			}
			x.forge(t, []forged{
				{in(0), 64, true},                      // the first byte of a chunk
				{in(uint64(chunk) - 64), 64, true},     // its last bytes
				{in(uint64(chunk) - 32), 64, false},    // over its end
				{size, 64, false},                      // behind the memory
				{size - 32, 64, false},                 // over its end
				{1 << 40, 64, false},                   // far away
				{^uint64(0) - 31, 64, false},           // in front of the memory: the address wraps
				{in(2048 - 32), 64, chunk == 4096},     // over 2048
				{in(100), chunk, false},                // longer than is left
				{in(100), 0, false},                    // nothing
				{in(uint64(chunk) - 1400), 1400, true}, // the longest that fits at the end
				{in(300), 64, true},                    // and the stream goes on
			})
		})
	}
}

// forged is a descriptor, and whether the kernel takes it.
type forged struct {
	addr uint64
	len  uint32
	ok   bool
}

// forge sends all: exactly the valid ones arrive, and the others are counted.
func (x *xsk) forge(t testing.TB, all []forged) {
	t.Helper()
	valid, bad := 0, uint64(0)
	for _, d := range all {
		if d.ok {
			xskPacket(x.tx.UMEM().Region().Bytes()[d.addr:][:d.len], valid, 0)
			valid++
		} else {
			bad++
		}
		xdp.ForgePost(x.tx, xskernel.Desc{Addr: d.addr, Len: d.len}, 0)
		x.kick(t, x.tx)
	}
	await(t, "the valid ones", func() bool {
		x.kick(t, x.tx)
		for _, r := range x.got[:x.rx.Receive(x.got[:])] {
			isPacket(t, x.rx.Packet(r), x.seen)
			x.seen++
			x.rx.Drop(r.Frame)
		}
		x.rx.Fill(len(x.got))
		return x.seen == valid && stats(t, x.tx).TxInvalid == bad
	})
	f := x.tx.FrameStats()
	if f.Sum() != f.Frames || x.rx.FrameStats().Illegal != 0 || x.tx.RingStats().RingFaults != 0 {
		t.Errorf("%+v, %+v", f, x.tx.RingStats())
	}
}

// TestXskBudget (TX_QUEUE_CONSUMER): one system call takes as many packets as its budget is, and
// all that remain are taken by the calls that Kick makes itself. The budget is raised to the size
// of the ring where the kernel can.
func TestXskBudget(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const packets = 40
	eachXsk(t, xskConfig{tx: xdp.Options{TxEntries: 64}}, func(t *testing.T, x *xsk) {
		g := x.tx.Info()
		if g.TxBudget != 32 && g.TxBudget != 64 {
			t.Fatalf("%+v", g)
		}
		for n := range packets {
			x.post(t, x.tx, n, 64, 0)
		}
		x.kick(t, x.tx)
		s := x.tx.SyscallStats()
		if want := uint64((packets + g.TxBudget - 1) / g.TxBudget); s.Send != want {
			t.Errorf("%d system calls, want %d at %d packets each", s.Send, want, g.TxBudget)
		}
		if s.Again != s.Send-1 || x.tx.Unsent() != 0 {
			t.Errorf("%+v, %d not sent", s, x.tx.Unsent())
		}
		x.until(t, 64, func() bool { return x.seen == packets && x.done == packets })
		x.finish(t)
	})
}

// TestXskBudgetDefault (TX_QUEUE_CONSUMER, as it is told): a socket that cannot have more takes 32
// a call.
func TestXskBudgetDefault(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{tx: xdp.Options{TxEntries: 64, NoTxBudget: true}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		if g := x.tx.Info(); g.TxBudget != 32 {
			t.Fatalf("%+v", g)
		}
		before := xdp.SentTo(x.tx)
		for n := range 33 {
			x.post(t, x.tx, n, 64, 0)
		}
		x.tx.Flush()
		if err := xdp.SendOnce(x.tx); err == nil || xdp.SentTo(x.tx)-before != 32 {
			t.Errorf("one call took %d: %v", xdp.SentTo(x.tx)-before, err)
		}
		x.until(t, 64, func() bool { return x.seen == 33 })
		x.finish(t)
	})
}

// TestXskRefused: a packet that the device refuses completes all the same and is counted, and those
// behind it are sent.
func TestXskRefused(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		for n := range 10 {
			if n%3 == 1 {
				f, _, _ := x.tx.Acquire()
				xdp.ForgePost(x.tx, xskernel.Desc{Addr: xdp.SendOffset(x.tx, f), Len: 5 + 1595*uint32(n%2)}, 0)
			}
			x.post(t, x.tx, n, 64, 0)
		}
		x.kick(t, x.tx)
		x.until(t, 64, func() bool { return x.seen == 10 && x.done == 13 })
		if s := x.tx.SyscallStats(); s.SendDropped != 3 || x.tx.Unsent() != 0 {
			t.Errorf("%+v", s)
		}
		x.finish(t)
	})
}

// TestXskCompletionFull: while nobody reaps, exactly as many packets are sent as the completion
// ring holds; reaping lets the others go, and none is lost.
func TestXskCompletionFull(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{tx: xdp.Options{TxEntries: 32, CompEntries: 32}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		for round := range 2 {
			for range 32 {
				if !x.post(t, x.tx, x.next, 64, 0) {
					t.Fatalf("round %d: no room", round)
				}
				x.next++
			}
			x.tx.Flush()
			shmtest.Got(x.tx.Kick()).Or(t)
		}
		if n := x.tx.Unsent(); n != 32 || x.post(t, x.tx, 0, 64, 0) {
			t.Fatalf("%d not sent, want 32", n)
		}
		if s := x.tx.SyscallStats(); s.Again == 0 {
			t.Errorf("%+v", s)
		}
		x.until(t, 64, func() bool { return x.done == 64 && x.seen == 64 })
		x.finish(t)
	})
}
