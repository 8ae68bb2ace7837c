package xdp

import (
	"fmt"
	"slices"

	"github.com/shmring/shmring/internal/xskernel"
)

// Part is one frame of a packet to be sent.
type Part struct {
	Frame uint32 // acquired
	Len   int    // bytes of it that are part of the packet, from the start of what Acquire returned
}

// Acquire takes a free frame to send from, and returns the bytes to write the packet to. It fails
// while the ring has no room for all frames that were acquired, so Post has room. Every acquired
// frame is to be given to Post, PostChain or Drop.
func (c *core) Acquire() (frame uint32, buf []byte, ok bool) {
	if c.tx.room(c.built+1) <= c.built {
		return 0, nil, false
	}
	t := c.frames
	var i uint32
	if n := len(t.txFree) - 1; n >= 0 && t.state[t.txFree[n]] == frameFree {
		i = t.txFree[n]
		t.txFree = t.txFree[:n]
		t.state[i] = frameBuild
		t.moved(frameFree, frameBuild, 1)
	} else {
		if frame, ok = t.pop(&t.txFree, frameBuild); !ok {
			return 0, nil, false
		}
		i = frame - t.first
	}
	c.built++
	c.sends[i].owner = c.id
	from := c.sendOff(t.first + i)
	to := from + uint64(c.maxPacket)
	return t.first + i, c.mem[from:to:to], true
}

// sendOff is where packets to be sent begin: where received ones do, so that a frame has the same
// room either way.
func (c *core) sendOff(frame uint32) uint64 {
	return c.base(frame) + c.chunk - c.room
}

// acquired reports whether this socket acquired a frame and still has it.
func (c *core) acquired(frame uint32) bool {
	return c.frames.is(frame, frameBuild) && c.sends[frame-c.frames.first].owner == c.id
}

// Post puts the first n bytes of an acquired frame into the transmit ring, where Flush makes them
// visible. The context comes back with the completion. On error the frame stays acquired.
func (c *core) Post(frame uint32, n int, context uint64) error {
	t := c.frames
	i, ok := t.at(frame)
	// What is too long the kernel would count as invalid, or complete and drop.
	if !ok || t.state[i] != frameBuild || c.sends[i].owner != c.id ||
		n < xskernel.MinPacketBytes || uint64(n) > uint64(c.maxPacket) {
		return c.refusePost(frame, n)
	}
	t.state[i] = frameSend
	t.moved(frameBuild, frameSend, 1)
	c.sends[i] = sending{context: context, owner: c.id}
	c.tx.put(xskernel.Desc{Addr: c.sendOff(frame), Len: uint32(n)})
	c.built--
	c.stats.Posted++
	return nil
}

func (c *core) refusePost(frame uint32, n int) error {
	if !c.acquired(frame) {
		c.frames.illegal++
		return fmt.Errorf("xdp: post frame %d: %w", frame, ErrFrame)
	}
	return fmt.Errorf("xdp: post %d bytes, possible are %d to %d: %w", n, xskernel.MinPacketBytes,
		c.maxPacket, ErrTooBig)
}

// put hands one frame to the transmit ring. There is room, and the frame is in a state for it.
func (c *core) put(frame uint32, d xskernel.Desc, context uint64) {
	c.frames.move(frame, frameSend)
	c.sends[frame-c.frames.first] = sending{context, c.id, d.Options&xskernel.PacketContinues != 0}
	c.tx.put(d)
}

// Forward sends a received packet on, as it lies in its frame and with what the caller changed in
// it. It reports false, and the frame stays received, if the transmit ring has no room beside the
// frames that are acquired, or if the frame holds no packet or a part of one only.
func (c *core) Forward(r Received, context uint64) bool {
	if c.tx.room(c.built+1) <= c.built || r.More || r.Len < xskernel.MinPacketBytes ||
		r.Len > c.mtu+frameOverhead {
		return false
	}
	at := r.Off - c.base(r.Frame) // wraps if the offset is not of this frame
	if !c.frames.is(r.Frame, frameReceived) || at < c.headroom || at >= c.chunk ||
		uint64(r.Len) > c.chunk-at {
		c.frames.illegal++
		return false
	}
	c.put(r.Frame, xskernel.Desc{Addr: r.Off, Len: r.Len}, context)
	c.stats.Posted++
	return true
}

