package fabric

import (
	"context"
	"errors"
	"slices"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/fetch"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
)

// sendFlags are what SendMsg knows.
const (
	sendFlags = cq.FlagTagged | cq.FlagRemoteCQData | cq.FlagCompletion | cq.FlagMore |
		cq.FlagInject | cq.FlagInjectCall | cq.FlagFence | cq.FlagMulticast | feed.Levels
)

// outLane is what we send to one peer.
type outLane struct {
	p      *peer
	place  int
	id     uint64
	bit    int              // of the peer's row
	row    *kind.FabricRow  // the peer's
	head   *kind.FabricLane // ours
	slots  []kind.FabricSlot
	mask   uint64
	ringer *wake.Ringer
	passes []passage // by index

	sent, seen uint64 // next index; those before this one were examined
	rev        uint64 // of the row, when it was looked at last
	idle       int    // looks in a row that found nothing
	wanted     uint64 // index behind the last message that was no inject
	ignored    bool   // the bell ignores the lane: see quiet
	bytes      uint64 // sent
	granted    uint64
	adopted    bool
	unused     bool  // its peer has left a group, and may have no other use for it
	err        error // why it ended
	forwarded

	pushes  []push   // by operation
	free    []uint16 // of them
	clear   []uint16 // of them: the receiver has asked for them, in this order
	control uint64   // head of its control ring
	asks    asks
	later   later // behind a fence

	chunks int    // that it uses
	missed uint64 // messages of groups that found no room, and the receiver is not told
}

type sendOp struct {
	context uint64
	flags   cq.Flags
	bytes   int

	tag, data uint64 // the tag of what reaches memory is what it does there
	piece     *piece // of the pool, that it holds: the payload goes by reference
}

// kind are the flags of its completion.
func (o *sendOp) kind() cq.Flags {
	if o.flags&cq.FlagRMA != 0 {
		return reachedFlags(o.tag, cq.FlagRead, cq.FlagWrite)
	}
	kind := cq.FlagSend | o.flags&cq.FlagMulticast
	if o.flags&cq.FlagTagged != 0 {
		return kind | cq.FlagTagged
	}
	return kind | cq.FlagMsg
}

// copied reports whether the payload is the caller's again when the call returns.
func (o *sendOp) copied() bool { return o.flags&(cq.FlagInject|cq.FlagInjectCall) != 0 }

// passage is what follows when the receiver has examined a slot.
type passage struct {
	sendOp
	ends    bool   // the operation
	offered bool   // the message is dropped if its receiver ends first
	chunk   uint32 // that the payload lies in, and one more
}

// mostIdle is how often in a row a peer may say that there is something to see, and there is not.
const mostIdle = 1 << 10

// charge is what a message counts against a grant.
func charge(n int) uint64 { return max(uint64(n), kind.FabricCharge) }

// Send sends a message (fi_send). The payload is the endpoint's until the completion, which says
// that the receiver has examined it. Messages to one peer arrive in the order of their sends.
//
// nil says that the send is accepted, and will complete. Errors say that it is not: cq.ErrFull, on
// which to read, and to send again; [ErrTooLong]; [ErrAddress]; [ErrNoPeer], [ErrPeerDied],
// [ErrPeerClosed], [ErrRefused], [ErrCorrupt], which stay; [ErrPeers]; cq.ENoCQ without
// Options.Transmit; errors of queues and of shared memory; os.ErrClosed. With Options.Datagram the
// send has completed when the call returns, and cq.ErrFull is for want of room in the queue alone;
// [ErrType]: the peer has no such endpoint, or this one has none and the peer has.
func (e *Endpoint) Send(payload []byte, to cq.Addr, context uint64) error {
	return e.begin(payload, to, &sendOp{context: context, flags: e.opt.TransmitFlags})
}

// TSend is Send of a message with a tag (fi_tsend), which gets receives of TRecv and its like.
func (e *Endpoint) TSend(payload []byte, to cq.Addr, tag, context uint64) error {
	return e.begin(payload, to, &sendOp{context: context,
		flags: e.opt.TransmitFlags | cq.FlagTagged, tag: tag})
}

