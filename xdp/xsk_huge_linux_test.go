package xdp_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// setHugePages changes how many pages of 2 MiB the kernel keeps ready, for the time of the test. It
// asks more than once: with a signal pending, as those are with which the runtime of Go preempts,
// the kernel ends a write early and calls it a success; and it may have to compact memory first.
func setHugePages(t testing.TB, pages int) {
	t.Helper()
	const name = "/proc/sys/vm/nr_hugepages"
	read := func() string {
		b, err := os.ReadFile(name)
		must(t, err)
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
		peer, geo, err := xdp.OpenUMEM(x.rx.UMEM().FD(), "peer", 0)
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
	eachProgram(t, xskConfig{program: byMAC, txUMEM: u, rxUMEM: u}, func(t *testing.T, x *xsk) {
		tx, rx := x.share(t, 2, xdp.Options{})
		x.shared(t, tx, rx, 2000, func(n int) int { return n % 2 }, always(64))
	})
}

// TestXskInvalidUnaligned (UNALIGNED_INV_DESC, UNALIGNED_INV_DESC_4001_FRAME_SIZE): packets may lie
// over the end of a chunk there, and not over that of the memory, which is no multiple of a page.
func TestXskInvalidUnaligned(t *testing.T) {
	shmtest.Conforms(t)
	setHugePages(t, 8)
	for _, bytes := range []uint32{2100, 4001} {
		c := xskConfig{txUMEM: unaligned(bytes), tx: xdp.Options{SendFrames: 400}}
		eachXsk(t, c, func(t *testing.T, x *xsk) { x.invalidUnaligned(t, bytes) })
	}
}

func (x *xsk) invalidUnaligned(t *testing.T, bytes uint32) {
	mem := x.tx.UMEM().Region().Bytes()
	size := uint64(len(mem))
	valid, bad := 0, uint64(0)
	for _, e := range []struct {
		addr uint64
		len  uint32
		ok   bool
	}{
		{size - 64, 64, true}, {size - 63, 64, false}, {size, 64, false},
		{300 * uint64(bytes), 64, true}, {4096*100 - 32, 64, true}, {1 << 40, 64, false},
		{300 * uint64(bytes), bytes + 1, false}, {300 * uint64(bytes), 0, false},
	} {
		if e.ok {
			xskPacket(mem[e.addr:][:e.len], valid, 0)
			valid++
		} else {
			bad++
		}
		xdp.ForgePost(x.tx, xdp.Desc{Addr: e.addr, Len: e.len}, 0)
		x.kick(t, x.tx)
	}
	await(t, "the valid ones", func() bool {
		x.kick(t, x.tx)
		x.seenAny(t, x.rx)
		return x.seen == valid && stats(t, x.tx).TxInvalid == bad
	})
	if f := x.tx.FrameStats(); f.Sum() != f.Frames {
		t.Errorf("%+v", f)
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