// PostChain sends one packet that lies in several acquired frames, in their order. The context
// comes back once. On error all frames stay acquired.
//
// Errors: [ErrTooBig] for more than MaxChain frames, more bytes than ChainBytes, or several frames
// on a socket without Options.MultiBuffer; [ErrFrame].
func (c *core) PostChain(parts []Part, context uint64) error {
	if len(parts) == 0 || len(parts) > MaxChain || len(parts) > 1 && !c.chains {
		return fmt.Errorf("xdp: post packet in %d frames, possible are %d: %w", len(parts),
			c.chainLimit(), ErrTooBig)
	}
	total := 0
	for i, p := range parts {
		if !c.acquired(p.Frame) ||
			slices.ContainsFunc(parts[:i], func(o Part) bool { return o.Frame == p.Frame }) {
			c.frames.illegal++
			return fmt.Errorf("xdp: post frame %d: %w", p.Frame, ErrFrame)
		}
		if p.Len < 1 || p.Len > int(c.maxPacket) {
			return fmt.Errorf("xdp: post %d bytes in a frame, possible are 1 to %d: %w", p.Len,
				c.maxPacket, ErrTooBig)
		}
		total += p.Len
	}
	if total < xskernel.MinPacketBytes || total > c.chainBytes() {
		return fmt.Errorf("xdp: post %d bytes, possible are %d to %d: %w", total, xskernel.MinPacketBytes,
			c.chainBytes(), ErrTooBig)
	}
	last := len(parts) - 1
	for i, p := range parts {
		d := xskernel.Desc{Addr: c.sendOff(p.Frame), Len: uint32(p.Len)}
		if i < last {
			d.Options = xskernel.PacketContinues
		}
		c.put(p.Frame, d, context)
	}
	c.built -= uint32(len(parts))
	c.stats.Posted++
	return nil
}

func (c *core) chainLimit() int {
	if c.chains {
		return MaxChain
	}
	return 1
}

// Flush makes all posted packets visible to the kernel with one store, and reports whether there
// were any. The kernel may still have to be kicked.
func (c *core) Flush() bool {
	if c.tap != nil {
		c.tapSent()
	}
	return c.tx.publish() > 0
}

// Unsent returns how many flushed descriptors the kernel has not begun with.
func (c *core) Unsent() int { return int(c.tx.pending()) }

// Reap takes up to len(dst) packets of this socket that the kernel is done with. That says that
// their frames can be used again, not that anybody got them. Their order need not be that of Post.
func (c *core) Reap(dst []Sent) int {
	n := 0
	if len(c.routed) > 0 {
		n = copy(dst, c.routed)
		c.routed = append(c.routed[:0], c.routed[n:]...)
	}
	// One look per call: what others sent, and parts of packets, leave room in dst.
	avail := min(c.comp.available(uint32(len(dst)-n)), uint32(len(dst)-n))
	if !c.shared {
		n += c.reapAlone(dst[n:], avail)
		avail = 0
	}
	for range avail {
		m, s, ok := c.completion(c.comp.take())
		switch {
		case !ok:
			c.stats.BadDescriptors++
		case m == c:
			dst[n] = s
			n++
		case m != nil:
			m.routed = append(m.routed, s)
		}
	}
	c.comp.release()
	c.stats.Sent += uint64(n)
	return n
}

// reapAlone takes n completions of a pool that has one member. dst has room.
func (c *core) reapAlone(dst []Sent, avail uint32) (n int) {
	t, quick := c.frames, 0
	stack := t.txFree
	for range avail {
		addr := c.comp.take()
		i, ok := t.at(c.frameOf(addr))
		if !ok || t.state[i] != frameSend || i < t.rxFrames || c.sends[i].part ||
			c.sends[i].owner != c.id {
			t.txFree = stack
			if s, ok := c.completed(addr); ok {
				dst[n] = s
				n++
			}
			stack = t.txFree
			continue
		}
		t.state[i] = frameFree
		stack = append(stack, i)
		dst[n] = Sent{Frame: t.first + i, Context: c.sends[i].context}
		n++
		quick++
	}
	t.txFree = stack
	t.moved(frameSend, frameFree, quick)
	return n
}

