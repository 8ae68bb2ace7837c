package xdp_test

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
)

// postChain posts packet n of any size in as many frames as it needs.
func (x *xsk) postChain(t testing.TB, n, size int) bool {
	t.Helper()
	b := make([]byte, size)
	xskPacket(b, n, 0)
	var parts []xdp.Part
	for len(b) > 0 {
		f, buf, ok := x.tx.Acquire()
		if !ok {
			for _, p := range parts {
				x.tx.Drop(p.Frame)
			}
			return false
		}
		k := copy(buf, b)
		b = b[k:]
		parts = append(parts, xdp.Part{Frame: f, Len: k})
	}
	must(t, x.tx.PostChain(parts, uint64(n)))
	return true
}

// takeChain puts the parts of the next packet together and gives their frames back. No packet: nil.
func (x *xsk) takeChains(t testing.TB, each func(b []byte, parts []xdp.Received)) {
	t.Helper()
	got := x.got[:x.rx.Receive(x.got[:])]
	for len(got) > 0 {
		var b []byte
		n := 0
		for more := true; more; n++ {
			if n == len(got) {
				t.Fatalf("%d parts of a packet and no end", n)
			}
			b = append(b, x.rx.Packet(got[n])...)
			more = got[n].More
		}
		each(b, got[:n])
		for _, r := range got[:n] {
			x.rx.Drop(r.Frame)
		}
		got = got[n:]
	}
	x.rx.Fill(len(x.got))
}

// streamChains is stream for packets of any size.
func (x *xsk) streamChains(t testing.TB, packets, longer int, size func(int) int) {
	t.Helper()
	await(t, "all packets and completions", func() bool {
		for x.next < packets && x.next < x.seen+16 && x.postChain(t, x.next, size(x.next)) {
			x.next++
		}
		x.kick(t, x.tx)
		x.takeChains(t, func(b []byte, parts []xdp.Received) {
			want := size(x.seen) + longer
			if len(b) != want {
				t.Fatalf("packet %d has %d bytes in %d frames, want %d", x.seen, len(b), len(parts),
					want)
			}
			isPacket(t, b[:min(want, want-longer)], x.seen)
			x.seen++
		})
		return x.seen == packets && x.done == packets
	})
	x.finish(t)
}

// TestXskSendReceive9K (SEND_RECEIVE_9K_PACKETS): packets of every length up to that of the device,
// in one frame or several.
func TestXskSendReceive9K(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, jumbo(nil), func(t *testing.T, x *xsk) {
		if g := x.rx.Info(); !g.MultiBuffer || x.tx.Info().ChainBytes != 9018 {
			t.Fatalf("%+v, %d bytes", g, x.tx.Info().ChainBytes)
		}
		x.streamChains(t, 600, 0, func(n int) int { return 60 + n*397%8955 })
	})
}

// TestXskTooManyFrames (TOO_MANY_FRAGS): as many frames as the kernel takes arrive; one more is
// refused before the kernel sees it, and so is a packet longer than the device takes.
func TestXskTooManyFrames(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, jumbo(nil), func(t *testing.T, x *xsk) {
		var parts [xdp.MaxChain + 1]xdp.Part
		for i := range parts {
			f, buf, ok := x.tx.Acquire()
			if !ok {
				t.Fatal("no frame")
			}
			var whole [60 * (xdp.MaxChain + 1)]byte
			xskPacket(whole[:], 0, 0)
			parts[i] = xdp.Part{Frame: f, Len: copy(buf[:60], whole[60*i:])}
		}
		if err := x.tx.PostChain(parts[:], 0); !errors.Is(err, xdp.ErrTooBig) {
			t.Errorf("%d frames: %v", len(parts), err)
		}
		parts[3].Len = 1729
		if err := x.tx.PostChain(parts[:5], 0); !errors.Is(err, xdp.ErrTooBig) {
			t.Errorf("more than a frame has: %v", err)
		}
		for i := range parts {
			parts[i].Len = 1700
		}
		if err := x.tx.PostChain(parts[:6], 0); !errors.Is(err, xdp.ErrTooBig) {
			t.Errorf("more than the device takes: %v", err)
		}
		for i := range parts {
			parts[i].Len = 60
		}
		twice := []xdp.Part{parts[0], parts[1], parts[0]}
		if err := x.tx.PostChain(twice, 0); !errors.Is(err, xdp.ErrFrame) {
			t.Errorf("a frame twice: %v", err)
		}
		must(t, x.tx.PostChain(parts[:xdp.MaxChain], 0))
		x.tx.Drop(parts[xdp.MaxChain].Frame)
		await(t, "the packet", func() bool {
			x.kick(t, x.tx)
			x.takeChains(t, func(b []byte, _ []xdp.Received) {
				if len(b) != 60*xdp.MaxChain {
					t.Fatalf("%d bytes", len(b))
				}
				isPacket(t, b, 0)
				x.seen++
			})
			return x.seen == 1 && x.done == 1
		})
		if f := x.tx.FrameStats(); f.Build != 0 || f.Send != 0 {
			t.Errorf("%+v", f)
		}
	})
}

