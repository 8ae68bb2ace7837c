package xdp

import (
	"math/bits"
	"sync/atomic"

	"github.com/shmring/shmring/internal/xskernel"
)

// frameOverhead is what a frame may have beside what the MTU counts.
const frameOverhead = xskernel.MinPacketBytes + xskernel.TagBytes

// MaxChain is how many frames one packet may lie in, 18: what the kernel's own buffers hold
// (MAX_SKB_FRAGS + 1). A longer packet to be sent is refused, a longer one that arrives dropped.
const MaxChain = xskernel.MaxChain

// Received is a packet that came out of the receive ring, or a part of one.
type Received struct {
	Frame uint32 // number of the frame that it lies in
	Len   uint32 // bytes
	Off   uint64 // offset of its first byte in the UMEM
	// More says that the next Received is a part of the same packet. It is set on sockets opened
	// with Options.MultiBuffer only.
	More bool
}

// Returned names a frame that an application is done with.
type Returned struct {
	Off        uint64 // any address in it
	Generation uint32 // that it was loaned under
}

// Sent is a packet that the kernel is done with.
type Sent struct {
	Frame   uint32 // the last one, if there are several
	Context uint64 // as given to Post
}

// RingStats counts what passed the rings, and what should never happen.
type RingStats struct {
	Filled   uint64 // frames given to the kernel to receive into
	Received uint64 // packets taken from the receive ring
	Posted   uint64 // packets given to the kernel to send
	Sent     uint64 // packets that the kernel was done with
	// BadDescriptors counts descriptors from the kernel that were refused: an address outside of
	// the UMEM, a length beyond the chunk, an option that was not asked for, a packet in more
	// frames than MaxChain.
	BadDescriptors uint64
	// RingFaults counts index pairs that no ring can have.
	RingFaults uint64
}

// core moves frames between rings and the frame table of its pool. It makes no system call: it
// works the same over rings that the program plays the kernel for. One goroutine uses all cores of
// a pool.
type core struct {
	*pool
	id        uint16        // among the members of the pool
	chains    bool          // packets may lie in several frames
	skipping  bool          // what comes is the rest of a packet that was given up
	maxPacket uint32        // bytes that may be sent in one frame, which has room for them
	mtu       uint32        // of the interface
	limits    atomic.Uint64 // mtu and maxPacket, for who asks from anywhere
	rx        consumer[xskernel.Desc]
	tx        producer[xskernel.Desc]
	built     uint32   // frames acquired and not posted
	routed    []Sent   // completions that another member of the pool came upon
	withdrawn []uint64 // contexts of packets that were never sent
	tap       Tap      // sees every packet; nil most often
	idle      func()   // with a simulated kernel: nothing waits
	stats     RingStats
}

// Fill gives the kernel up to limit free frames to receive into, and those that Return left for it,
// and returns how many these are. One store publishes them all.
func (c *core) Fill(limit int) int {
	want := min(int(c.fill.room(uint32(max(0, limit)))), limit)
	t, n := c.frames, 0
	stack := t.rxFree
	for n < want && len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if t.state[i] != frameFree {
			continue // quarantined while it lay there, as in pop
		}
		t.state[i] = frameFill
		c.fill.put(c.base(t.first + i))
		n++
	}
	t.rxFree = stack
	t.moved(frameFree, frameFill, n)
	return c.publishFill()
}

// publishFill shows the kernel what was put into the fill ring, and returns how many frames it was.
func (c *core) publishFill() int {
	n := c.fill.publish()
	c.stats.Filled += uint64(n)
	return int(n)
}

// Recycle gives up received packets and gives their frames to the kernel to receive into at once,
// as Drop and Fill do one by one; it is what a reader does that is done with a batch. Frames that
// the fill ring has no room for, and those whose home is with the senders, are free then. It
// returns how many of the frames were received ones.
func (c *core) Recycle(packets []Received) (n int) {
	room := c.fill.room(uint32(len(packets)))
	n = c.refill(c.fill.span(min(room, uint32(len(packets)))), packets)
	c.fill.next += uint32(n)
	c.frames.moved(frameReceived, frameFill, n)
	for k := n; k < len(packets); k++ {
		if c.giveUp(packets[k].Frame, frameReceived) {
			n++
		}
	}
	c.publishFill()
	return n
}

