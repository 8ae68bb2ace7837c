package xdp

import "github.com/shmring/shmring/internal/xskernel"

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
			c.frames.move(r.Frame, FrameFree)
			c.stats.BadDescriptors++
		}
		for _, before := range dst[:i] {
			c.frames.move(before.Frame, FrameFree)
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
			c.frames.move(r.Frame, FrameFree)
		}
	}
}
