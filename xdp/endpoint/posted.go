package endpoint

import (
	"errors"
	"math"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// maxPosted is how many buffers can be posted at once (rx_attr size). A queue that refuses what it
// has no room for holds fewer.
const maxPosted = 1 << 14

// Recv posts memory to receive a datagram into (fi_recv). It needs Config.Posted, else it is
// [ErrNotSupported]. The memory is the endpoint's until the completion, which carries the context.
// Errors: cq.ErrFull, which is EAGAIN: the queue has no room for one more completion, or as many
// buffers are posted as there can be; those of the queue; os.ErrClosed.
//
// Datagrams fill buffers in the order in which these were posted. One that is longer than its
// buffer ends it with ETRUNC: an error entry with the bytes that fit in Len, and the number of
// those that did not in OverrunBytes.
func (e *Endpoint) Recv(buf []byte, context uint64) error {
	return e.RecvMsg(&Msg{Buf: buf, Context: context})
}

// RecvMsg is the receive that takes everything (fi_recvmsg): a scatter list, and the flags
// FlagCompletion and FlagMultiRecv.
//
// FlagMultiRecv keeps Buf in use for one datagram after the other, until less than
// Config.MinMultiRecv is left of it, or too little for the next one. Each datagram has a
// completion, whose Buf is Base plus where it lies in the buffer, and whose room in the queue is
// not reserved: datagrams wait for it, and while such a buffer is posted others are refused
// (cq.ErrFull) that would reserve all that there is. The release of the buffer is told as
// Config.ReleaseAlone says, by a selective binding too, and always has room. Iov is not for these,
// nor is a Buf that is too short to begin with ([ErrFlags]).
func (e *Endpoint) RecvMsg(m *Msg) error {
	e.lock()
	defer e.unlock()
	if err := e.allowedBuffer(m); err != nil {
		return err
	}
	multi := m.Flags&cq.FlagMultiRecv != 0
	if e.buffers.n == maxPosted || (multi || e.buffers.multi > 0) && e.freeRoom() < 2 {
		return cq.ErrFull // messages in a multi-receive buffer need a place that is nobody's
	}
	if err := e.rx.Begin(m.Flags); err != nil {
		return err
	}
	if multi {
		e.buffers.multi++
	}
	b := e.buffers.push()
	*b = buffer{context: m.Context, flags: m.Flags, base: m.Base, buf: m.Buf, more: b.more[:0]}
	b.room = len(m.Buf)
	for _, p := range m.Iov {
		b.more = append(b.more, p)
		b.room += len(p)
	}
	if e.rxBlocked {
		e.loop.Wake() // a datagram may be waiting for this
	}
	return nil
}

func (e *Endpoint) allowedBuffer(m *Msg) error {
	if err := e.usable(); err != nil {
		return err
	}
	multi := m.Flags&cq.FlagMultiRecv != 0
	switch {
	case !e.cfg.Posted:
		return ErrNotSupported
	case len(m.Iov) > MaxPieces:
		return ErrPieces
	case m.Flags&^(cq.FlagCompletion|cq.FlagMultiRecv|cq.FlagMore) != 0,
		multi && (len(m.Iov) > 0 || len(m.Buf) < e.cfg.MinMultiRecv):
		return ErrFlags
	}
	return nil
}

// buffer is memory that was posted.
type buffer struct {
	context uint64
	flags   cq.Flags
	base    shm.Ref
	buf     []byte
	more    [][]byte // pieces behind buf
	room    int      // bytes of all of them
	used    int      // of a multi-receive buffer
}

// put copies a payload in, as far as it fits.
func (b *buffer) put(payload []byte) (n int) {
	n = copy(b.buf[b.used:], payload)
	for _, p := range b.more {
		n += copy(p, payload[n:])
	}
	return n
}

// bufferQueue holds what is posted, oldest first, in a ring that grows to what is needed once.
type bufferQueue struct {
	ring    []buffer
	head, n int
	multi   int            // of them are for several datagrams
	held    []xdp.Received // packets that were taken and have no buffer or no room yet
}

func (q *bufferQueue) at(i int) *buffer { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *bufferQueue) push() *buffer {
	if q.n == len(q.ring) {
		ring := make([]buffer, max(16, 2*q.n))
		for i := range q.n {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.n++
	return q.at(q.n - 1)
}

// pop gives the oldest one up. Its memory is the user's again.
func (q *bufferQueue) pop() {
	b := q.at(0)
	if b.flags&cq.FlagMultiRecv != 0 {
		q.multi--
	}
	clear(b.more)
	b.buf = nil
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
}

// remove gives up the one with that number.
func (q *bufferQueue) remove(i int) {
	for ; i > 0; i-- {
		*q.at(i), *q.at(i - 1) = *q.at(i - 1), *q.at(i)
	}
	q.pop()
}

// receivePosted moves datagrams into posted buffers.
func (e *Endpoint) receivePosted() (int, error) {
	q := &e.buffers
	waiting := len(q.held)
	if waiting == 0 {
		waiting = min(e.socket.Pending(len(e.packets)), len(e.packets))
		if waiting == 0 {
			return 0, nil
		}
		if q.n > 0 { // how many fit, nobody knows before; and packets are taken whole
			n := waiting
			if e.chains {
				n = max(n, xdp.MaxChain)
			}
			q.held = e.packets[:e.socket.Receive(e.packets[:n])]
		}
	}
	e.staged.room = e.freeRoom()
	done := 0
	for done < len(q.held) && q.n > 0 {
		parts := q.held[done : done+chain(q.held[done:])]
		var p span
		if e.parse(parts, &p) && !e.place(parts, &p) {
			break
		}
		e.drop(parts)
		done += len(parts)
	}
	q.held = q.held[done:]
	switch {
	case q.n == 0 && done < waiting:
		e.rxBlocked = true
		e.stats.NoBuffer++
	case len(q.held) > 0:
		e.rxBlocked = true
		e.stats.RxBlocked++
	}
	return done, e.commitStaged()
}

// place puts a payload into the oldest buffer. It reports false if there is no room to report that,
// and nothing has happened then.
func (e *Endpoint) place(parts []xdp.Received, p *span) bool {
	payload := e.whole(parts)[p.off : p.off+p.n]
	b := e.buffers.at(0)
	if b.flags&cq.FlagMultiRecv != 0 {
		return e.placeMulti(b, payload, p)
	}
	return e.placeSingle(b, payload, p)
}

// placeSingle ends a receive of one datagram.
func (e *Endpoint) placeSingle(b *buffer, payload []byte, p *span) bool {
	c, known := e.completion(b, payload, p)
	n := b.put(payload)
	switch {
	case n < len(payload):
		e.truncated(b, &c, n, len(payload)-n)
	case !known:
		e.stageUnknown(&c, b.flags)
	default:
		e.stage(&c, b.flags, true)
	}
	e.buffers.pop()
	return true
}

// completion is what a datagram in a buffer leaves.
func (e *Endpoint) completion(b *buffer, payload []byte, p *span) (c cq.Entry, known bool) {
	src, known := e.resolve(e.flow.Datagram.Src)
	return cq.Entry{Context: b.context, Flags: recvKind | p.flags, Len: uint64(len(payload)),
		Buf: b.base + shm.Ref(b.used), Data: p.data, Src: cq.From(src)}, known || !e.cfg.SourceErr
}

// truncated ends a receive whose buffer was too small.
func (e *Endpoint) truncated(b *buffer, c *cq.Entry, n, lost int) {
	_ = e.commitStaged() // order; what went wrong shows when the error is posted
	e.stats.Truncated++
	e.failure = cq.ErrorEntry{Context: c.Context, Flags: c.Flags, Len: uint64(n), Buf: c.Buf,
		Data: c.Data, Src: c.Src, OverrunBytes: uint64(lost), Err: cq.ETrunc,
		ProvErrno: int32(cq.ETrunc)}
	e.failBuffer(b.flags)
}

// failBuffer posts e.failure as the end of a receive with those flags.
func (e *Endpoint) failBuffer(op cq.Flags) {
	if e.rx.Fail(&e.failure, op) != nil {
		e.stats.Abandoned++
	}
}

// placeMulti puts a payload behind those that a multi-receive buffer holds, and releases the buffer
// when too little is left of it. It reports false if there is no room to report that.
func (e *Endpoint) placeMulti(b *buffer, payload []byte, p *span) bool {
	left := b.room - b.used
	if len(payload) > left && b.used > 0 {
		e.release(b)
		if e.buffers.n == 0 {
			return false
		}
		return e.placeNext(payload, p)
	}
	last := left-len(payload) < e.cfg.MinMultiRecv
	alone := e.cfg.ReleaseAlone
	together := last && !alone // one entry is both, and room for that was reserved
	if !together && e.staged.room <= 0 {
		return false
	}
	c, known := e.completion(b, payload, p)
	if together {
		c.Flags |= cq.FlagMultiRecv
	}
	n := copy(b.buf[b.used:], payload)
	switch {
	case n < len(payload):
		e.truncated(b, &c, n, len(payload)-n)
	case !known:
		e.stageUnknown(&c, b.flags)
	default:
		e.stage(&c, b.flags, together)
	}
	if !together && (n < len(payload) || !known) {
		e.staged.room = e.freeRoom()
	}
	b.used += n
	switch {
	case together:
		e.buffers.pop()
	case last:
		e.release(b)
	}
	return true
}

// placeNext goes on with the buffer behind one that was too full.
func (e *Endpoint) placeNext(payload []byte, p *span) bool {
	b := e.buffers.at(0)
	if b.flags&cq.FlagMultiRecv != 0 {
		return e.placeMulti(b, payload, p)
	}
	return e.placeSingle(b, payload, p)
}

// release gives the oldest buffer back by an entry of its own, for which room was reserved.
func (e *Endpoint) release(b *buffer) {
	e.stageEntry(&cq.Entry{Context: b.context, Flags: cq.FlagMultiRecv, Buf: b.base}, true)
	e.buffers.pop()
}

// Cancel ends the oldest posted buffer with this context: it completes with ECANCELED (fi_cancel).
// Datagrams that a multi-receive buffer holds have been reported, and the entry has FlagMultiRecv:
// the buffer is the user's again. [ErrNotFound] says that there is no such buffer, because a
// datagram got it, for one; sends cannot be cancelled.
func (e *Endpoint) Cancel(context uint64) error {
	e.lock()
	defer e.unlock()
	if err := e.usable(); err != nil {
		return err
	}
	for i := range e.buffers.n {
		if b := e.buffers.at(i); b.context == context {
			e.cancelled(b)
			e.buffers.remove(i)
			return nil
		}
	}
	return ErrNotFound
}

func (e *Endpoint) cancelled(b *buffer) {
	e.stats.Cancelled++
	e.failure = cq.ErrorEntry{Context: b.context, Flags: recvKind | b.flags&cq.FlagMultiRecv,
		Buf: b.base, Err: errCanceled, ProvErrno: int32(errCanceled)}
	e.failBuffer(b.flags)
}

// cancelBuffers ends all of them, oldest first, when the socket is closed.
func (e *Endpoint) cancelBuffers() {
	for ; e.buffers.n > 0; e.buffers.pop() {
		e.cancelled(e.buffers.at(0))
	}
	e.drop(e.buffers.held)
	e.buffers.held = nil
}

// staged are completions of posted buffers that are published together.
type staged struct {
	entries  [64]cq.Entry
	n        int
	credited int    // of them hold a credit
	room     int    // for others
	count    int    // messages that are not counted yet, with or without a completion
	bytes    uint64 // of these
}

// freeRoom is how many completions the queue takes that hold no credit. One that may be overrun
// takes them all, and loses them as it says.
func (e *Endpoint) freeRoom() int {
	if e.overruns {
		return math.MaxInt32
	}
	return e.cfg.Receive.Free()
}

// stage ends a message that went well. With a credit there is always room.
func (e *Endpoint) stage(c *cq.Entry, op cq.Flags, credited bool) {
	s := &e.staged
	s.count++
	s.bytes += c.Len
	if e.rx.Wants(op) || c.Flags&cq.FlagMultiRecv != 0 {
		e.stageEntry(c, credited)
	}
}

// stageEntry adds an entry that ends no message, or whose message is counted.
func (e *Endpoint) stageEntry(c *cq.Entry, credited bool) {
	s := &e.staged
	if s.n == len(s.entries) {
		_ = e.commitStaged() // an error is found again by what is posted next
	}
	s.entries[s.n] = *c
	s.n++
	if credited {
		s.credited++
	} else {
		s.room--
	}
}

// stageUnknown ends a message whose source is not known with an error entry, in its order.
func (e *Endpoint) stageUnknown(c *cq.Entry, op cq.Flags) {
	_ = e.commitStaged()
	e.stats.UnknownSource++
	e.stats.Received++
	if e.rx.CompleteUnknown(c, op, e.sender()) != nil {
		e.stats.Abandoned++
	}
}

// commitStaged publishes what was staged, with one store.
func (e *Endpoint) commitStaged() error {
	s := &e.staged
	err := e.rx.Count(cq.FlagRecv, s.count, s.bytes)
	e.stats.Received += uint64(s.count)
	s.count, s.bytes = 0, 0
	for at := 0; at < s.n; {
		a, b, e2 := e.rx.Slots(s.n-at, s.credited)
		s.credited = 0
		if e2 == nil {
			n := copy(a, s.entries[at:s.n])
			n += copy(b, s.entries[at+n:s.n])
			at += n
			e2 = e.cfg.Receive.Commit(n)
		}
		if e2 != nil {
			e.stats.Abandoned += uint64(s.n - at)
			if !errors.Is(e2, cq.ErrOverrun) { // the queue tells its reader
				err = e2
			}
			break
		}
	}
	s.n, s.credited = 0, 0
	return err
}
