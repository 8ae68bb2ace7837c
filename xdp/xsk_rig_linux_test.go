package xdp_test

import (
	"encoding/binary"
	"testing"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// The tests named TestXsk are the cases of the kernel's own test of these sockets (xskxceiver),
// each between two sockets in namespaces of their own; with a program in native or in generic mode,
// and where nothing of it needs a program between two simulated ones too, without privilege.

// xskConfig describes a case. Zero values stand for what most have.
type xskConfig struct {
	txUMEM, rxUMEM xdp.UMEMOptions
	tx, rx         xdp.Options
	pair           veth.Config
	program        body // byQueue, if nil, which is also what the simulated wire does
	frags          bool
	start          uint32 // of the indices of simulated rings
}

// xsk is a sender on end A and a receiver on end B.
type xsk struct {
	mode   string
	pair   *veth.Pair  // nil if simulated
	prog   *xskProgram // nil if simulated
	tx, rx *xdp.Socket
	wire   [2]*xdp.Kernel // of tx and rx, if simulated
	next   int            // number of the next packet to be sent
	seen   int            // and of the next one to be received
	done   int            // completions
	got    [64]xdp.Received
	sent   [64]xdp.Sent
}

// eachXsk runs a case in all modes that it can be run in.
func eachXsk(t *testing.T, c xskConfig, run func(t *testing.T, x *xsk)) {
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) { run(t, newXsk(t, mode, c)) })
	}
	if c.program == nil {
		t.Run("simulated", func(t *testing.T) { run(t, simulatedXsk(t, c)) })
	}
}

func newXsk(t *testing.T, mode xdp.AttachMode, c xskConfig) *xsk {
	t.Helper()
	x := &xsk{mode: mode.String(), pair: xdptest.NewPair(t, c.pair)}
	if c.program == nil {
		c.program = byQueue
	}
	x.prog = attachProgram(t, x.pair.B, mode, c.frags, c.program)
	x.tx = xdptest.Open(t, x.pair.A, 0, xdptest.NewUMEM(t, c.txUMEM), c.tx)
	x.rx = xdptest.Open(t, x.pair.B, 0, xdptest.NewUMEM(t, c.rxUMEM), c.rx)
	x.prog.put(t, 0, x.rx)
	return x
}

func simulatedXsk(t *testing.T, c xskConfig) *xsk {
	t.Helper()
	mtu := c.pair.MTU
	x := &xsk{mode: "simulated"}
	x.tx, x.wire[0] = newSim(t, c.txUMEM, xdp.SimOptions{Options: c.tx, MTU: mtu, StartIndex: c.start})
	x.rx, x.wire[1] = newSim(t, c.rxUMEM, xdp.SimOptions{Options: c.rx, MTU: mtu, StartIndex: c.start})
	xdp.Connect(x.wire[0], x.wire[1])
	return x
}

const etherTest = 0x9000 // the Ethernet loop-back protocol, which no stack answers

// xskPacket writes packet n to slot i: a header, and words that no other packet has.
func xskPacket(b []byte, n, slot int) {
	copy(b, []byte{2, 0, 0, 0, 1, byte(slot), 2, 0, 0, 0, 2, byte(slot)})
	binary.BigEndian.PutUint16(b[12:], etherTest)
	for i := 14; i < len(b); i += 4 {
		var w [4]byte
		binary.BigEndian.PutUint32(w[:], uint32(n)<<16|uint32(i)>>2)
		copy(b[i:], w[:])
	}
}

// isPacket fails the test unless b is packet n.
func isPacket(t testing.TB, b []byte, n int) {
	t.Helper()
	for i := 14; i+4 <= len(b); i += 4 {
		if w := binary.BigEndian.Uint32(b[i:]); w != uint32(n)<<16|uint32(i)>>2 {
			t.Fatalf("packet %d of %d bytes: word %#x at %d", n, len(b), w, i)
		}
	}
}

// post posts packet n of a size, for a slot.
func (x *xsk) post(t testing.TB, s *xdp.Socket, n, size, slot int) bool {
	t.Helper()
	f, buf, ok := s.Acquire()
	if !ok {
		return false
	}
	xskPacket(buf[:size], n, slot)
	must(t, s.Post(f, size, uint64(n)))
	return true
}

// kick sends what was posted, and reaps. What the kernel cannot take now it takes in the next call.
func (x *xsk) kick(t testing.TB, s *xdp.Socket) {
	t.Helper()
	s.Flush()
	_, err := s.Kick()
	must(t, err)
	x.done += s.Reap(x.sent[:])
}

// take receives what is there, checks it against the numbers and sizes that are expected, and gives
// the frames back to the kernel.
func (x *xsk) take(t testing.TB, s *xdp.Socket, size func(int) int) int {
	t.Helper()
	n := s.Receive(x.got[:])
	for _, r := range x.got[:n] {
		b := s.Packet(r)
		if len(b) != size(x.seen) {
			t.Fatalf("packet %d has %d bytes, want %d", x.seen, len(b), size(x.seen))
		}
		isPacket(t, b, x.seen)
		x.seen++
		s.Drop(r.Frame)
	}
	s.Fill(len(x.got))
	return n
}

// stream sends packets from one socket to the other, no more at a time than the wire holds. All
// arrive, in order, with their bytes, and all complete.
func (x *xsk) stream(t testing.TB, from, to *xdp.Socket, packets int, size func(int) int) {
	t.Helper()
	const window = 64
	end, done := x.next+packets, x.done+packets
	await(t, "all packets and completions", func() bool {
		for {
			for x.next < end && x.next < x.seen+window &&
				x.post(t, from, x.next&0xffff, size(x.next), 0) {
				x.next++
			}
			x.kick(t, from)
			if x.take(t, to, size) == 0 {
				return x.seen == end && x.done == done
			}
		}
	})
}

// finish checks what has to hold after each case.
func (x *xsk) finish(t testing.TB) {
	t.Helper()
	checkSum(t, x.tx)
	checkSum(t, x.rx)
	for _, s := range []*xdp.Socket{x.tx, x.rx} {
		k, err := s.KernelStats()
		must(t, err)
		if k.TxInvalid != 0 || k.RxInvalid != 0 {
			t.Errorf("the kernel refused descriptors: %+v", k)
		}
	}
}

func always(n int) func(int) int { return func(int) int { return n } }