// Inject is Send of at most MaxInline bytes without a completion (fi_inject). The payload can be
// used again at once. Should it fail later there is an error entry with FlagNoContext, if the queue
// has room then: none is reserved, and what finds none is counted by Stats.Abandoned alone. SendMsg
// with FlagInjectCall does that with a tag and data.
func (e *Endpoint) Inject(payload []byte, to cq.Addr) error {
	return e.begin(payload, to, &sendOp{flags: cq.FlagInjectCall})
}

// SendMsg is the send that takes everything (fi_sendmsg, fi_tsendmsg, fi_senddata and so on).
// Flags: FlagTagged, FlagRemoteCQData, which has Data be in the receiver's completion,
// FlagCompletion, FlagInject, FlagInjectCall, FlagMore, which has no effect, FlagFence, and the
// levels inject, transmit, delivery and match. Options.TransmitFlags are not added. Errors beside
// those of Send: [ErrFlags], and [ErrNotSupported] for level commit, which is for WriteMsg.
//
// A send with FlagFence, and those behind it to the same peer, wait here until all before it have
// completed; their payload is the endpoint's meanwhile. With level match it also waits until all
// before it have their receives, whatever their level. Nothing is refused for that.
func (e *Endpoint) SendMsg(m *Msg) error {
	var op sendOp
	payload, err := op.of(m)
	if err != nil {
		return err
	}
	return e.begin(payload, m.Addr, &op)
}

// begin is a send that does not wait.
func (e *Endpoint) begin(payload []byte, to cq.Addr, op *sendOp) error {
	e.bell.Lock()
	_, err := e.send(payload, to, op)
	e.bell.Unlock()
	return err
}

// of makes o, which is zero, the operation of a message. Pieces are joined.
func (o *sendOp) of(m *Msg) (payload []byte, err error) {
	switch {
	case m.Flags&cq.FlagCommitComplete != 0:
		return nil, ErrNotSupported
	case m.Flags&^sendFlags != 0:
		return nil, ErrFlags
	}
	payload = m.Buf
	if len(m.Iov) > 0 {
		payload = slices.Concat(append([][]byte{m.Buf}, m.Iov...)...)
	}
	o.context, o.flags = m.Context, m.marked()&^cq.FlagMulticast
	o.tag, o.data = m.Tag, m.Data
	return payload, nil
}

// solicits is a flag of operations that no call knows: Msg.Solicited.
const solicits = cq.Flags(1) << 63

func (m *Msg) marked() cq.Flags {
	if m.Solicited {
		return m.Flags | solicits
	}
	return m.Flags
}

// SendContext is SendMsg that waits for room in the lane and for a grant, until the context ends.
// For room in the queue it does not wait, since that takes a read.
func (e *Endpoint) SendContext(ctx context.Context, m *Msg) error {
	var op sendOp
	payload, err := op.of(m)
	if err != nil {
		return err
	}
	e.bell.Lock()
	defer e.bell.Unlock()
	wait, err := e.send(payload, m.Addr, &op)
	if wait {
		err = e.sendLater(ctx, payload, m.Addr, op)
	}
	return err
}

// sendLater sends once there is room. The bell's lock is held.
func (e *Endpoint) sendLater(
	ctx context.Context, payload []byte, to cq.Addr, op sendOp,
) (err error) {
	if e.untilRoom(ctx, func() (wait bool) {
		wait, err = e.send(payload, to, &op)
		return wait
	}) {
		err = fault("send", "", errors.Join(ctx.Err(), context.Cause(ctx)))
	}
	return err
}

