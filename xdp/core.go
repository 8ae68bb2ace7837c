package xdp

import (
	"fmt"

	"github.com/shmring/shmring/xdp/packet"
)

// The kernel leaves this many bytes in front of a packet for programs to grow it into.
const kernelHeadroomBytes = 256

// minPacketBytes is an Ethernet header. The kernel takes less and drops it without a trace.
const minPacketBytes = 14

// tagBytes is a VLAN tag, which the MTU does not count.
const tagBytes = 4

// Received is a packet that came out of the receive ring.
type Received struct {
	Frame uint32 // number of the frame that it lies in
	Len   uint32 // bytes
	Off   uint64 // offset of its first byte in the UMEM
}

// Sent is a packet that the kernel is done with.
type Sent struct {
	Frame   uint32
	Context uint64 // as given to Post
}

// RingStats counts what passed the rings, and what should never happen.
type RingStats struct {
	Filled   uint64 // frames given to the kernel to receive into
	Received uint64 // packets taken from the receive ring
	Posted   uint64 // packets given to the kernel to send
	Sent     uint64 // packets that the kernel was done with
	// BadDescriptors counts descriptors from the kernel that were refused: an address outside of
	// the UMEM, a length beyond the chunk, an option that was not asked for.
	BadDescriptors uint64
	// RingFaults counts index pairs that no ring can have.
	RingFaults uint64
}

// core moves frames between the four rings and the frame table. It makes no system call: it works
// the same over rings that a test plays the kernel for. One goroutine uses it.
type core struct {
	mem       []byte
	chunk     uint64
	headroom  uint64 // of each chunk, in front of the kernel's own
	maxPacket uint32 // bytes that may be sent in one packet
	mtu       uint32 // of the interface

	frames *frameTable
	fill   producer[uint64]
	rx     consumer[Desc]
	tx     producer[Desc]
	comp   consumer[uint64]

	context []uint64 // by frame, of the packet being sent
	stats   RingStats
}

// frameOf returns the number of the frame that an address of the UMEM lies in. The number is out of
// range if the address is.
func (c *core) frameOf(addr uint64) uint32 {
	if addr >= uint64(len(c.mem)) {
		return uint32(len(c.frames.state))
	}
	return uint32(addr / c.chunk)
}

// base returns the offset of a frame's chunk.
func (c *core) base(frame uint32) uint64 { return uint64(frame) * c.chunk }

// Fill gives the kernel up to limit free frames to receive into and returns how many. One store
// publishes them all.
func (c *core) Fill(limit int) int {
	n := 0
	room := c.fill.room(uint32(max(0, limit)))
	for n < limit && uint32(n) < room {
		id, ok := c.frames.takeFill()
		if !ok {
			break
		}
		c.fill.put(c.base(id))
		n++
	}
	if n > 0 {
		c.fill.publish()
		c.stats.Filled += uint64(n)
	}
	return n
}

// Pending returns how many packets wait in the receive ring, looking at the kernel's index only if
// fewer than limit are known of.
func (c *core) Pending(limit int) int {
	return int(c.rx.available(uint32(max(0, limit))))
}

// Receive takes up to len(dst) packets from the receive ring. Every one is to be handed out with
// Loan or given up with Drop. Descriptors that cannot be are counted and left out, so the result
// may be smaller than what was pending.
func (c *core) Receive(dst []Received) int {
	avail := min(c.rx.available(uint32(len(dst))), uint32(len(dst)))
	n := 0
	for range avail {
		d := c.rx.take()
		if r, ok := c.accept(d); ok {
			dst[n] = r
			n++
		}
	}
	if avail > 0 {
		c.rx.release()
		c.stats.Received += uint64(n)
	}
	return n
}

func (c *core) accept(d Desc) (Received, bool) {
	id := c.frameOf(d.Addr)
	if !c.frames.fromKernel(id, FrameFill, FrameReceived) {
		c.stats.BadDescriptors++
		return Received{}, false
	}
	at := d.Addr - c.base(id)
	if at < c.headroom || uint64(d.Len) > c.chunk-at {
		// The kernel wrote where it had no business to. What else it holds there is unknown.
		c.frames.move(id, FrameQuarantine)
		c.stats.BadDescriptors++
		return Received{}, false
	}
	if d.Options != 0 {
		// A part of a longer packet, though multi-buffer was not asked for at bind.
		c.frames.move(id, FrameFree)
		c.stats.BadDescriptors++
		return Received{}, false
	}
	return Received{Frame: id, Len: d.Len, Off: d.Addr}, true
}

// Packet returns the bytes of a received packet. They belong to the caller until Loan or Drop.
func (c *core) Packet(r Received) []byte {
	return c.mem[r.Off : r.Off+uint64(r.Len) : r.Off+uint64(r.Len)]
}

// Headroom returns the bytes at the start of a frame's chunk that the kernel leaves alone.
func (c *core) Headroom(frame uint32) []byte {
	b := c.base(frame)
	return c.mem[b : b+c.headroom : b+c.headroom]
}

// Loan hands a received frame to an application. It comes back by Return with the same generation.
func (c *core) Loan(frame, generation uint32) bool { return c.frames.loan(frame, generation) }

