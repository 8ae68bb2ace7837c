package endpoint

import (
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Msg is an operation with all that one can have (struct fi_msg). For Recv, Buf and Iov are memory
// to receive into.
type Msg struct {
	Buf     []byte         // the payload, or its beginning
	Iov     [][]byte       // and what follows it: at most MaxPieces
	To      cq.Addr        // whom to, as an index of Config.Addresses
	Dest    netip.AddrPort // or as an address, if it is set; it needs to be in no vector
	From    netip.AddrPort // with Dest: whom it comes from, if not Config.Local; 0.0.0.0: by route
	Context uint64
	Flags   cq.Flags
	Data    uint64 // remote CQ data, with FlagRemoteCQData
	// Base is what completions call the first byte of a multi-receive buffer. Their Buf is this
	// plus the offset of the message. The zero value makes it the offset alone.
	Base shm.Ref
}

// postFlags are what SendMsg knows.
const (
	levelFlags = cq.FlagInjectComplete | cq.FlagTransmitComplete | cq.FlagDeliveryComplete |
		cq.FlagMatchComplete | cq.FlagCommitComplete
	postFlags = cq.FlagCompletion | cq.FlagInject | cq.FlagMore | cq.FlagFence | cq.FlagMulticast |
		cq.FlagRemoteCQData | levelFlags
)

// sendKind are the flags of a send completion.
const sendKind = cq.FlagSend | cq.FlagMsg

// Send sends a datagram (fi_send). The payload is copied, so it can be used again at once; the
// completion, which carries the context, says that the kernel is done with the packet.
//
// nil says that the send is accepted and will complete. Errors say that it is not: cq.ErrFull,
// [ErrNoFrame] and [ErrResolving], which are EAGAIN; [ErrAddress], [ErrTooBig]; cq.ErrClosed and
// cq.ErrOverrun of the queue; cq.ENoCQ without Config.Transmit; [xdp.ErrDeviceGone]; os.ErrClosed.
// A link that is down is none, the packet waits for it; but to a peer that was never reached there
// is [xdp.ErrLinkDown].
func (e *Endpoint) Send(payload []byte, to cq.Addr, context uint64) error {
	return e.SendMsg(&Msg{Buf: payload, To: to, Context: context, Flags: e.cfg.TransmitFlags})
}

// SendData is Send with a word for the receiver's completion (fi_senddata). It needs
// Config.RemoteData, else it is [ErrNotSupported].
func (e *Endpoint) SendData(payload []byte, data uint64, to cq.Addr, context uint64) error {
	return e.SendMsg(&Msg{Buf: payload, To: to, Context: context, Data: data,
		Flags: e.cfg.TransmitFlags | cq.FlagRemoteCQData})
}

// SendMsg is the send that takes everything (fi_sendmsg). Flags: FlagCompletion, FlagInject (of no
// effect: payloads are copied), FlagMore, FlagFence, FlagMulticast, FlagRemoteCQData, and a level.
// Config.TransmitFlags are not added. Beside the errors of Send there are [ErrFenced], which is
// EAGAIN; [ErrFlags] and [ErrPieces]; and [ErrNotSupported] for levels beyond transmit complete.
func (e *Endpoint) SendMsg(m *Msg) error {
	e.lock()
	err := e.post(m, m.Flags)
	if m.Flags&cq.FlagMore == 0 {
		// Even if this one was refused: those before it relied on it.
		e.push()
	}
	e.unlock()
	return err
}

// SendBatch posts messages in order and shows them to the kernel with one store and one system call
// as far as it takes them. It returns how many were accepted; less than all with the error of the
// first that was not. FlagMore on the last one leaves the batch open.
func (e *Endpoint) SendBatch(ms []Msg) (n int, err error) {
	e.lock()
	defer e.unlock()
	for n < len(ms) {
		if err = e.post(&ms[n], ms[n].Flags); err != nil {
			break
		}
		n++
	}
	if n < len(ms) || n == 0 || ms[n-1].Flags&cq.FlagMore == 0 {
		e.push()
	}
	return n, err
}

// Inject sends a datagram of which nobody wants to hear again (fi_inject). Counters count it.
// Errors are those of Send but for cq.ErrFull, and [ErrUnreachable].
func (e *Endpoint) Inject(payload []byte, to cq.Addr) error {
	return e.inject(&Msg{Buf: payload, To: to})
}

// InjectData is Inject with a word for the receiver's completion (fi_injectdata).
func (e *Endpoint) InjectData(payload []byte, data uint64, to cq.Addr) error {
	return e.inject(&Msg{Buf: payload, To: to, Data: data, Flags: cq.FlagRemoteCQData})
}

func (e *Endpoint) inject(m *Msg) error {
	e.lock()
	err := e.post(m, m.Flags|cq.FlagInjectCall)
	e.push()
	e.unlock()
	return err
}

// Flush shows the kernel what was posted with FlagMore.
func (e *Endpoint) Flush() {
	e.lock()
	e.push()
	e.unlock()
}

// post puts one operation into the transmit ring, or answers it. The kernel is not told.
func (e *Endpoint) post(m *Msg, op cq.Flags) error {
	if err := e.allowed(m, op); err != nil {
		return err
	}
	if err := e.begin(op); err != nil {
		return err
	}
	err := e.build(m, op)
	if err == nil {
		return nil
	}
	return e.refuse(m, op, err)
}

// refuse ends an operation that was begun and could not be posted.
func (e *Endpoint) refuse(m *Msg, op cq.Flags, err error) error {
	if err != errNoWay || e.tx == nil || op&cq.FlagInjectCall != 0 {
		if e.tx != nil {
			e.tx.Drop(op)
		}
		if err == errNoWay {
			return ErrUnreachable
		}
		return err
	}
	e.stats.Unreachable++
	e.failure = cq.ErrorEntry{Context: m.Context, Flags: sendKind,
		Err: errUnreachable, ProvErrno: int32(errUnreachable)}
	return e.tx.Fail(&e.failure, op)
}

// begin reserves room for the completion.
func (e *Endpoint) begin(op cq.Flags) error {
	if e.tx == nil {
		if op&cq.FlagInjectCall == 0 {
			return cq.ENoCQ
		}
		return nil
	}
	err := e.tx.Begin(op)
	if err == cq.ErrFull && e.sending > 0 {
		// What completed without anybody having asked may hold the room.
		if _, e2 := e.reap(); e2 == nil {
			err = e.tx.Begin(op)
		}
	}
	return err
}

// allowed refuses what could never be done, before anything has begun.
func (e *Endpoint) allowed(m *Msg, op cq.Flags) error {
	if err := e.usable(); err != nil {
		return err
	}
	if op&^cq.FlagMore == 0 || op == cq.FlagInjectCall {
		if len(m.Iov) > MaxPieces {
			return ErrPieces
		}
		return nil
	}
	return e.allowedFlags(m, op)
}

// build writes the packet into a frame and posts that.
func (e *Endpoint) build(m *Msg, op cq.Flags) error {
	p, err := e.peerOf(m)
	if err != nil {
		return err
	}
	n := len(m.Buf)
	for _, b := range m.Iov {
		n += len(b)
	}
	if n > p.max {
		return ErrTooBig
	}
	if p.header+n+ShimBytes > e.socket.PacketBytes() && e.chains {
		return e.buildChain(p, m, n, op)
	}
	frame, buf, err := e.acquire()
	if err != nil {
		return err
	}
	total, err := p.template.BuildInPlace(buf, e.gather(buf[p.header:], m, op))
	if err == nil {
		err = e.socket.Post(frame, total, uint64(frame))
	}
	if err != nil {
		e.socket.Abandon(frame)
		return ErrTooBig
	}
	e.accept(frame, m.Context, uint32(n), op)
	return nil
}

// acquire takes a free frame, after looking for one that the kernel is done with.
func (e *Endpoint) acquire() (frame uint32, buf []byte, err error) {
	frame, buf, ok := e.socket.Acquire()
	if !ok {
		e.push() // what waits for FlagMore to end holds the frames
		if _, err := e.reap(); err != nil {
			return 0, nil, err
		}
		if frame, buf, ok = e.socket.Acquire(); !ok {
			e.stats.NoFrame++
			return 0, nil, ErrNoFrame
		}
	}
	return frame, buf, nil
}

// gather writes header and pieces to where the payload of the packet begins.
func (e *Endpoint) gather(to []byte, m *Msg, op cq.Flags) (n int) {
	if e.cfg.RemoteData {
		putShim(to, op&cq.FlagRemoteCQData != 0, m.Data)
		n = ShimBytes
	}
	n += copy(to[n:], m.Buf)
	for _, b := range m.Iov {
		n += copy(to[n:], b)
	}
	return n
}

// accept notes a packet that is in the transmit ring.
func (e *Endpoint) accept(frame uint32, context uint64, bytes uint32, op cq.Flags) {
	o := &e.ops[frame]
	*o = sendOp{context: context, flags: op, bytes: bytes}
	e.lastSent = frame
	e.sending++
	e.posted++
	e.stats.Accepted++
	e.dirty = true
	if op&cq.FlagInjectComplete != 0 && op&higherLevels == 0 {
		e.completeEarly(o)
	}
}