// send is what every send ends in. wait says that the error is for want of room that the peer
// makes.
func (e *Endpoint) send(payload []byte, to cq.Addr, op *sendOp) (wait bool, err error) {
	op.bytes = len(payload)
	p, err := e.target(to, op)
	switch {
	case err != nil:
		return false, err
	case p == nil:
		return e.sendGroup(e.groups[to], payload, op)
	case e.opt.Datagram:
		if err = e.allowedDatagram(op); err != nil {
			return false, err
		}
	}
	l := p.out
	if l == nil {
		if l, err = e.lane(p); err != nil {
			return err == cq.ErrFull, err
		}
	}
	return l.send(payload, op)
}

// target returns the peer that an operation is for, if it may begin, and nil if that is a group.
func (e *Endpoint) target(to cq.Addr, op *sendOp) (*peer, error) {
	switch {
	case e.closed:
		return nil, errClosed
	case op.bytes > MaxMessage, op.bytes > MaxInline && op.copied():
		return nil, ErrTooLong
	case e.unlinked():
		return nil, ErrNotConnected
	case uint64(to) >= uint64(len(e.byAddr)) && (to < firstGroup || to >= e.toJoin):
		return nil, ErrAddress
	case e.tx == nil && op.flags&cq.FlagInjectCall == 0:
		return nil, cq.ENoCQ
	case to >= firstGroup:
		return nil, nil
	}
	return e.byAddr[to], nil
}

// promise reserves the room that the end of an operation takes.
func (e *Endpoint) promise(op *sendOp) error {
	if e.tx == nil {
		return nil
	}
	return e.tx.Begin(op.flags)
}

// send sends a message, or its header if it is too long or the receiver has granted too little. A
// datagram goes now or never.
func (l *outLane) send(payload []byte, op *sendOp) (wait bool, err error) {
	e, n := l.p.e, len(payload)
	if l.err == nil { // it is stored into soon, and its line lies with the receiver, who looks at it
		fetch.Own(&l.slots[l.sent&l.mask].Seq)
	}
	ready := l.err == nil && !l.waits(op) && l.hasSlot() && l.bytes+charge(n) <= l.granted &&
		(!e.opt.Datagram || l.offers(n))
	if !ready && l.err == nil {
		l.watch()
		e.poll()
	}
	switch {
	case ready:
	case l.err != nil:
		return false, l.err
	case !e.opt.Datagram && !l.takes(op):
		return true, cq.ErrFull
	}
	if err = e.promise(op); err != nil {
		return false, err
	}
	switch {
	case ready && !e.opt.Datagram:
		l.put(payload, op)
	case !e.opt.Datagram:
		l.begin(payload, op)
	case l.offers(n):
		l.offer(payload, op)
		e.endSend(op, 0)
	default:
		e.stats.Dropped++
		e.endSend(op, 0)
	}
	return false, nil
}

// waits reports whether a send waits for others: there is a fence, or no header more can be alone.
func (l *outLane) waits(op *sendOp) bool {
	return len(l.later) > 0 || op.flags&cq.FlagFence != 0 || l.full()
}

// takes reports whether there is room for a send.
func (l *outLane) takes(op *sendOp) bool {
	if l.waits(op) {
		return l.p.e.takesLater(l.later, op)
	}
	return l.hasSlot()
}

// begin is a send for which there is room.
func (l *outLane) begin(payload []byte, op *sendOp) {
	if l.waits(op) {
		l.later.add(l.p.e, payload, op)
		l.watch() // the call may have looked too early, and ignored the lane again
		l.resume()
	} else {
		l.put(payload, op)
	}
}

// put is a send for which there is a slot, and a number if its header goes alone.
func (l *outLane) put(payload []byte, op *sendOp) {
	e, n := l.p.e, charge(len(payload))
	e.stats.Sent++
	s, pass := l.slot()
	head := op.head(s)
	alone := l.bytes+n > l.granted || l.asks.full(op)
	if alone || len(payload) > MaxInline {
		if x, at := e.pool.holds(payload, op); x != nil {
			s.More[1].Store(at)
			op.hold(x)
			l.publish(s, pass, head|kind.FabricRTS|kind.FabricInPool, l.announce(s, nil, op),
				len(payload))
			return
		}
		if alone || !l.fits(len(payload)) {
			l.publish(s, pass, head|kind.FabricRTS, l.announce(s, payload, op), len(payload))
			return
		}
	}
	l.bytes += n
	asks, bit := l.asks.begin(op)
	pass.sendOp, pass.ends = *op, asks == 0
	l.publish(s, pass, head|kind.FabricMessage|asks|l.fill(s, pass, payload), bit, len(payload))
}

