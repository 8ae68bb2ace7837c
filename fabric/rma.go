package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
)

// Remote says which memory of a peer is meant: the key of its [Region], and where in that.
type Remote struct{ Key, Offset uint64 }

const (
	transmitKinds = cq.FlagSend | cq.FlagRead | cq.FlagWrite
	receiveKinds  = cq.FlagRecv | cq.FlagRemoteRead | cq.FlagRemoteWrite

	readFlags = cq.FlagCompletion | cq.FlagMore | cq.FlagTransmitComplete |
		cq.FlagDeliveryComplete
	writeFlags = readFlags | cq.FlagRemoteCQData | cq.FlagInject | cq.FlagInjectCall |
		cq.FlagInjectComplete | cq.FlagCommitComplete
	notForRemote = cq.FlagFence | cq.FlagMatchComplete
)

// reaching is an operation on memory of a peer, whose tag is what it does, as a slot says it. The
// call does it: it ends when the call returns, or when the peer's file has it.
type reaching struct {
	sendOp
	open bool // the file has not
	buf  []byte
	iov  [][]byte
	at   Remote
	need uint64 // of the region's access

	atomic *AtomicMsg
}

// Read copies memory of a peer to buf (fi_read). The call copies it itself, and the peer need not
// call anything: the completion, with FlagRMA and FlagRead, is in the queue when the call returns.
// Other calls of the endpoint wait meanwhile. What the peer, or others, write at the same time
// comes in any mixture.
//
// Errors, after which nothing completes: [ErrKey], [ErrAccess] and [ErrRange] say what is wrong
// with the region; cq.ErrFull, on which to read the queue and to try again; the others are those of
// Send.
func (e *Endpoint) Read(buf []byte, from cq.Addr, at Remote, context uint64) error {
	return e.ReadMsg(&Msg{Buf: buf, Addr: from, Context: context}, at)
}

// Write copies buf to memory of a peer (fi_write), as Read does it. The bytes are there when the
// call returns, and so before any message that is sent afterwards. Messages that were sent before
// may be examined later. The peer is told by an entry if there is data, by WriteMsg, and its
// counters count that; of other writes they learn if the region has FlagRMAEvent.
func (e *Endpoint) Write(buf []byte, to cq.Addr, at Remote, context uint64) error {
	return e.WriteMsg(&Msg{Buf: buf, Addr: to, Context: context}, at)
}

// ReadMsg is Read to several pieces of memory, with flags (fi_readmsg): FlagCompletion, FlagMore,
// and the levels transmit and delivery, which are the same here.
func (e *Endpoint) ReadMsg(m *Msg, at Remote) error {
	return e.rma(m, at, kind.FabricRead, readFlags)
}

// WriteMsg is Write from several pieces of memory, with flags (fi_writemsg, fi_writedata,
// fi_inject_write): those of ReadMsg, FlagInject, FlagInjectCall and the level inject, and
// FlagRemoteCQData. With that the peer's receive queue gets an entry with Data, and FlagRMA,
// FlagRemoteWrite and FlagNoContext, when the bytes are there. It takes room of the lane and of
// what the peer has granted, as a message of no bytes: without it the write is cq.ErrFull.
//
// At level commit, where the peer has Options.RemoteFile, the completion says that the bytes are in
// that file and on its device. The peer writes them when it moves next, and is told as if the
// region had FlagRMAEvent. An error entry with EIO says that the file did not take them; they are
// in the peer's memory, and it is not told. Elsewhere the level is [ErrNotSupported].
func (e *Endpoint) WriteMsg(m *Msg, at Remote) error {
	return e.rma(m, at, kind.FabricWrite, writeFlags)
}

func (e *Endpoint) rma(m *Msg, at Remote, what uint64, known cq.Flags) error {
	switch {
	case m.Flags&(notForRemote|cq.FlagCommitComplete&^known) != 0:
		return ErrNotSupported
	case m.Flags&^known != 0:
		return ErrFlags
	}
	n := len(m.Buf)
	for _, p := range m.Iov {
		n += len(p)
	}
	return e.reach(m.Addr, &reaching{need: what, buf: m.Buf, iov: m.Iov, at: at,
		sendOp: sendOp{context: m.Context, flags: m.marked() | cq.FlagRMA, tag: what, data: m.Data,
			bytes: n}})
}