// Drop gives up a received packet.
func (c *core) Drop(frame uint32) bool { return c.frames.own(frame, FrameReceived, FrameFree) }

// Return takes a loaned frame back; off is any address in it. The arguments come from another
// process: if they name no loaned frame of this generation, nothing changes but a counter.
func (c *core) Return(off uint64, generation uint32) bool {
	return c.frames.giveBack(c.frameOf(off), generation)
}

// maxPayload is the longest payload of a datagram that goes out as one packet.
func (c *core) maxPayload() uint64 {
	room := min(uint64(c.mtu)+packet.EthernetBytes, uint64(c.maxPacket))
	return room - min(room, packet.HeaderBytes)
}

// Acquire takes a free frame to send from, and returns the bytes to write the packet to. It fails
// while the ring has no room for all frames that were acquired, so Post has room. Every acquired
// frame is to be given to Post or Abandon.
func (c *core) Acquire() (frame uint32, buf []byte, ok bool) {
	built := uint32(c.frames.counts[FrameBuild])
	if c.tx.room(built+1) <= built {
		return 0, nil, false
	}
	frame, ok = c.frames.takeBuild()
	if !ok {
		return 0, nil, false
	}
	from := c.sendOff(frame)
	to := from + min(uint64(c.maxPacket), c.base(frame)+c.chunk-from)
	return frame, c.mem[from:to:to], true
}

// sendOff is where packets to be sent begin: where received ones do, so that a frame has the same
// room either way.
func (c *core) sendOff(frame uint32) uint64 {
	return c.base(frame) + c.headroom + kernelHeadroomBytes
}

// Abandon gives an acquired frame back unsent.
func (c *core) Abandon(frame uint32) bool { return c.frames.own(frame, FrameBuild, FrameFree) }

// Post puts the first n bytes of an acquired frame into the transmit ring, where Flush makes them
// visible. The context comes back with the completion. On error the frame stays acquired.
func (c *core) Post(frame uint32, n int, context uint64) error {
	if uint64(frame) >= uint64(len(c.frames.state)) ||
		c.frames.state[frame] != FrameBuild {
		c.frames.illegal++
		return fmt.Errorf("xdp: post frame %d: %w", frame, ErrFrame)
	}
	// What is refused here the kernel would count as invalid, or complete and drop.
	limit := min(int(c.maxPacket), int(c.base(frame)+c.chunk-c.sendOff(frame)))
	if n < minPacketBytes || n > limit {
		return fmt.Errorf("xdp: post %d bytes, possible are %d to %d: %w", n, minPacketBytes,
			limit, ErrTooBig)
	}
	c.frames.move(frame, FrameSend)
	c.context[frame] = context
	c.tx.put(Desc{Addr: c.sendOff(frame), Len: uint32(n)})
	c.stats.Posted++
	return nil
}

// Flush makes all posted packets visible to the kernel with one store, and reports whether there
// were any. The kernel may still have to be kicked.
func (c *core) Flush() bool { return c.tx.publish() }

// Unsent returns how many flushed packets the kernel has not begun with.
func (c *core) Unsent() int { return int(c.tx.pending()) }

// Reap takes up to len(dst) packets that the kernel is done with. That says that their frames can
// be used again, not that anybody got them. Their order need not be that of Post.
func (c *core) Reap(dst []Sent) int {
	avail := min(c.comp.available(uint32(len(dst))), uint32(len(dst)))
	n := 0
	for range avail {
		id := c.frameOf(c.comp.take())
		if !c.frames.fromKernel(id, FrameSend, FrameFree) {
			c.stats.BadDescriptors++
			continue
		}
		dst[n] = Sent{Frame: id, Context: c.context[id]}
		n++
	}
	if avail > 0 {
		c.comp.release()
		c.stats.Sent += uint64(n)
	}
	return n
}

// Reclaim takes back every frame that was loaned under a generation before this one, as the
// successor of a dead reader may ask for, and returns how many.
func (c *core) Reclaim(before uint32) int { return c.frames.reclaim(before) }

// Sending returns how many posted packets have not come out of Reap.
func (c *core) Sending() int { return int(c.frames.counts[FrameSend]) }

// Forfeit gives up all posted packets that have not come out of Reap, calls f with the context of
// each, and returns how many there were. Their frames are not used again: the kernel may still be
// reading them. It is for the time after Close.
func (c *core) Forfeit(f func(context uint64)) (n int) {
	for id, state := range c.frames.state {
		if state == FrameSend {
			c.frames.move(uint32(id), FrameQuarantine)
			f(c.context[id])
			n++
		}
	}
	return n
}

// MTU is the longest packet that the interface takes, without the Ethernet header, when the socket
// was opened.
func (c *core) MTU() int { return int(c.mtu) }

// PacketBytes is the longest packet, with its Ethernet header, that Post takes.
func (c *core) PacketBytes() int { return int(c.maxPacket) }

// FrameStats counts the frames by state.
func (c *core) FrameStats() FrameStats { return c.frames.stats() }

// RingStats counts what passed the rings.
func (c *core) RingStats() RingStats {
	s := c.stats
	s.RingFaults = c.fill.faults + c.rx.faults + c.tx.faults + c.comp.faults
	return s
}
