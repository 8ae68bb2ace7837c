package xdp_test

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
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
	program        body // byQueue, if nil
	real           bool // the simulated wire does not do what the program does
	frags          bool
	start          uint32 // of the indices of simulated rings
}

// xsk is a sender on end A and a receiver on end B.
type xsk struct {
	mode   xdp.AttachMode
	pair   *veth.Pair  // nil if simulated
	prog   *xskProgram // nil if simulated
	tx, rx *xdp.Socket
	wire   [2]*xskernel.Kernel // of tx and rx, if simulated
	next   int                 // number of the next packet to be sent
	seen   int                 // and of the next one to be received
	done   int                 // completions
	// contexts is the sum of those that were posted, less those that came back.
	contexts int
	got      [64]xdp.Received
	sent     [64]xdp.Sent
}

// eachXsk runs a case in all modes that it can be run in.
func eachXsk(t *testing.T, c xskConfig, run func(t *testing.T, x *xsk)) {
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) { run(t, newXsk(t, mode, c)) })
	}
	if !c.real {
		t.Run("simulated", func(t *testing.T) { run(t, simulatedXsk(t, c)) })
	}
}

func newXsk(t *testing.T, mode xdp.AttachMode, c xskConfig) *xsk {
	t.Helper()
	x := &xsk{mode: mode, pair: xdptest.NewPair(t, c.pair)}
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
	x := &xsk{}
	o := xdptest.SimOptions{Options: c.tx, MTU: c.pair.MTU, StartIndex: c.start}
	x.tx, x.wire[0] = xdptest.NewSim(t, c.txUMEM, o)
	o.Options = c.rx
	x.rx, x.wire[1] = xdptest.NewSim(t, c.rxUMEM, o)
	xskernel.Connect(x.wire[0], x.wire[1])
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
	x.contexts += n
	return true
}

// kick sends what was posted, and reaps. What the kernel cannot take now it takes in the next call.
func (x *xsk) kick(t testing.TB, s *xdp.Socket) {
	t.Helper()
	s.Flush()
	shmtest.Got(s.Kick()).Or(t)
	n := s.Reap(x.sent[:])
	for _, d := range x.sent[:n] {
		x.contexts -= int(d.Context)
	}
	x.done += n
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
// arrive, in order, with their bytes, and all complete with their contexts.
func (x *xsk) stream(t testing.TB, from, to *xdp.Socket, packets int, size func(int) int) {
	t.Helper()
	const window = 64
	end, done, contexts := x.next+packets, x.done+packets, x.contexts
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
	if x.contexts != contexts {
		t.Errorf("contexts came back that are %d off in sum", x.contexts-contexts)
	}
}

// sends sends n packets of a size, each with a kick of its own.
func (x *xsk) sends(t testing.TB, n, size int) {
	t.Helper()
	for n := range n {
		x.post(t, x.tx, n, size, 0)
		x.kick(t, x.tx)
	}
}

// until goes on with what was posted, and takes packets of a size, until ok.
func (x *xsk) until(t testing.TB, size int, ok func() bool) {
	t.Helper()
	await(t, "all packets and completions", func() bool {
		x.kick(t, x.tx)
		x.take(t, x.rx, always(size))
		return ok()
	})
}

// oneByOne sends packets, and has each looked at before the next one.
func (x *xsk) oneByOne(t testing.TB, packets, size int, look func(n int, r xdp.Received)) {
	t.Helper()
	for n := range packets {
		x.post(t, x.tx, n, size, 0)
		x.kick(t, x.tx)
		await(t, "a packet", func() bool { return x.rx.Receive(x.got[:1]) == 1 })
		look(n, x.got[0])
		x.rx.Recycle(x.got[:1])
	}
	x.finish(t)
}

// finish checks what has to hold after each case.
func (x *xsk) finish(t testing.TB) {
	t.Helper()
	checkSum(t, x.tx)
	checkSum(t, x.rx)
	for _, s := range []*xdp.Socket{x.tx, x.rx} {
		k := shmtest.Got(s.KernelStats()).Or(t)
		if k.TxInvalid != 0 || k.RxInvalid != 0 {
			t.Errorf("the kernel refused descriptors: %+v", k)
		}
	}
}

func always(n int) func(int) int { return func(int) int { return n } }

// Offsets in struct xdp_md.
const (
	mdData    = 0
	mdDataEnd = 4
	mdMeta    = 8
)

// xskProgram is a small program of a test on an end, with the map that it redirects by.
type xskProgram struct {
	xsks, count *ebpf.Map
}

// put sends what the program redirects to slot i to a socket.
func (p *xskProgram) put(t testing.TB, i uint32, s *xdp.Socket) {
	t.Helper()
	must(t, p.xsks.Put(i, uint32(s.FD())))
}

func (p *xskProgram) remove(t testing.TB, i uint32) {
	t.Helper()
	must(t, p.xsks.Delete(i))
}

// body writes the instructions of a program. R6 holds the context.
type body func(p *xskProgram) asm.Instructions

// attachProgram attaches a program for the time of the test. frags says that it takes packets in
// several buffers.
func attachProgram(t testing.TB, e *veth.End, mode xdp.AttachMode, frags bool, b body) *xskProgram {
	t.Helper()
	p := &xskProgram{}
	newMap := func(kind ebpf.MapType, size uint32) *ebpf.Map {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 4, MaxEntries: size})
		shmtest.Require(t, "bpf", err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	p.xsks, p.count = newMap(ebpf.XSKMap, 8), newMap(ebpf.Array, 1)
	spec := &ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, b(p)...)}
	if frags {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	prog, err := ebpf.NewProgram(spec)
	shmtest.Require(t, "bpf", err)
	t.Cleanup(func() { prog.Close() })
	flags := link.XDPDriverMode
	if mode == xdp.AttachGeneric {
		flags = link.XDPGenericMode
	}
	var l link.Link
	must(t, e.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: e.Index, Flags: flags})
		return err
	}))
	t.Cleanup(func() { l.Close() })
	return p
}