// completed is the general case of one completion in a pool that has one member.
func (c *core) completed(addr uint64) (Sent, bool) {
	m, s, ok := c.completion(addr)
	if !ok {
		c.stats.BadDescriptors++
	}
	return s, ok && m == c
}

// Forfeit gives up all posted packets of this socket that the kernel is not known to be done with,
// calls f with the context of each, and returns how many there were. It is for the time after
// Close, and after Reap has returned all that it can. If no other socket uses the frames, those
// that the kernel may still be reading are not used again.
func (c *core) Forfeit(f func(context uint64)) (n int) {
	for _, context := range c.withdrawn {
		f(context)
	}
	n, c.withdrawn = len(c.withdrawn), nil
	n += len(c.routed)
	for _, s := range c.routed {
		f(s.Context)
	}
	c.routed = nil
	for i := range c.sends {
		e := &c.sends[i]
		if c.frames.state[i] != frameSend || e.owner != c.id {
			continue
		}
		if c.open == 0 {
			c.frames.move(c.frames.first+uint32(i), frameQuarantine)
		}
		e.owner = nobody
		if !e.part {
			f(e.context)
			n++
		}
	}
	c.members[c.id] = nil
	return n
}

// abandonAll gives up all frames that this socket acquired and did not post.
func (c *core) abandonAll() {
	for i := range c.frames.state {
		if id := c.frames.first + uint32(i); c.acquired(id) {
			c.Drop(id)
		}
	}
}

// withdraw takes packets back that were posted and that the kernel never began with. It is for
// sockets in copy mode, where only system calls of this socket make the kernel begin, and there
// will be none any more. Forfeit tells of them.
func (c *core) withdraw() {
	for range c.tx.reach() {
		id := c.frameOf(c.tx.revoke().Addr)
		if !c.frames.is(id, frameSend) || c.sends[id-c.frames.first].owner != c.id {
			continue
		}
		if e := c.sends[id-c.frames.first]; !e.part {
			c.withdrawn = append(c.withdrawn, e.context)
		}
		c.frames.move(id, frameFree)
	}
}

// Loaned returns front bytes in front of off and n behind it, in the frame that off lies in, to be
// changed and sent with ForwardLoan. Errors: [ErrFrame] unless this socket loaned the frame under
// this generation; [ErrTooBig] if the bytes do not lie between the frame's record and its end.
func (c *core) Loaned(off uint64, front, n int, generation uint32) ([]byte, error) {
	id := c.frameOf(off)
	if _, ok := c.frames.lent(id, generation, c.id); !ok {
		return nil, fmt.Errorf("xdp: loaned frame at %d: %w", off, ErrFrame)
	}
	at := off - c.base(id)
	if front < 0 || n < 0 || at < c.headroom || at-c.headroom < uint64(front) ||
		uint64(n) > c.chunk-at {
		return nil, fmt.Errorf("xdp: %d bytes before and %d after %d of a chunk: %w", front, n, at,
			ErrTooBig)
	}
	end := off + uint64(n)
	return c.mem[off-uint64(front) : end : end], nil
}

// ForwardLoan sends n bytes from off on, which lie in a frame that this socket loaned under this
// generation, and ends the loan: the frame goes to where it is at home when the kernel is done with
// it. The context comes back with the completion. After an error it is still loaned. Errors are
// those of Loaned, and [ErrRingFull].
func (c *core) ForwardLoan(off uint64, n int, generation uint32, context uint64) error {
	if _, err := c.Loaned(off, 0, n, generation); err != nil {
		return err
	}
	if n < xskernel.MinPacketBytes || uint64(n) > uint64(c.mtu)+frameOverhead {
		return fmt.Errorf("xdp: send %d bytes of a loaned frame: %w", n, ErrTooBig)
	}
	if c.tx.room(c.built+1) <= c.built {
		return ErrRingFull
	}
	c.put(c.frameOf(off), xskernel.Desc{Addr: off, Len: uint32(n)}, context)
	c.stats.Posted++
	return nil
}
