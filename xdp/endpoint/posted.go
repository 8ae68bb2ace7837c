package endpoint

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/posted"
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
	r, err := e.posted.Begin(m.Flags)
	if err != nil {
		return err
	}
	r.From, r.Of.Context, r.Of.Base = posted.Anybody, m.Context, m.Base
	r.Of.Memory(m.Buf, m.Iov...)
	e.posted.Add(r)
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

// receivePosted moves datagrams into posted buffers. One that finds a buffer, and no room to report
// that, is the last until there is.
func (e *Endpoint) receivePosted() (int, error) {
	p := &e.posted
	done := p.Settle()
	waiting := len(e.held)
	if waiting == 0 {
		waiting = min(e.socket.Pending(len(e.packets)), len(e.packets))
		if waiting > 0 && p.Len() > 0 && !p.Owes() { // how many fit, nobody knows before
			n := waiting
			if e.chains {
				n = max(n, xdp.MaxChain) // packets are taken whole
			}
			e.held = e.packets[:e.socket.Receive(e.packets[:n])]
		}
	}
	for len(e.held) > 0 && p.Len() > 0 && !p.Owes() {
		parts := e.held[:chain(e.held)]
		if e.parse(parts) && !e.place(parts) {
			break
		}
		e.drop(parts)
		done += len(parts)
		waiting -= len(parts)
		e.held = e.held[len(parts):]
	}
	switch {
	case p.Owes():
		e.rxBlocked = true
		e.stats.RxBlocked++
	case p.Len() == 0 && waiting > 0:
		e.rxBlocked = true
		e.stats.NoBuffer++
	}
	return done, p.Commit()
}

// place puts a payload into the oldest buffer. It reports false if there is none.
func (e *Endpoint) place(parts []xdp.Received) bool {
	p := &e.span
	to, ok := e.posted.Place(0, posted.Key{}, p.n)
	if !ok {
		return false
	}
	to.Put(0, e.whole(parts)[p.off:p.off+p.n])
	c := cq.Entry{Flags: e.entry.Flags&^cq.FlagFrame | p.flags, Len: uint64(p.n), Data: p.data,
		Src: e.entry.Src}
	var from []byte
	if !e.source.known && e.cfg.SourceErr {
		from = e.sender()
	}
	e.posted.Done(&to, &c, 0, from)
	return true
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
	if !e.posted.Cancel(context) {
		return ErrNotFound
	}
	return nil
}

// cancelBuffers ends all of them, oldest first, when the socket is closed.
func (e *Endpoint) cancelBuffers() {
	if !e.cfg.Posted {
		return
	}
	e.posted.Quit()
	e.drop(e.held)
	e.held = nil
}
