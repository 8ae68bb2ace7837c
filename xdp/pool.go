package xdp

import (
	"math/bits"

	"github.com/shmring/shmring/internal/xskernel"
)

// pool is what the sockets on one queue of a device have in common: some frames of a UMEM, the fill
// ring and the completion ring. One goroutine uses all sockets of a pool, since both rings have one
// producer and one consumer each.
//
// The kernel puts the completions of all sockets into the one ring. Each frame knows who sent it,
// so that whoever looks first sorts them.
type pool struct {
	mem      []byte
	chunk    uint64 // bytes, a power of two unless odd
	shift    uint8  // its exponent: a division takes longer than all the rest of a packet
	odd      bool   // chunks are unaligned: of any size, and addresses have an offset in their top
	headroom uint64 // of each chunk, in front of the kernel's own

	frames  *frameTable
	fill    producer[uint64]
	comp    consumer[uint64]
	sends   []sending // by place in the table
	members []*core   // by number; nil once closed and told of all that they sent
	open    int       // members that are not closed
	shared  bool      // there is, or was, more than one member
	maps    [][]byte  // the two rings
}

// sending is what is known about a frame that was given to the kernel to send.
type sending struct {
	context uint64
	owner   uint16 // number of the member that posted it
	part    bool   // of a longer packet, and not its last frame
}

// nobody owns a frame whose sender was closed and has been told so.
const nobody = ^uint16(0)

func newPool(mem []byte, g Geometry, first, frames, sendFrames uint32) *pool {
	return &pool{
		mem: mem, chunk: uint64(g.ChunkBytes), headroom: uint64(g.HeadroomBytes),
		shift: uint8(bits.TrailingZeros32(g.ChunkBytes)), odd: g.Unaligned,
		frames: newFrameTable(first, frames, frames-sendFrames),
		sends:  make([]sending, frames),
		fill:   deadProducer[uint64](),
		comp:   deadConsumer[uint64](),
	}
}

// join makes c a member. It fails after as many as numbers can tell apart.
func (p *pool) join(c *core) bool {
	if len(p.members) >= int(nobody) {
		return false
	}
	c.pool, c.id = p, uint16(len(p.members))
	p.members = append(p.members, c)
	p.open++
	if len(p.members) < 2 {
		return true
	}
	p.shared = true
	for _, m := range p.members {
		if m != nil && m.routed == nil {
			m.routed = make([]Sent, 0, len(p.sends)) // as many as can ever wait
		}
	}
	return true
}

// leave ends a membership and reports whether it was the last one. Completions are still kept for
// the one that left, until it forfeits them.
func (p *pool) leave() bool {
	p.open--
	return p.open == 0
}

// frameOf returns the number of the frame that an address of the UMEM lies in. The number is no
// frame's if the address is outside.
func (p *pool) frameOf(addr uint64) uint32 {
	if addr >= uint64(len(p.mem)) {
		return ^uint32(0)
	}
	if p.odd {
		return uint32(addr / p.chunk)
	}
	return uint32(addr >> (p.shift & 63))
}

// place returns where in the UMEM the address of a received packet is. With unaligned chunks that
// is where the chunk begins, as it was given to the kernel, and how far from there the packet lies
// in the bits from OffsetShift on.
func (p *pool) place(addr uint64) uint64 {
	if p.odd {
		return addr&(1<<xskernel.OffsetShift-1) + addr>>xskernel.OffsetShift
	}
	return addr
}

// base returns the offset of a frame's chunk.
func (p *pool) base(frame uint32) uint64 {
	if p.odd {
		return uint64(frame) * p.chunk
	}
	return uint64(frame) << (p.shift & 63)
}

// complete takes one address out of the completion ring: the packet that it ends, if it ends one,
// and the member that sent it, if it still is one.
func (p *pool) complete() (m *core, s Sent, ok bool) { return p.completion(p.comp.take()) }

// completion looks up whose packet ended.
func (p *pool) completion(addr uint64) (m *core, s Sent, ok bool) {
	id := p.frameOf(addr)
	if !p.frames.fromKernel(id, FrameSend, FrameFree) {
		return nil, Sent{}, false
	}
	e := p.sends[id-p.frames.first]
	if e.owner == nobody {
		return nil, Sent{}, true
	}
	m = p.members[e.owner]
	if e.part {
		m = nil
	}
	return m, Sent{Frame: id, Context: e.context}, true
}

// Headroom returns the bytes at the start of a frame's chunk that the kernel leaves alone.
func (p *pool) Headroom(frame uint32) []byte {
	b := p.base(frame)
	return p.mem[b : b+p.headroom : b+p.headroom]
}

// FrameStats counts the frames by state: all frames of the sockets that share them.
func (p *pool) FrameStats() FrameStats { return p.frames.stats() }
