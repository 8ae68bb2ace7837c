package endpoint

import (
	"errors"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
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
const postFlags = cq.FlagCompletion | cq.FlagInject | cq.FlagMore | cq.FlagFence |
	cq.FlagMulticast | cq.FlagRemoteCQData | feed.Levels

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

// SendMsg is the send that takes everything (fi_sendmsg, fi_senddata). Flags: FlagCompletion,
// FlagInject (of no effect: payloads are copied), FlagMore, FlagFence, FlagMulticast, a level, and
// FlagRemoteCQData, which has Data be in the receiver's completion and needs Config.RemoteData.
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
	e.expect(len(ms))
	for n < len(ms) {
		if err = e.post(&ms[n], ms[n].Flags); err != nil {
			break
		}
		n++
	}
	e.expect(0)
	if n < len(ms) || n == 0 || ms[n-1].Flags&cq.FlagMore == 0 {
		e.push()
	}
	return n, err
}

// Inject sends a datagram of which nobody wants to hear again (fi_inject). Counters count it.
// Errors are those of Send but for cq.ErrFull, and [ErrUnreachable].
func (e *Endpoint) Inject(payload []byte, to cq.Addr) error {
	return e.InjectMsg(&Msg{Buf: payload, To: to})
}

// InjectMsg is Inject of a message, of which it takes the payload, the addresses and the data. Two
// flags count: FlagRemoteCQData (fi_injectdata), and FlagMore, with which the kernel is shown the
// packet by Flush, or with the next one.
func (e *Endpoint) InjectMsg(m *Msg) error {
	e.lock()
	err := e.post(m, m.Flags&(cq.FlagMore|cq.FlagRemoteCQData)|cq.FlagInjectCall)
	if m.Flags&cq.FlagMore == 0 {
		e.push()
	}
	e.unlock()
	return err
}

