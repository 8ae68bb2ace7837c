package endpoint

import (
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
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
// SendFrame, SendFrameMsg or AbandonFrame. The room is for peers of the family of Config.Local, or
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

// SendFrame sends the first n bytes of a frame's payload (fi_send of registered memory, without a
// copy). After an error the frame is still the caller's; after nil it is the endpoint's. Errors are
// those of Send.
func (e *Endpoint) SendFrame(f Frame, n int, to cq.Addr, context uint64) error {
	return e.SendFrameMsg(f, n, &Msg{To: to, Context: context,
		Flags: e.cfg.TransmitFlags &^ cq.FlagInject})
}

// SendFrameMsg is SendFrame with the flags, data and address of a message, whose Buf and Iov are
// not looked at. The frame is not free again before the kernel is done with it: FlagInject is
// [ErrNotSupported], and FlagInjectComplete the same as FlagTransmitComplete.
func (e *Endpoint) SendFrameMsg(f Frame, n int, m *Msg) error {
	e.lock()
	defer e.unlock()
	err := e.postFrame(f, n, m, m.Flags)
	if m.Flags&cq.FlagMore == 0 {
		e.push()
	}
	return err
}

func (e *Endpoint) postFrame(f Frame, n int, m *Msg, op cq.Flags) error {
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
	case !e.lent(f):
		return ErrFrame
	case n < 0 || n > len(f.payload):
		return ErrTooBig
	}
	if err := e.begin(op); err != nil {
		return err
	}
	err := e.buildFrame(f, n, m, op)
	if err == nil {
		return nil
	}
	unreachable := err == errNoWay
	if err = e.refuse(m, op, err); err == nil && unreachable {
		e.giveUp(f) // the operation was accepted and has failed
	}
	return err
}

func (e *Endpoint) buildFrame(f Frame, n int, m *Msg, op cq.Flags) error {
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
	e.giveUp(f)
	return nil
}

// lent reports whether a frame is the caller's: not sent or given back before.
func (e *Endpoint) lent(f Frame) bool { return f.buf != nil && e.ops[f.id].lent }

func (e *Endpoint) giveUp(f Frame) {
	e.ops[f.id].lent = false
	e.socket.Abandon(f.id)
}