// refill puts frames of packets into entries of the fill ring, up to the first one that is not
// received, or not at home with the receivers, and returns how many.
func (p *pool) refill(entries []uint64, packets []Received) (n int) {
	t, chunk := p.frames, p.chunk
	state, first := t.state[:t.rxFrames], t.first
	packets = packets[:len(entries)]
	for n < len(entries) && n < len(packets) {
		frame := packets[n].Frame
		i := uint64(frame - first)
		if i >= uint64(len(state)) || state[i] != frameReceived {
			break
		}
		state[i] = frameFill
		entries[n] = uint64(frame) * chunk
		n++
	}
	return n
}

// giveUp moves a frame that this process held in a state to the fill ring, unless that has no room
// or it is at home with the senders: then it is free.
func (p *pool) giveUp(frame uint32, held frameState) bool {
	to := frameFree
	if frame-p.frames.first < p.frames.rxFrames && p.fill.room(1) > 0 {
		to = frameFill
	}
	ok := p.frames.own(frame, held, to)
	if ok && to == frameFill {
		p.fill.put(p.base(frame))
	}
	return ok
}

// Receive takes up to len(dst) packets from the receive ring. Every one is to be handed out with
// Loan, sent on with Forward, or given up with Drop. Descriptors that cannot be are counted and
// left out, so the result may be smaller than what was pending.
//
// With Options.MultiBuffer a packet may be several Received in a row, all but the last with More,
// and only whole packets are returned: dst needs room for MaxChain, or longer packets are dropped.
func (c *core) Receive(dst []Received) (n int) {
	if c.chains || c.odd {
		n = c.receiveChains(dst)
	} else if avail := min(c.rx.available(uint32(len(dst))), uint32(len(dst))); avail > 0 {
		n = c.expected(dst, c.rx.span(avail))
		c.rx.next += uint32(n)
		c.frames.moved(frameFill, frameReceived, n)
		for left := int(avail) - n; left > 0; left-- {
			if r, ok := c.accept(c.rx.take()); ok {
				dst[n] = r
				n++
			}
		}
		c.rx.release()
		c.stats.Received += uint64(n)
	}
	if n == 0 && c.idle != nil {
		c.idle()
	}
	if c.tap != nil {
		c.tapReceived(dst[:n])
	}
	return n
}

// expected reads descriptors up to the first one that is not of a whole packet, in a frame that the
// kernel was given, where it puts packets; it returns how many. Nothing is called here, so that all
// is in registers.
func (p *pool) expected(dst []Received, from []xskernel.Desc) (n int) {
	t, start, room, turn := p.frames, p.start, p.room, -int(p.shift)
	state, first := t.state, t.first
	dst = dst[:len(from)]
	for n < len(from) && n < len(dst) {
		addr := from[n].Addr
		// What is not at the right place of a chunk becomes larger than all numbers of frames.
		i := bits.RotateLeft64(addr-start, turn)
		length := uint64(from[n].Options)<<32 | uint64(from[n].Len) // with options it is too long
		if i >= uint64(len(state)) || state[i] != frameFill || length > room {
			break
		}
		state[i] = frameReceived
		dst[n] = Received{Frame: first + uint32(i), Len: uint32(length), Off: addr}
		n++
	}
	return n
}

// Pending returns how many descriptors wait in the receive ring, looking at the kernel's index only
// if fewer than limit are known of.
func (c *core) Pending(limit int) int {
	n := c.rx.available(uint32(max(0, limit)))
	if n == 0 && c.idle != nil {
		c.idle()
	}
	return int(n)
}