// slot returns the next slot, and what follows it, which is nothing yet.
func (l *outLane) slot() (s *kind.FabricSlot, pass *passage) {
	s, pass = &l.slots[l.sent&l.mask], &l.passes[l.sent&l.mask]
	pass.ends, pass.offered, pass.chunk = false, false, 0
	return s, pass
}

// publish stores a slot, the sequence last, and rings if the receiver has parked the lane. The
// store is sequentially consistent, so this writer pays for order.
func (l *outLane) publish(s *kind.FabricSlot, pass *passage, what uint64, op uint16, n int) {
	ring.StoreRelease(&s.Head, what|uint64(op)<<16|uint64(n)<<32)
	l.sent++
	// Of an inject nobody waits for the message to be examined.
	inject := pass.ends && pass.flags&(cq.FlagInjectCall|cq.FlagMulticast) == cq.FlagInjectCall
	if !inject {
		l.wanted = l.sent
	}
	if l.ignored && (l.wanted == l.sent || l.sent-l.seen > l.mask/2) { // no more of quiet can end
		l.watch()
	}
	crash.At(crash.FabricFilled)
	s.Seq.Store(l.sent)
	crash.At(crash.FabricPublished)
	l.ringer.Published(l.sent, 0)
}

// hasSlot reports whether there is a slot for a message, beside the one for the end of the lane.
func (l *outLane) hasSlot() bool { return l.sent-l.seen < l.mask }

// full reports whether as many headers are alone as there can be.
func (l *outLane) full() bool { return len(l.free) == 0 && len(l.pushes) == kind.FabricMostOps }

// Level implements wake.Source: what the receiver told, and what we know.
func (l *outLane) Level() (head, tail uint64) {
	if l.p.dead.Load() {
		return l.rev, l.rev + 1
	}
	return l.rev, l.row.Rev.Load()
}

// look takes what the receiver told: the words behind rev, which was stored after them. A death is
// consumed before they are loaded, and then they are loaded whatever rev says.
func (l *outLane) look() (work int) {
	dead := l.p.dead.Load()
	rev := l.row.Rev.Load()
	if rev == l.rev && !dead {
		return 0
	}
	l.rev = rev
	closed := l.p.hasClosed() // stored after the last head
	owner := l.row.Owner.Load()
	switch {
	case owner&^kind.FabricRefused == l.id:
		l.adopted = true
		work = l.take(l.row.Head.Load(), l.row.Granted.Load(), l.row.Control.Load())
	case l.parted() && !dead: // it has examined that, for nothing else moves rev before it has the row
		l.seen, work = l.sent, 1
	case l.adopted && !dead:
		work = -1 // it gave away a row that is ours
	}
	switch {
	case work < 0:
		l.p.cut()
	case closed: // though it may have ended since
		l.end(ErrPeerClosed)
		l.p.forget()
	case dead:
		l.end(ErrPeerDied)
		if old := l.p.leaving; old != nil {
			old.end(ErrPeerDied)
		}
		l.p.forget()
	case owner == l.id|kind.FabricRefused:
		l.end(ErrRefused)
	case l.parted() && l.seen == l.sent:
		l.end(ErrPeerClosed) // nothing is under way
		if next := l.p.out; next == nil {
			l.p.forget()
		} else if next.unused && next.err == nil {
			next.part() // it waits for that
		}
	case work == 0:
		if l.idle++; l.idle > mostIdle {
			l.p.cut()
		}
	default:
		l.idle = 0
		l.pump()
		l.resume()
		if l.unused {
			l.part()
		}
	}
	if m := l.p.e.opt.mux; m != nil {
		m.roomy(l.p)
	}
	l.p.e.makeRoom()
	return 1
}

