package xdp_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
)

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