func (c *core) accept(d xskernel.Desc) (Received, bool) {
	addr := c.place(d.Addr)
	id := c.frameOf(addr)
	if !c.frames.fromKernel(id, frameFill, frameReceived) {
		c.stats.BadDescriptors++
		return Received{}, false
	}
	at := addr - c.base(id)
	if at < c.headroom || uint64(d.Len) > c.chunk-at {
		// The kernel wrote where it had no business to. What else it holds there is unknown.
		c.frames.move(id, frameQuarantine)
		c.stats.BadDescriptors++
		return Received{}, false
	}
	if d.Options != 0 && (!c.chains || d.Options != xskernel.PacketContinues) {
		// A part of a longer packet, though multi-buffer was not asked for at bind.
		c.frames.move(id, frameFree)
		c.stats.BadDescriptors++
		return Received{}, false
	}
	return Received{Frame: id, Len: d.Len, Off: addr, More: d.Options != 0}, true
}

// Packet returns the bytes of a received packet, or of the part of it that lies in this frame. They
// belong to the caller until Loan or Drop.
func (c *core) Packet(r Received) []byte {
	return c.mem[r.Off : r.Off+uint64(r.Len) : r.Off+uint64(r.Len)]
}

// Loan hands received frames to an application, each under the generation after that of the one
// before. They come back by Return with the same one. It returns how many of the frames were
// received ones; nothing happens to the others.
func (c *core) Loan(generation uint32, packets ...Received) int {
	return c.frames.loan(generation, c.id, packets)
}

// Drop gives back a frame that the caller has in hand: a received packet, or the part of it that
// lies in this frame, or an acquired frame, unsent. It reports false for any other.
func (c *core) Drop(frame uint32) bool {
	if c.acquired(frame) {
		c.built--
		return c.frames.move(frame, frameFree)
	}
	return c.frames.own(frame, frameReceived, frameFree)
}

// Return takes loaned frames back, and returns how many it took. The next Fill shows them to the
// kernel, as far as there was room in the fill ring and they are at home with the receivers; others
// are free. The arguments come from another process: if one names no frame that this socket loaned
// under this generation, nothing happens but that it is counted.
func (c *core) Return(back ...Returned) (n int) {
	t, room := c.frames, min(c.fill.room(uint32(len(back))), uint32(len(back)))
	if !c.odd {
		entries := c.fill.span(room)
		n = t.end(back[:len(entries)], c.shift, c.id, frameFill)
		for k, r := range back[:n] {
			entries[k] = r.Off &^ (c.chunk - 1)
		}
		c.fill.next += uint32(n)
		free := back[n:][:t.end(back[n:], c.shift, c.id, frameFree)]
		for _, r := range free {
			t.rxFree = append(t.rxFree, uint32(r.Off>>(c.shift&63))-t.first)
		}
		n += len(free)
	}
	for _, r := range back[n:] {
		id := c.frameOf(r.Off)
		if _, ok := t.lent(id, r.Generation, c.id); ok && c.giveUp(id, frameLoaned) {
			n++
		}
	}
	return n
}

// Reclaim takes back every frame that this socket loaned under a generation before this one, as the
// successor of a dead reader may ask for, and returns how many.
func (c *core) Reclaim(before uint32) int { return c.frames.reclaim(before, c.id) }

// SetMTU tells the socket of another MTU. It is for the goroutine that uses the socket. A frame
// still bounds how long a packet can be.
func (c *core) SetMTU(mtu int) {
	c.mtu = uint32(max(0, mtu))
	c.maxPacket = min(uint32(c.room), c.mtu+frameOverhead)
	c.limits.Store(uint64(c.mtu)<<32 | uint64(c.maxPacket))
}

func (c *core) chainBytes() int { return c.longestChain(c.mtu, c.maxPacket) }

func (c *core) longestChain(mtu, maxPacket uint32) int {
	if !c.chains {
		return int(maxPacket)
	}
	return int(min(uint64(mtu)+frameOverhead, MaxChain*uint64(maxPacket)))
}

