package endpoint

import (
	"encoding/binary"
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// Frame is a free frame of the UMEM, to be filled and sent without a copy.
type Frame struct {
	id      uint32
	header  int // bytes in front of the payload
	buf     []byte
	payload []byte
}

// Bytes is where the payload goes.
func (f *Frame) Bytes() []byte { return f.payload }

// Frame takes a free frame to write a payload to. It belongs to the caller until it is given to
// SendFrame or AbandonFrame. The room is for peers of the family of Config.Local, or
// IPv4 if that is not set; to a peer of the other family the payload is moved. Errors:
// [ErrNoFrame], [xdp.ErrDeviceGone], os.ErrClosed.
func (e *Endpoint) Frame() (Frame, error) {
	e.lock()
	defer e.unlock()
	if err := e.usable(); err != nil {
		return Frame{}, err
	}
	id, buf, err := e.acquire()
	if err != nil {
		return Frame{}, err
	}
	e.ops[id].lent = true
	header := packet.HeaderBytes
	if e.cfg.Local.Addr().Unmap().Is6() {
		header += packet.IPv6Bytes - packet.IPv4Bytes
	}
	header += len(e.cfg.Tags) * packet.VLANBytes
	if e.cfg.RemoteData {
		header += ShimBytes
	}
	return Frame{id: id, header: header, buf: buf, payload: buf[header:]}, nil
}

// SendFrame sends the first n bytes of a frame's payload, without a copy (fi_sendmsg of registered
// memory). m says whom to, as for SendMsg; its Buf and Iov are not looked at. The frame is not free
// again before the kernel is done with it: FlagInject is [ErrNotSupported], and FlagInjectComplete
// the same as FlagTransmitComplete. After an error the frame is still the caller's; after nil it is
// the endpoint's. Other errors are those of SendMsg.
func (e *Endpoint) SendFrame(f Frame, n int, m *Msg) error { return e.sendInPlace(&f, nil, n, m) }

// sendInPlace posts n bytes that lie in a frame: in f, or if that is nil in the loan of c.
func (e *Endpoint) sendInPlace(f *Frame, c *cq.Entry, n int, m *Msg) error {
	e.lock()
	defer e.unlock()
	err := e.postInPlace(f, c, n, m, m.Flags)
	if m.Flags&cq.FlagMore == 0 {
		e.push()
	}
	return err
}

func (e *Endpoint) postInPlace(f *Frame, c *cq.Entry, n int, m *Msg, op cq.Flags) error {
	if op&cq.FlagInject != 0 {
		return ErrNotSupported
	}
	if op&cq.FlagInjectComplete != 0 {
		op = op&^cq.FlagInjectComplete | cq.FlagTransmitComplete
	}
	if err := e.allowed(m, op); err != nil {
		return err
	}
	switch {
	case f != nil && !e.lent(*f), f == nil && (c.Buf.Region() != e.umem || c.Flags&cq.FlagFrame == 0):
		return ErrFrame
	case n < 0, f != nil && n > len(f.payload), f == nil && uint64(n) > c.Len:
		return ErrTooBig
	}
	if err := e.begin(op); err != nil {
		return err
	}
	var err error
	if f != nil {
		err = e.buildFrame(f, n, m, op)
	} else {
		err = e.buildLoan(c, n, m, op)
	}
	if err == nil {
		return nil
	}
	unreachable := err == errNoWay
	if err = e.refuse(m, op, err); err != nil || !unreachable {
		return err
	}
	// The operation was accepted and has failed.
	if f != nil {
		e.giveUp(f)
	} else {
		_ = e.takeBack(append(e.back[:0], e.returned(c.Buf, c.Meta.Seq())))
	}
	return nil
}

func (e *Endpoint) buildFrame(f *Frame, n int, m *Msg, op cq.Flags) error {
	p, err := e.peerOf(m)
	if err != nil {
		return err
	}
	if n > p.max {
		return ErrTooBig
	}
	at := p.header
	if e.cfg.RemoteData {
		at += ShimBytes
	}
	if at+n > len(f.buf) {
		return ErrTooBig
	}
	if at != f.header {
		copy(f.buf[at:at+n], f.buf[f.header:f.header+n])
	}
	if e.cfg.RemoteData {
		putShim(f.buf[p.header:], op&cq.FlagRemoteCQData != 0, m.Data)
	}
	total, err := p.template.BuildInPlace(f.buf, at+n-p.header)
	if err != nil {
		return ErrTooBig
	}
	err = e.socket.Post(f.id, total, uint64(f.id))
	switch {
	case errors.Is(err, ErrFrame):
		return ErrFrame // the kernel claimed to have had it: it is in quarantine
	case err != nil:
		return ErrTooBig
	}
	e.accept(f.id, m.Context, uint32(n), op)
	return nil
}

// AbandonFrame gives a frame back unsent. [ErrFrame] says that it is not the caller's.
func (e *Endpoint) AbandonFrame(f Frame) error {
	e.lock()
	defer e.unlock()
	if !e.lent(f) {
		return ErrFrame
	}
	e.giveUp(&f)
	return nil
}

// lent reports whether a frame is the caller's: not sent or given back before.
func (e *Endpoint) lent(f Frame) bool { return f.buf != nil && e.ops[f.id].lent }

func (e *Endpoint) giveUp(f *Frame) {
	e.ops[f.id].lent = false
	e.socket.Drop(f.id)
}

// Forward sends the first n bytes of a loaned payload on, or back, from the frame that it lies in:
// nothing is copied. m says whom to, as for SendMsg; its Buf and Iov are not looked at. What was
// changed in the payload before, which only the process of the endpoint can, goes with it.
//
// After nil the frame is the endpoint's: it is not to be released, and goes back to those that are
// received into when the kernel is done with it. After an error it is still lent. [ErrFrame] says
// that it is not, any more or at all; other errors are those of SendFrame, where [ErrNoFrame]
// stands for a transmit ring without room.
func (e *Endpoint) Forward(c *cq.Entry, n int, m *Msg) error { return e.sendInPlace(nil, c, n, m) }

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

// jumbo is what packets longer than a frame need. Their headers and checksums are made and looked
// at in memory of its own, where the packet is in one piece.
type jumbo struct {
	buf   []byte
	parts [xdp.MaxChain]xdp.Part
}

// scratch returns memory for the longest packet.
func (j *jumbo) scratch() []byte {
	if j.buf == nil {
		j.buf = make([]byte, 1<<16+256)
	}
	return j.buf
}

// buildChain is build for a packet that needs several frames: it is made in one piece and copied to
// them.
func (e *Endpoint) buildChain(p *peer, m *Msg, n int, op cq.Flags) error {
	whole := e.jumbo.scratch()
	total, err := p.template.BuildInPlace(whole, e.gather(whole[p.header:], m, op))
	if err != nil {
		return ErrTooBig
	}
	parts := e.jumbo.parts[:0]
	for at := 0; at < total && err == nil; {
		var frame uint32
		var buf []byte
		if len(parts) == cap(parts) {
			err = ErrTooBig
		} else if frame, buf, err = e.acquire(); err == nil {
			c := copy(buf, whole[at:total])
			parts = append(parts, xdp.Part{Frame: frame, Len: c})
			at += c
		}
	}
	last := uint32(0)
	if err == nil {
		last = parts[len(parts)-1].Frame // it is the one that Reap names
		err = e.socket.PostChain(parts, uint64(last))
		if err != nil {
			err = ErrTooBig
		}
	}
	if err != nil {
		for _, part := range parts {
			e.socket.Drop(part.Frame)
		}
		return err
	}
	e.accept(last, m.Context, uint32(n), op)
	return nil
}

// chain returns how many of got are one packet.
func chain(got []xdp.Received) int {
	for i := range got {
		if !got[i].More {
			return i + 1
		}
	}
	return len(got)
}

// whole returns a packet of several frames in one piece.
func (e *Endpoint) whole(parts []xdp.Received) []byte {
	buf, n := e.jumbo.scratch(), 0
	for _, r := range parts {
		n += copy(buf[n:], e.socket.Packet(r))
	}
	return buf[:n]
}

// rest makes the completions of the frames behind the first, which lend the rest of a payload: left
// bytes of it. Those behind its end are padding and not lent.
func (l *loans) rest(parts []xdp.Received, left int) {
	p := &l.e.span
	for i := range parts {
		p.off, p.n = 0, min(left, int(parts[i].Len))
		if left -= p.n; left == 0 {
			p.flags &^= cq.FlagMore
		}
		if p.n == 0 {
			l.e.socket.Drop(parts[i].Frame)
			continue
		}
		l.put(&parts[i])
	}
}

// ShimBytes is the size of the header that Config.RemoteData puts in front of every payload. All
// numbers are in network byte order:
//
//	0  magic, 0x5368524d
//	4  version, 0
//	5  flags: bit 0 says that there is data, the others are 0
//	6  zero
//	8  data
const ShimBytes = 16

const (
	shimMagic   = 0x5368524d // "ShRM"
	shimHasData = 1
)

func putShim(b []byte, has bool, data uint64) {
	_ = b[ShimBytes-1]
	be := binary.BigEndian
	be.PutUint32(b, shimMagic)
	be.PutUint32(b[4:], 0)
	if has {
		b[5] = shimHasData
	} else {
		data = 0
	}
	be.PutUint64(b[8:], data)
}

// readShim reports false for a payload that does not begin with a header of this version.
func readShim(b []byte) (data uint64, has, ok bool) {
	if len(b) < ShimBytes || binary.BigEndian.Uint32(b) != shimMagic || b[4] != 0 ||
		b[5]&^shimHasData != 0 {
		return 0, false, false
	}
	return binary.BigEndian.Uint64(b[8:]), b[5]&shimHasData != 0, true
}