// TestXskTooBigWithoutChains: without MultiBuffer a packet that is too long is an error at Post,
// and one that arrives is dropped and counted, never cut.
func TestXskTooBigWithoutChains(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{pair: veth.Config{MTU: 9000}, frags: true,
		tx: xdp.Options{MultiBuffer: true}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		f, buf, _ := x.rx.Acquire()
		g, _, _ := x.rx.Acquire()
		if len(buf) != 1728 || x.rx.Info().ChainBytes != 1728 {
			t.Errorf("a frame of %d bytes, a packet of %d", len(buf), x.rx.Info().ChainBytes)
		}
		if err := x.rx.Post(f, 1729, 0); !errors.Is(err, xdp.ErrTooBig) {
			t.Errorf("post: %v", err)
		}
		two := []xdp.Part{{Frame: f, Len: 100}, {Frame: g, Len: 100}}
		if err := x.rx.PostChain(two, 0); !errors.Is(err, xdp.ErrTooBig) {
			t.Errorf("two frames: %v", err)
		}
		x.postChain(t, 7, 5000)
		x.kick(t, x.tx)
		x.sends(t, 1, 64)
		x.until(t, 64, func() bool { return x.seen == 1 && stats(t, x.rx).RxDropped == 1 })
		checkSum(t, x.rx)
	})
}

// TestXskMetadataJumbo (XDP_METADATA_COPY_MULTI_BUFF): metadata lies in front of the first part.
func TestXskMetadataJumbo(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, jumbo(withMetadata), func(t *testing.T, x *xsk) {
		for n := range 100 {
			x.postChain(t, n, 5000)
			x.kick(t, x.tx)
			await(t, "a packet", func() bool {
				x.takeChains(t, func(b []byte, parts []xdp.Received) {
					x.checkMetadata(t, parts[0], n)
					isPacket(t, b, n)
					x.seen++
				})
				return x.seen == n+1
			})
		}
		x.finish(t)
	})
}

// TestXskAdjustTailJumbo (XDP_ADJUST_TAIL_SHRINK_MULTI_BUFF): the program changes the length of the
// last part. Making it longer is more than veth offers: the kernel refuses to where the driver does
// not say how long its buffers are.
func TestXskAdjustTailJumbo(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, jumbo(adjustTail(-4)), func(t *testing.T, x *xsk) {
		x.streamChains(t, 200, -4, always(5002))
	})
}

// TestXskInvalidJumbo (ALIGNED_INV_DESC_MULTI_BUFF): one bad part spoils its packet and no other.
func TestXskInvalidJumbo(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, jumbo(nil), func(t *testing.T, x *xsk) { x.invalidChains(t, 2048*2048) })
}

// invalidChains posts packets that are bad in some way, and a good one behind each. size is that of
// the memory.
func (x *xsk) invalidChains(t *testing.T, size uint64) {
	for name, bad := range map[string]func(d *xskernel.Desc){
		"no length":         func(d *xskernel.Desc) { d.Len = 0 },
		"over the chunk":    func(d *xskernel.Desc) { d.Len = 4096 },
		"outside":           func(d *xskernel.Desc) { d.Addr = 1 << 40 },
		"unknown option":    func(d *xskernel.Desc) { d.Options |= 1 << 9 },
		"end of the memory": func(d *xskernel.Desc) { d.Addr = size - 8 },
	} {
		before := stats(t, x.tx).TxInvalid
		for i := range 3 {
			f, buf, ok := x.tx.Acquire()
			if !ok {
				t.Fatal("no frame")
			}
			xskPacket(buf[:1000], 0xdead, 0)
			d := xskernel.Desc{Addr: xdp.SendOffset(x.tx, f), Len: 1000}
			if i < 2 {
				d.Options = 1
			}
			if i == 1 {
				if bad(&d); d.Addr != xdp.SendOffset(x.tx, f) {
					x.tx.Drop(f)
				}
			}
			xdp.ForgePost(x.tx, d, 0)
		}
		x.postChain(t, x.seen, 3000)
		want := x.seen + 1
		await(t, name+": the next packet", func() bool {
			x.kick(t, x.tx)
			x.takeChains(t, func(b []byte, _ []xdp.Received) {
				if len(b) != 3000 {
					t.Fatalf("%s: %d bytes arrived", name, len(b))
				}
				isPacket(t, b, x.seen)
				x.seen++
			})
			return x.seen == want && stats(t, x.tx).TxInvalid > before
		})
	}
	if f := x.tx.FrameStats(); f.Sum() != f.Frames || x.rx.FrameStats().Illegal != 0 {
		t.Errorf("%+v", f)
	}
}