// Flush shows the kernel what was posted with FlagMore, and returns how many packets it did not
// take, for want of memory or of room in the device: the next call that sends, Flush or Progress
// has it try again.
func (e *Endpoint) Flush() (left int) {
	e.lock()
	defer e.unlock()
	e.push()
	return int(e.left)
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

// expect reserves room for the completions of a batch of n, or gives up what is left of that.
func (e *Endpoint) expect(n int) {
	if e.tx != nil && n != 1 {
		e.tx.Expect(n)
	}
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
	if p.header+n+ShimBytes > e.limits.PacketBytes && e.chains {
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
		e.socket.Drop(frame)
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
	e.unkicked++
	e.stats.Accepted++
	e.dirty = true
	if op&cq.FlagInjectComplete != 0 && op&higherLevels == 0 {
		e.completeEarly(o)
	}
}

// higherLevels wait for more than that the payload can be used again.
const higherLevels = feed.Levels &^ cq.FlagInjectComplete

// unkept are levels that nobody here can know to be reached: that would take an answer.
const unkept = cq.FlagDeliveryComplete | cq.FlagMatchComplete | cq.FlagCommitComplete

// allowedFlags judges flags that are not of the plainest kind.
func (e *Endpoint) allowedFlags(m *Msg, op cq.Flags) error {
	switch {
	case op&unkept != 0:
		return ErrNotSupported
	case op&^(postFlags|cq.FlagInjectCall) != 0:
		return ErrFlags
	case op&cq.FlagRemoteCQData != 0 && !e.cfg.RemoteData:
		return ErrNotSupported
	case len(m.Iov) > MaxPieces:
		return ErrPieces
	case op&cq.FlagFence != 0:
		return e.fence()
	}
	return nil
}

// fence holds a post back until all that was posted before it has reached the highest level that
// there is. What is posted after it cannot overtake it, since it is not in the ring before.
func (e *Endpoint) fence() error {
	if e.sending > 0 {
		e.push()
		if _, err := e.reap(); err != nil {
			return err
		}
	}
	if e.sending > 0 {
		return ErrFenced
	}
	return nil
}

// completeEarly reports a send whose payload was copied (FI_INJECT_COMPLETE). Its frame is still
// with the kernel, whose answer is then no news.
func (e *Endpoint) completeEarly(o *sendOp) {
	if e.tx == nil || !e.tx.Wants(o.flags) {
		return
	}
	err := e.tx.Complete(&cq.Entry{Context: o.context, Flags: sendKind, Len: uint64(o.bytes)}, o.flags)
	o.silent = true
	if err != nil {
		e.stats.Abandoned++
		return
	}
	e.stats.Completed++
}

// push makes the kernel send what was posted, and looks at once what it is done with: in copy mode
// that is all of it, and whoever reads the queue next finds the completion.
func (e *Endpoint) push() {
	e.round++
	if e.unkicked == 0 && e.left == 0 || e.over {
		return
	}
	if err := e.kick(); err != nil {
		e.broke(err)
		return
	}
	if _, err := e.reap(); err != nil {
		e.stats.Abandoned++
	}
	if e.sending > 0 && e.asleep {
		e.asleep = false
		e.loop.Wake() // no descriptor tells of a completion
	}
}

// kick shows the kernel what is new. A link that is down is not an error: packets wait for it.
func (e *Endpoint) kick() error {
	posted := e.unkicked
	e.unkicked = 0
	e.socket.Flush()
	unsent := e.socket.Unsent()
	if e.left = 0; unsent == 0 {
		return nil
	}
	dropped := e.socket.SyscallStats().SendDropped
	left, err := e.socket.Kick()
	if e.limits.Mode == xdp.BindCopy { // else the driver goes on
		e.left = uint32(left)
	}
	if posted == 1 && unsent == 1 && e.socket.SyscallStats().SendDropped == dropped+1 {
		// The device refused a packet, and there was only this one. Of several nobody knows which.
		e.ops[e.lastSent].refused = true
	}
	return e.linkState(err)
}

func (e *Endpoint) linkState(err error) error {
	if errors.Is(err, xdp.ErrLinkDown) {
		e.stats.LinkDown++
		return nil
	}
	return err
}

// broke ends an endpoint whose device failed. Everything that was accepted is answered.
func (e *Endpoint) broke(err error) {
	if e.over {
		return
	}
	_ = e.end(err)
	e.tellGone()
}

// reap reports what the kernel is done with.
func (e *Endpoint) reap() (work int, err error) {
	for {
		n := e.socket.Reap(e.done)
		if n == 0 {
			return work, err
		}
		work += n
		if e2 := e.finish(e.done[:n]); e2 != nil && err == nil {
			err = e2
		}
		if n < len(e.done) {
			return work, err
		}
	}
}

// finish posts the completions of sends with one store, and counts.
func (e *Endpoint) finish(done []xdp.Sent) error {
	e.sending -= len(done)
	if e.tx == nil {
		return nil
	}
	wanted, failed, counted := 0, 0, 0
	bytes := uint64(0)
	for i := range done {
		switch o := &e.ops[done[i].Frame]; {
		case o.silent:
		case o.refused:
			failed++
		default:
			counted++
			bytes += uint64(o.bytes)
			if e.tx.Wants(o.flags) {
				wanted++
			}
		}
	}
	err := e.tx.Count(cq.FlagSend, counted, bytes)
	if e2 := e.complete(done, wanted); e2 != nil {
		err = e2
	}
	if failed > 0 {
		e.fail(done, errRefused)
	}
	return err
}

// complete posts one completion each for the wanted ones of done.
func (e *Endpoint) complete(done []xdp.Sent, wanted int) error {
	i, credited := 0, wanted
	for wanted > 0 {
		a, b, err := e.tx.Slots(wanted, credited)
		credited = 0
		if err != nil {
			e.stats.Abandoned += uint64(wanted)
			return err
		}
		n := len(a) + len(b)
		for k := 0; k < n; i++ {
			o := &e.ops[done[i].Frame]
			if o.silent || o.refused || !e.tx.Wants(o.flags) {
				continue
			}
			s := cq.Entry{Context: o.context, Flags: sendKind, Len: uint64(o.bytes)}
			if k < len(a) {
				a[k] = s
			} else {
				b[k-len(a)] = s
			}
			k++
		}
		if err := e.cfg.Transmit.Commit(n); err != nil {
			e.stats.Abandoned += uint64(wanted)
			return err
		}
		e.stats.Completed += uint64(n)
		wanted -= n
	}
	return nil
}

// fail posts an error entry for each of done that the device refused.
func (e *Endpoint) fail(done []xdp.Sent, why cq.Errno) {
	for i := range done {
		if o := &e.ops[done[i].Frame]; o.refused && !o.silent {
			e.stats.Refused++
			e.failSend(o, why)
		}
	}
}

func (e *Endpoint) failSend(o *sendOp, why cq.Errno) {
	e.failure = cq.ErrorEntry{Context: o.context, Flags: sendKind, Len: 0,
		Err: why, ProvErrno: int32(why)}
	if e.tx.Fail(&e.failure, o.flags) != nil {
		e.stats.Abandoned++
	}
}

// cancelSends answers the sends that were under way when the socket was closed.
func (e *Endpoint) cancelSends() {
	e.socket.Forfeit(func(frame uint64) {
		o := &e.ops[frame]
		if e.tx == nil || o.silent {
			return
		}
		e.stats.Cancelled++
		e.failSend(o, errCanceled)
	})
	e.sending, e.left = 0, 0
}