// reachedFlags are those of a completion: of an operation, or with other sides of what its target
// is told.
func reachedFlags(what uint64, read, write cq.Flags) (f cq.Flags) {
	f = cq.FlagRMA
	if what&kind.FabricAtomic != 0 {
		f = cq.FlagAtomic
	}
	if what&kind.FabricRead != 0 {
		return f | read
	}
	return f | write
}

// reach does an operation, and completes it.
func (e *Endpoint) reach(to cq.Addr, op *reaching) error {
	e.bell.Lock()
	defer e.bell.Unlock()
	p, err := e.target(to, &op.sendOp)
	switch {
	case err != nil:
		return err
	case p == nil || e.opt.Datagram: // a group, for one
		return ErrNotSupported
	}
	if err = e.promise(&op.sendOp); err != nil {
		return err
	}
	err = p.reach(op)
	if err == cq.ErrFull {
		e.poll()
		err = p.reach(op)
	}
	if err != nil {
		if e.tx != nil {
			e.tx.Drop(op.flags)
		}
		return err
	}
	e.stats.Reached++
	if !op.open {
		e.report(&op.sendOp, 0)
	}
	return nil
}

// reach does an operation on memory of a peer, and tells it if it wants to know. The key is stored
// first, and looked up after that: the peer revokes it first, and then looks who uses it. So the
// bytes are the region's until the word is cleared, which comes after the copy: a long one, which
// Go's copy writes past the caches, ends in a store fence of its own.
func (p *peer) reach(op *reaching) (err error) {
	e := p.e
	l := p.out
	if l == nil {
		if l, err = e.lane(p); err != nil {
			return err
		}
	}
	w := &p.words.reach
	switch {
	case l.err != nil:
		return l.err
	case p.hasClosed(): // though it may have ended since
		return ErrPeerClosed
	case p.dead.Load():
		return ErrPeerDied
	case len(w.Table) == 0:
		return ErrKey
	case l.later.fenced(): // it is behind a fence
		return cq.ErrFull
	}
	use := &w.Uses[l.bit]
	use.Key.Store(op.at.Key)
	crash.At(crash.ReachUsed)
	mem, access, err := find(w, op)
	tells := op.tells(access)
	if err == nil && tells && (!l.hasSlot() || l.bytes+charge(0) > l.granted ||
		l.asks.full(&op.sendOp)) {
		l.watch()
		err = cq.ErrFull
	}
	if err == nil {
		op.move(w, mem)
		crash.At(crash.ReachMoved)
	}
	use.Key.Store(0)
	crash.At(crash.ReachEnded)
	switch {
	case err == ErrCorrupt:
		p.cut()
	case err == nil && tells:
		s, pass := l.slot()
		l.bytes += charge(0)
		asks, bit := l.asks.begin(&op.sendOp)
		if op.open = asks != 0; op.open {
			at, _ := kind.Within(w.Mem, mem)
			s.More[1].Store(uint64(at))
		}
		l.publish(s, pass, op.head(s)|kind.FabricReached|asks, uint16(op.tag)|bit<<8, op.bytes)
	}
	return err
}

// tells reports whether the peer hears of it, whose region has that access.
func (o *reaching) tells(access uint64) bool {
	return access&kind.FabricEvents != 0 || o.flags&(cq.FlagRemoteCQData|cq.FlagCommitComplete) != 0
}

// find returns the bytes of an operation, and what the region allows. Words of the table are loaded
// once: the peer may write them at any time.
func find(w *kind.Reach, op *reaching) (mem []byte, access uint64, err error) {
	place, ok := kind.FabricKeyPlace(op.at.Key)
	if !ok || len(w.Table) == 0 {
		return nil, 0, ErrKey
	}
	t := &w.Table[place]
	if t.Key.Load() != op.at.Key {
		return nil, 0, ErrKey
	}
	access, length := t.Access.Load(), t.Length.Load()
	mem, ok = w.Mem.At(t.Offset.Load(), int(length))
	switch n := uint64(op.bytes); {
	case !ok:
		return nil, 0, ErrCorrupt
	case access&op.need != op.need:
		return nil, 0, ErrAccess
	case op.at.Offset > length, n > length-op.at.Offset:
		return nil, 0, ErrRange
	case op.flags&cq.FlagCommitComplete != 0 && access&kind.FabricLasts == 0:
		return nil, 0, ErrNotSupported
	}
	mem = mem[op.at.Offset:][:op.bytes]
	if at, _ := kind.Within(w.Mem, mem); op.atomic != nil && at%op.atomic.Type.size() != 0 {
		return nil, 0, ErrRange
	}
	return mem, access, nil
}

