package xdp_test

import (
	"encoding/binary"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

// eachProgram runs a case with a program in both modes.
func eachProgram(t *testing.T, c xskConfig, run func(t *testing.T, x *xsk)) {
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) { run(t, newXsk(t, mode, c)) })
	}
}

// TestXskDropHalf (XDP_DROP_HALF): exactly the packets arrive that the program lets through.
func TestXskDropHalf(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachProgram(t, xskConfig{program: dropHalf}, func(t *testing.T, x *xsk) {
		const packets = 500
		for n := range packets {
			x.post(t, x.tx, n/2+n%2*0x8000, 64, 0) // those that are dropped have other numbers
			x.kick(t, x.tx)
			x.take(t, x.rx, always(64))
		}
		await(t, "half of them", func() bool {
			x.kick(t, x.tx)
			x.take(t, x.rx, always(64))
			return x.seen == packets/2 && x.done == packets
		})
		x.finish(t)
	})
}

// TestXskMetadata (XDP_METADATA_COPY): what the program writes in front of a packet lies in front
// of it in the frame.
func TestXskMetadata(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachProgram(t, xskConfig{program: withMetadata}, func(t *testing.T, x *xsk) {
		for n := range 300 {
			x.post(t, x.tx, n, 64, 0)
			x.kick(t, x.tx)
			await(t, "a packet", func() bool { return x.rx.Receive(x.got[:1]) == 1 })
			x.checkMetadata(t, x.got[0], n)
			isPacket(t, x.rx.Packet(x.got[0]), n)
			x.rx.Drop(x.got[0].Frame)
			x.rx.Fill(1)
		}
		x.finish(t)
	})
}

func (x *xsk) checkMetadata(t testing.TB, r xdp.Received, n int) {
	t.Helper()
	mem := x.rx.UMEM().Region().Bytes()
	if m := binary.LittleEndian.Uint64(mem[r.Off-8:]); m != uint64(n) {
		t.Fatalf("packet %d has metadata %d", n, m)
	}
}

// TestXskAdjustTail (XDP_ADJUST_TAIL_SHRINK, XDP_ADJUST_TAIL_GROW): the program makes packets
// longer and shorter; what the socket sees has that length.
func TestXskAdjustTail(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]int32{"shrink": -4, "grow": 4} {
		t.Run(name, func(t *testing.T) {
			shmtest.Conforms(t)
			eachProgram(t, xskConfig{program: adjustTail(by)}, func(t *testing.T, x *xsk) {
				// Behind packets of other lengths veth in native mode has no room to grow into: it
				// rounds up to cache lines, with 256 bytes in front.
				const size = 60
				for n := range 300 {
					x.post(t, x.tx, n, size, 0)
					x.kick(t, x.tx)
					await(t, "a packet", func() bool { return x.rx.Receive(x.got[:1]) == 1 })
					b := x.rx.Packet(x.got[0])
					if len(b) != size+int(by) {
						t.Fatalf("packet %d has %d bytes", n, len(b))
					}
					isPacket(t, b[:min(size, len(b))], n)
					x.rx.Drop(x.got[0].Frame)
					x.rx.Fill(1)
				}
				x.finish(t)
			})
		})
	}
}

// jumbo is a case of packets in several frames.
func jumbo(program body) xskConfig {
	o := xdp.Options{MultiBuffer: true}
	return xskConfig{pair: veth.Config{MTU: 9000}, tx: o, rx: o, frags: true, program: program}
}
