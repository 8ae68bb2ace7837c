package xdp

import (
	"fmt"
	"syscall"

	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
)

// ErrRingFull: the transmit ring has no room beside the frames that are acquired (EAGAIN).
var ErrRingFull = shm.Sentinel("transmit ring is full", syscall.EAGAIN)

// Loaned returns front bytes in front of off and n behind it, in the frame that off lies in, to be
// changed and sent with ForwardLoan. Errors: [ErrFrame] unless this socket loaned the frame under
// this generation; [ErrTooBig] if the bytes do not lie between the frame's record and its end.
func (c *core) Loaned(off uint64, front, n int, generation uint32) ([]byte, error) {
	id := c.frameOf(off)
	if !c.frames.is(id, FrameLoaned) ||
		c.frames.loans[id-c.frames.first] != (loanMark{generation, c.id}) {
		c.frames.stale++
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
	c.inflight++
	c.stats.Posted++
	return nil
}