// RingStats counts what passed the rings. Faults of rings that several sockets share count at each.
func (c *core) RingStats() RingStats {
	s := c.stats
	s.RingFaults = c.fill.faults + c.rx.faults + c.tx.faults + c.comp.faults
	return s
}

// receiveChains is Receive for packets in one frame or several. A packet whose end the kernel has
// not published, or that has no room in dst, stays in the ring, so that nobody ever holds a part of
// one.
func (c *core) receiveChains(dst []Received) int {
	avail := c.rx.available(c.rx.mask + 1)
	n, taken := 0, uint32(0)
	for n < len(dst) && taken < avail {
		length, whole := c.nextChain(avail - taken)
		switch {
		case whole && length <= len(dst)-n && length <= MaxChain && !c.skipping:
			n += c.takeChain(dst[n:n+length], length)
		case whole && length <= MaxChain && n > 0 && !c.skipping:
			avail = taken // for want of room; the next call has more
			continue
		case !whole && avail-taken <= c.rx.mask:
			avail = taken // the kernel is not there yet
			continue
		default:
			c.discard(length)
			c.stats.BadDescriptors++
			c.skipping = !whole // the ring is full of one packet, and its end is still to come
		}
		taken += uint32(length)
	}
	if taken > 0 {
		c.rx.release()
	}
	return n
}

// nextChain counts the descriptors of the next packet. whole says that the last one of them is its
// end.
func (c *core) nextChain(avail uint32) (length int, whole bool) {
	for i := range avail {
		if c.rx.peek(i).Options&xskernel.PacketContinues == 0 {
			return int(i) + 1, true
		}
	}
	return int(avail), false
}

// takeChain takes one packet into dst, which has its length, and returns that; or 0, and the frames
// are free again, if any of its descriptors cannot be. The descriptors are read for the second time
// here: what they say now is what counts.
func (c *core) takeChain(dst []Received, length int) int {
	for i := range dst {
		r, ok := c.accept(c.rx.take())
		if ok && r.More == (i < length-1) {
			dst[i] = r
			continue
		}
		if ok {
			c.frames.move(r.Frame, frameFree)
			c.stats.BadDescriptors++
		}
		for _, before := range dst[:i] {
			c.frames.move(before.Frame, frameFree)
		}
		c.discard(length - i - 1)
		return 0
	}
	c.stats.Received++
	return length
}

// discard takes descriptors out of the ring and gives their frames up.
func (c *core) discard(n int) {
	for range n {
		if r, ok := c.accept(c.rx.take()); ok {
			c.frames.move(r.Frame, frameFree)
		}
	}
}

// Tap sees a copy of what a socket receives and sends. It is called by whoever drives the socket,
// and must neither block nor keep the bytes.
type Tap interface {
	// Packet is a packet as it left the receive ring, or as it is given to the kernel to be sent;
	// or the part of one that lies in one frame, with more if others follow.
	Packet(sent bool, b []byte, more bool)
	// Flush ends a round: what was seen may be published.
	Flush()
}

// SetTap makes t see all packets from now on; nil ends that. It is one of the calls that only one
// goroutine makes. Without a tap the price is a look at a pointer for each batch.
func (s *Socket) SetTap(t Tap) { s.core.tap = t }

func (c *core) tapReceived(packets []Received) {
	for _, r := range packets {
		c.tap.Packet(false, c.Packet(r), r.More)
	}
	if len(packets) > 0 {
		c.tap.Flush()
	}
}

// tapSent shows what is about to be published, which nobody else can write any more.
func (c *core) tapSent() {
	at := c.tx.prod.Load()
	for ; at != c.tx.next; at++ {
		d := &c.tx.slots[at&c.tx.mask]
		c.tap.Packet(true, c.mem[d.Addr:d.Addr+uint64(d.Len)], d.Options&xskernel.PacketContinues != 0)
	}
	c.tap.Flush()
}