// setHugePages changes how many pages of 2 MiB the kernel keeps ready, for the time of the test. It
// asks more than once: with a signal pending, as those are with which the runtime of Go preempts,
// the kernel ends a write early and calls it a success; and it may have to compact memory first.
func setHugePages(t testing.TB, pages int) {
	t.Helper()
	const name = "/proc/sys/vm/nr_hugepages"
	read := func() string {
		b := shmtest.Got(os.ReadFile(name)).Or(t)
		return strings.TrimSpace(string(b))
	}
	before, want, got := read(), strconv.Itoa(pages), ""
	var err error
	for range 50 {
		if err = os.WriteFile(name, []byte(want), 0); err != nil {
			break
		}
		if got = read(); got == want {
			break
		}
		_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0)
		time.Sleep(50 * time.Millisecond)
	}
	if err == nil {
		t.Cleanup(func() { must(t, os.WriteFile(name, []byte(before), 0)) })
		if got != want {
			err = fmt.Errorf("%s huge pages, want %s", got, want)
		}
	}
	shmtest.Require(t, "hugepages", err)
}

// TestHugePagesGranted: with huge pages the memory is such and everything works on it; without, it
// is ordinary memory, and the reason is told.
func TestHugePagesGranted(t *testing.T) {
	setHugePages(t, 0)
	if huge, err := xdptest.NewUMEM(t, xdp.UMEMOptions{}).HugePages(); huge || err != nil {
		t.Errorf("not asked for: %v, %v", huge, err)
	}
	o := xdp.UMEMOptions{Frames: 512, HugePages: true}
	if huge, err := xdptest.NewUMEM(t, o).HugePages(); huge || err == nil ||
		!strings.Contains(err.Error(), "vm.nr_hugepages") {
		t.Errorf("none there: %v, %v", huge, err)
	}
	setHugePages(t, 12)
	eachXsk(t, xskConfig{txUMEM: o, rxUMEM: o}, func(t *testing.T, x *xsk) {
		if huge, err := x.rx.UMEM().HugePages(); !huge || err != nil {
			t.Fatalf("%v, %v", huge, err)
		}
		x.stream(t, x.tx, x.rx, 2000, func(n int) int { return 60 + n%1400 })
		x.finish(t)
		peer, geo, err := xdp.OpenUMEM(x.rx.UMEM().Region().Object().FD(), "peer", 0)
		must(t, err)
		if geo != x.rx.UMEM().Geometry() || len(peer.Bytes()) != int(geo.Frames*geo.ChunkBytes) {
			t.Errorf("%+v", geo)
		}
		must(t, peer.Close(t.Context()))
	})
}

// unaligned is a UMEM whose chunks straddle pages.
func unaligned(bytes uint32) xdp.UMEMOptions {
	return xdp.UMEMOptions{Frames: 512, ChunkBytes: bytes, Unaligned: true, HugePages: true}
}

// TestXskUnaligned (SEND_RECEIVE_UNALIGNED): chunks of 3000 bytes, of which many straddle a page,
// and with them packets.
func TestXskUnaligned(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	u := unaligned(3000)
	eachXsk(t, xskConfig{txUMEM: u, rxUMEM: u, start: ^uint32(99)}, func(t *testing.T, x *xsk) {
		x.stream(t, x.tx, x.rx, 3000, func(n int) int { return 60 + n%1450 })
		x.finish(t)
	})
}

// TestXskUnaligned9K (UNALIGNED_9K): packets in several chunks of odd size.
func TestXskUnaligned9K(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	c := jumbo(nil)
	c.txUMEM, c.rxUMEM = unaligned(2500), unaligned(3333)
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		x.streamChains(t, 400, 0, func(n int) int { return 60 + n*397%8955 })
	})
}

// TestXskSharedUnaligned (SHARED_UMEM_UNALIGNED).
func TestXskSharedUnaligned(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	u := unaligned(3000)
	c := xskConfig{program: byMAC, real: true, txUMEM: u, rxUMEM: u}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		x.shared(t, 2, xdp.Options{}, 2000, func(n int) int { return n % 2 }, always(64))
	})
}

// TestXskInvalidUnaligned (UNALIGNED_INV_DESC, UNALIGNED_INV_DESC_4001_FRAME_SIZE): packets may lie
// over the end of a chunk there, and not over that of the memory, which is no multiple of a page.
func TestXskInvalidUnaligned(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	for _, bytes := range []uint32{2100, 4001} {
		c := xskConfig{txUMEM: unaligned(bytes), tx: xdp.Options{SendFrames: 400}}
		eachXsk(t, c, func(t *testing.T, x *xsk) {
			size, frame := uint64(512*bytes), 300*uint64(bytes)
			x.forge(t, []forged{
				{size - 64, 64, true}, {size - 63, 64, false}, {size, 64, false},
				{frame, 64, true}, {4096*100 - 32, 64, true}, {1 << 40, 64, false},
				{frame, bytes + 1, false}, {frame, 0, false},
			})
		})
	}
}

// TestXskInvalidUnalignedJumbo (UNALIGNED_INV_DESC_MULTI_BUFF): one bad part spoils its packet.
func TestXskInvalidUnalignedJumbo(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	c := jumbo(nil)
	c.txUMEM = unaligned(2500)
	eachXsk(t, c, func(t *testing.T, x *xsk) { x.invalidChains(t, uint64(512*2500)) })
}
