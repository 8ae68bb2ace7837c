package endpoint

import (
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp"
)

// Forward sends the first n bytes of a loaned payload on, or back, from the frame that it lies in:
// nothing is copied. m says whom to, as for SendMsg; its Buf and Iov are not looked at. What was
// changed in the payload before, which only the process of the endpoint can, goes with it.
//
// After nil the frame is the endpoint's: it is not to be released, and goes back to those that are
// received into when the kernel is done with it. After an error it is still lent. [ErrFrame] says
// that it is not, any more or at all; other errors are those of SendFrameMsg, where [ErrNoFrame]
// stands for a transmit ring without room.
func (e *Endpoint) Forward(c *cq.Entry, n int, m *Msg) error {
	e.lock()
	defer e.unlock()
	err := e.postLoan(c, n, m, m.Flags)
	if m.Flags&cq.FlagMore == 0 {
		e.push()
	}
	return err
}

func (e *Endpoint) postLoan(c *cq.Entry, n int, m *Msg, op cq.Flags) error {
	if op&cq.FlagInject != 0 {
		return ErrNotSupported
	}
	if op&cq.FlagInjectComplete != 0 {
		op = op&^cq.FlagInjectComplete | cq.FlagTransmitComplete
	}
	switch err := e.allowed(m, op); {
	case err != nil:
		return err
	case c.Buf.Region() != e.umem || c.Flags&cq.FlagFrame == 0:
		return ErrFrame
	case n < 0 || uint64(n) > c.Len:
		return ErrTooBig
	}
	if err := e.begin(op); err != nil {
		return err
	}
	err := e.buildLoan(c, n, m, op)
	if err == nil {
		return nil
	}
	unreachable := err == errNoWay
	if err = e.refuse(m, op, err); err == nil && unreachable {
		e.takeBack(c.Buf, c.Meta.Seq()) // the operation was accepted and has failed
	}
	return err
}

// buildLoan writes headers in front of the payload, over those that it came with.
func (e *Endpoint) buildLoan(c *cq.Entry, n int, m *Msg, op cq.Flags) error {
	p, err := e.peerOf(m)
	if err != nil {
		return err
	}
	if n > p.max {
		return ErrTooBig
	}
	front, body := p.header, n
	if e.cfg.RemoteData {
		front, body = front+ShimBytes, body+ShimBytes
	}
	off, generation := c.Buf.Offset(), c.Meta.Seq()
	buf, err := e.socket.Loaned(off, front, n, generation)
	if err != nil {
		return short(err)
	}
	if e.cfg.RemoteData {
		putShim(buf[p.header:], op&cq.FlagRemoteCQData != 0, m.Data)
	}
	total, err := p.template.BuildInPlace(buf, body)
	if err != nil {
		return ErrTooBig
	}
	frame := uint32(off / uint64(e.geometry.ChunkBytes))
	err = e.socket.ForwardLoan(off-uint64(front), total, generation, uint64(frame))
	if err != nil {
		return short(err)
	}
	e.stats.Forwarded++
	e.accept(frame, m.Context, uint32(n), op)
	return nil
}

// short is an error of the socket as this package returns it.
func short(err error) error {
	switch {
	case errors.Is(err, ErrFrame):
		return ErrFrame
	case errors.Is(err, xdp.ErrRingFull):
		return ErrNoFrame
	}
	return ErrTooBig
}