// redirect ends a program: to the socket in the slot that R2 holds.
func (p *xskProgram) redirect() asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, p.xsks.FD()),
		asm.Mov.Imm(asm.R3, 2), // XDP_PASS if there is none
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}
}

// counted leaves in R7 how many packets the program has seen before.
func (p *xskProgram) counted() asm.Instructions {
	return asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, p.count.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R7, asm.R0, 0, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.Word),
	}
}

// drop is where programs jump to give a packet up.
var drop = asm.Instructions{
	asm.Mov.Imm(asm.R0, 1).WithSymbol("drop"), // XDP_DROP
	asm.Return(),
}

func join(parts ...asm.Instructions) (all asm.Instructions) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// byQueue sends everything to the socket of the queue that it came in by.
func byQueue(p *xskProgram) asm.Instructions {
	return join(asm.Instructions{asm.LoadMem(asm.R2, asm.R6, 16, asm.Word)}, p.redirect())
}

// dropHalf gives every other packet up, beginning with the second.
func dropHalf(p *xskProgram) asm.Instructions {
	return join(p.counted(), asm.Instructions{
		asm.And.Imm(asm.R7, 1),
		asm.JNE.Imm(asm.R7, 0, "drop"),
		asm.Mov.Imm(asm.R2, 0),
	}, p.redirect(), drop)
}

// byMAC sends to the slot in the last byte of the destination address.
func byMAC(p *xskProgram) asm.Instructions {
	return join(asm.Instructions{
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R2),
		asm.Add.Imm(asm.R1, 14),
		asm.JGT.Reg(asm.R1, asm.R3, "drop"),
		asm.LoadMem(asm.R2, asm.R2, 5, asm.Byte),
	}, p.redirect(), drop)
}

// byLength sends packets of more than limit bytes to slot 1, and others to slot 0.
func byLength(limit int32) body {
	return func(p *xskProgram) asm.Instructions {
		return join(asm.Instructions{
			asm.LoadMem(asm.R1, asm.R6, mdData, asm.Word),
			asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
			asm.Sub.Reg(asm.R3, asm.R1),
			asm.Mov.Imm(asm.R2, 0),
			asm.JLE.Imm(asm.R3, limit, "short"),
			asm.Mov.Imm(asm.R2, 1),
			asm.LoadMapPtr(asm.R1, p.xsks.FD()).WithSymbol("short"),
			asm.Mov.Imm(asm.R3, 2),
			asm.FnRedirectMap.Call(),
			asm.Return(),
		})
	}
}

// withMetadata writes the number of the packet in front of it.
func withMetadata(p *xskProgram) asm.Instructions {
	return join(p.counted(), asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, -8),
		asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R6, mdMeta, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R1),
		asm.Add.Imm(asm.R3, 8),
		asm.JGT.Reg(asm.R3, asm.R2, "drop"),
		asm.StoreMem(asm.R1, 0, asm.R7, asm.DWord),
		asm.Mov.Imm(asm.R2, 0),
	}, p.redirect(), drop)
}

// adjustTail makes packets longer or shorter.
func adjustTail(by int32) body {
	return func(p *xskProgram) asm.Instructions {
		return join(asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, by),
			asm.FnXdpAdjustTail.Call(),
			asm.JNE.Imm(asm.R0, 0, "drop"),
			asm.Mov.Imm(asm.R2, 0),
		}, p.redirect(), drop)
	}
}

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){
		"hold-queue":    func() { hold(0, true) },
		"hold-only":     func() { hold(0, false) },
		"send-and-hold": func() { hold(3, false) },
		"memlock":       memlockChild,
		"read-umem":     readUMEMChild,
		"probe":         probeChild,
		"no-bpffs":      noBPFFSChild,
		"passed-socket": passedChild,
	})
}