// take completes what was examined, and returns how much is new. Fewer than none: it cannot be.
func (l *outLane) take(head, granted, control uint64) (work int) {
	if head-l.seen > l.sent-l.seen {
		return -1
	}
	crash.At(crash.FabricLooked)
	for ; l.seen != head; work++ {
		p := &l.passes[l.seen&l.mask]
		l.giveBack(p)
		if p.ends {
			l.p.e.endSend(&p.sendOp, 0)
		}
		l.seen++
	}
	if granted > l.granted { // it never takes back what it gave
		l.granted = granted
		work++
	}
	if l.asks.open != 0 {
		n := l.takeMatched()
		if n < 0 {
			return n
		}
		work += n
	}
	n := l.takeClear(control)
	if n < 0 {
		return n
	}
	return work + n
}

// end fails what has not completed. If the peer looks at the lane no more, others can have its
// place, and what it may have read.
func (l *outLane) end(why error) {
	e, num := l.p.e, number(why)
	l.err = why
	over := why == ErrPeerDied || why == ErrPeerClosed
	for i := l.seen; i != l.sent; i++ { // seen stays: who has gone examines nothing behind that
		p := &l.passes[i&l.mask]
		if p.ends {
			e.endSend(&p.sendOp, num)
		}
		if p.offered && over {
			e.stats.Dropped++
		}
	}
	for i := range l.pushes {
		if p := &l.pushes[i]; p.is != pushFree {
			p.payload = nil
			e.conclude(&p.sendOp, num) // its piece may be read still
		}
	}
	l.endAsks(num)
	l.later.fail(e, num)
	bit := len(e.rows) + l.place
	e.bell.Drop(bit)
	l.silent()
	if m := e.opt.mux; l.parted() {
		l.p.leaving = nil
	} else if m != nil {
		m.deaf(l.p, why)
	}
	e.makeRoom()
	switch {
	case over:
		l.p.outBit.CompareAndSwap(int32(bit+1), 0)
		l.reclaim()
	case l.p.dead.Load(): // the notice came before, and its mark may be taken
		e.bell.Mark(bit)
	}
}

// reclaim takes back what the receiver may have read of a lane that has ended, and its place.
func (l *outLane) reclaim() {
	e := l.p.e
	for i := range l.passes {
		l.giveBack(&l.passes[i])
	}
	for i := range l.pushes {
		e.pool.release(&l.pushes[i].sendOp)
	}
	l.head.ID.Store(0)
	e.out[l.place] = nil
}

// finish publishes the end of the lane, for which a slot is kept.
func (l *outLane) finish() {
	s, pass := l.slot()
	l.publish(s, pass, kind.FabricFin, 0, 0)
	crash.At(crash.FabricEnded)
}

// endSend ends a send, which went well if num is 0.
func (e *Endpoint) endSend(o *sendOp, num cq.Errno) {
	e.pool.release(o)
	e.conclude(o, num)
}

// conclude tells of one that has ended, or notes that of a part.
func (e *Endpoint) conclude(o *sendOp, num cq.Errno) {
	if o.flags&cq.FlagMulticast != 0 {
		e.endPart(o, num)
	} else {
		e.report(o, num)
	}
}

// report tells of an operation that has ended.
func (e *Endpoint) report(o *sendOp, num cq.Errno) {
	if e.tx == nil {
		return
	}
	var err error
	if num == 0 {
		e.entry = cq.Entry{Context: o.context, Flags: o.kind(), Len: uint64(o.bytes)}
		err = e.tx.Complete(&e.entry, o.flags)
	} else {
		_ = e.posted.Commit() // they counted on the room that this may take
		e.fail = cq.ErrorEntry{Context: o.context, Flags: o.kind(), Err: num,
			ProvErrno: int32(num)}
		err = e.tx.Fail(&e.fail, o.flags)
	}
	if err != nil {
		e.stats.Abandoned++
	}
}