// move copies the bytes, or changes them.
func (o *reaching) move(w *kind.Reach, mem []byte) {
	if o.atomic != nil {
		at, _ := kind.Within(w.Mem, mem)
		o.atomic.do(w.Mem, at, o.bytes)
		return
	}
	part := func(b []byte) {
		n := 0
		if o.tag == kind.FabricRead {
			n = copy(b, mem)
		} else {
			n = copy(mem, b)
		}
		mem = mem[n:]
	}
	part(o.buf)
	for _, b := range o.iov {
		part(b)
	}
}

// reached is what a peer says that it has done with memory of this endpoint; or what was missed of
// its messages to groups.
type reached struct {
	peer    *peer
	from    *inLane // nil: messages were missed
	what    uint64  // 0: n messages were missed
	n, data uint64
	with    cq.Flags // FlagRemoteCQData, if there is data
	meta    cq.Meta  // of the entry
}

// reached takes such a slot. It counts against the grant as a message of no bytes until it is told.
// What is to last is in the file before anything says so.
func (l *inLane) reached(s *kind.FabricSlot, head uint64) (ok bool) {
	r := reached{peer: l.p, from: l, what: head >> 16 & 0xffff, n: head >> 32,
		meta: marks(head)}
	asks, bit := head&kind.FabricAsks != 0, r.what>>8
	if asks {
		r.what &= 0xff
	}
	if head&kind.FabricWithData != 0 {
		r.with, r.data = cq.FlagRemoteCQData, s.Data.Load()
	}
	e := l.p.e
	if !kind.FabricReachedBy(r.what, uint64(r.with)) || r.n > kind.FabricMostRemote ||
		l.bytes+charge(0) > l.matched+uint64(e.opt.Window) {
		return false
	}
	l.bytes += charge(0)
	if asks {
		at := s.More[1].Load()
		mem, ok := e.remote.Mem.At(at, int(r.n))
		if !ok || e.opt.RemoteFile == nil || r.what == kind.FabricRead ||
			bit >= kind.FabricMostAsks || len(l.owed) >= mostRecords {
			return false
		}
		if e.commit(int(at), mem) != nil {
			l.owed = append(l.owed, kind.FabricClear(uint16(bit), 0, kind.FabricUnwritten))
			l.match(0)
			return true
		}
		l.answer(&arrival{asks: true, op: uint16(bit)})
	}
	e.reached(r)
	return true
}

func (e *Endpoint) reached(r reached) {
	e.remote.untold = append(e.remote.untold, r)
	e.tellReached()
}

// tellReached reports what peers have done, in the order in which it was examined: by entries, as
// far as there is room, and to counters.
func (e *Endpoint) tellReached() (work int) {
	all := e.remote.untold
	if len(all) == 0 {
		return 0
	}
	_ = e.posted.Commit() // they counted on the room that this may take, and came before
	for ; work < len(all); work++ {
		r := &all[work]
		if e.rx != nil {
			err := e.tellOf(r)
			if err == cq.ErrFull {
				break
			}
			if err != nil {
				e.stats.Abandoned++
			}
		}
		if r.from != nil {
			r.from.match(0)
		}
	}
	e.remote.untold = append(all[:0], all[work:]...)
	return work
}

func (e *Endpoint) tellOf(r *reached) error {
	if r.what == 0 {
		e.fail = cq.ErrorEntry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagMulticast, Data: r.n,
			Src: cq.From(r.peer.index), Err: cq.EOverrun, ProvErrno: int32(cq.EOverrun),
			ErrData: r.peer.addr.Append(nil)}
		return e.rx.Fail(&e.fail, cq.FlagInjectCall) // nobody reserved room for it
	}
	e.entry = cq.Entry{Len: r.n, Data: r.data, Src: cq.From(r.peer.index), Meta: r.meta,
		Flags: r.with | reachedFlags(r.what, cq.FlagRemoteRead, cq.FlagRemoteWrite)}
	return e.rx.CompleteTarget(&e.entry)
}
