package fabric

import (
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/posted"
	"github.com/shmring/shmring/shm"
)

// Msg is a send or a receive with all that one can have (struct fi_msg, struct fi_msg_tagged).
type Msg struct {
	Buf []byte   // the payload, or memory to receive into
	Iov [][]byte // and what follows it
	// Addr is whom it goes to, or whom it must come from: [Anybody], if that does not matter.
	Addr    cq.Addr
	Context uint64
	Flags   cq.Flags
	Data    uint64 // remote CQ data, with FlagRemoteCQData
	// Tag goes with FlagTagged. Bits of Ignore are those in which the tag of a message may differ
	// from a receive's.
	Tag, Ignore uint64
	// Message is which message a claim is for, if that was told of by Options.Buffered: the Context
	// of the entry that did. 0: the one that a peek with this Context claimed.
	Message uint64
	// Base is what completions call the first byte of a receive's memory: their Buf is this plus
	// the offset of the message.
	Base shm.Ref
	// Solicited has the entry that the peer gets make an event at channels which are armed for
	// those alone (IBV_SEND_SOLICITED).
	Solicited bool
}

// Anybody is the source of a receive that takes messages from whomever (FI_ADDR_UNSPEC).
const Anybody = cq.AddrNotAvail

// Recv posts memory to receive a message without a tag into (fi_recv), from whomever. It is the
// endpoint's until the completion, which carries the context. Messages fill buffers in the order in
// which they came, and those that came before go first. One that is longer than its buffer ends it
// with ETRUNC: an error entry with the bytes that fit in Len, and the number of those that did not
// in OverrunBytes. A receive stays posted when a peer dies: for replies, and how to learn of that,
// see Replies in the package's comment.
//
// Errors: cq.ErrFull, which is EAGAIN: the queue has no room for one more completion; cq.ENoCQ
// without Options.Receive and a counter; errors of the queue; os.ErrClosed.
func (e *Endpoint) Recv(buf []byte, context uint64) error {
	return e.RecvMsg(&Msg{Buf: buf, Addr: Anybody, Context: context})
}

// TRecv posts memory for a message with a tag (fi_trecv) that has all bits of this tag but those of
// ignore, from an address or from [Anybody]. Of several receives a message gets the oldest that it
// is for, and a receive the oldest message. Errors are those of Recv, and [ErrAddress].
func (e *Endpoint) TRecv(buf []byte, from cq.Addr, tag, ignore, context uint64) error {
	return e.RecvMsg(&Msg{Buf: buf, Addr: from, Flags: cq.FlagTagged, Tag: tag, Ignore: ignore,
		Context: context})
}

const (
	storeFlags = cq.FlagPeek | cq.FlagClaim | cq.FlagDiscard
	recvFlags  = cq.FlagTagged | cq.FlagCompletion | cq.FlagMore | cq.FlagMultiRecv | cq.FlagFrame |
		storeFlags
)

// RecvMsg is the receive that takes everything (fi_recvmsg, fi_trecvmsg). Flags beside FlagTagged,
// FlagCompletion and FlagMore, which has no effect:
//
//	FlagMultiRecv            Buf is for one message after the other
//	FlagPeek                 no memory: is there such a message? It stays
//	FlagPeek|FlagClaim       and is kept for who claims it
//	FlagPeek|FlagDiscard     and is dropped
//	FlagClaim                a receive of the message that was claimed with this Context, or that
//	                         Message names
//	FlagClaim|FlagDiscard    no memory: that message is dropped
//	FlagFrame                no memory: the completion lends the message, see Payload
//
// A peek completes at once: with length, tag, data and source of the message, or with ENOMSG. It
// examines first what has been sent. [ErrNotFound]: no message was claimed with this Context.
//
// A buffer for several messages stays in use until less than Options.MinMultiRecv is left of it, or
// too little for the next one. Each message has a completion, whose room in the queue is not
// reserved: messages wait for it, and while such a buffer is posted others are refused (cq.ErrFull)
// that would reserve all that there is. The release of the buffer is told as Options.ReleaseAlone
// says, and always has room. Iov is not for these, nor is a Buf that is too short to begin with
// ([ErrFlags]).
func (e *Endpoint) RecvMsg(m *Msg) error {
	e.bell.Lock()
	err := e.receive(m)
	e.bell.Unlock()
	return err
}

func (e *Endpoint) receive(m *Msg) error {
	key, err := e.allowedReceive(m)
	if err != nil {
		return err
	}
	if m.Flags&cq.FlagPeek != 0 {
		e.pollAll()
		if e.owes() { // what is in the store may be for receives
			return cq.ErrFull
		}
	}
	of := &e.stored[class(m.Flags)]
	if m.Flags&cq.FlagPeek == 0 && m.Flags&cq.FlagClaim != 0 {
		of, key = &e.claimed, claimKey(m)
		if of.Find(key) == nil {
			return ErrNotFound
		}
	}
	op := m.Flags
	if op&cq.FlagFrame != 0 { // it is found by its completion
		op |= cq.FlagCompletion
	}
	r, err := e.posted.Begin(op)
	if err != nil {
		return err
	}
	r.Key, r.Of.Context, r.Of.Base = key, m.Context, m.Base
	r.Of.Memory(m.Buf, m.Iov...)
	switch {
	case m.Flags&(cq.FlagPeek|cq.FlagDiscard) != 0:
		e.look(r, of, m)
	case of.Len() == 0 && e.link == nil: // nothing ends, so nobody is to be told
		e.posted.Add(r)
		return nil
	default:
		e.take(r, of)
	}
	if e.link != nil && e.link.is == linkDown {
		e.posted.CancelAll()
	}
	e.flush()
	return nil
}

// claimKey is that of a message that was claimed.
func claimKey(m *Msg) posted.Key {
	if m.Message != 0 {
		return posted.Key{From: buffered, Tag: m.Message}
	}
	return posted.Key{From: uint64(class(m.Flags)), Tag: m.Context}
}

// buffered stands in keys in the place of the class.
const buffered = 2

func class(f cq.Flags) int {
	if f&cq.FlagTagged != 0 {
		return 1
	}
	return 0
}

func (e *Endpoint) allowedReceive(m *Msg) (key posted.Key, err error) {
	key.From = posted.Anybody
	if m.Flags&cq.FlagTagged != 0 {
		key.Tag, key.Ignore = m.Tag, m.Ignore
	}
	multi, looks := m.Flags&cq.FlagMultiRecv != 0, m.Flags&storeFlags != 0
	switch {
	case e.closed:
		return key, errClosed
	case e.rx == nil, m.Flags&cq.FlagFrame != 0 && e.opt.Receive == nil:
		return key, cq.ENoCQ
	case m.Flags&^recvFlags != 0,
		m.Flags&cq.FlagFrame != 0 && (multi || m.Flags&(cq.FlagPeek|cq.FlagDiscard) != 0 ||
			len(m.Buf)+len(m.Iov) > 0),
		multi && (looks || len(m.Iov) > 0 || len(m.Buf) < e.opt.MinMultiRecv),
		m.Flags&storeFlags == cq.FlagDiscard, m.Flags&storeFlags == storeFlags:
		return key, ErrFlags
	case m.Addr == Anybody, m.Flags&(cq.FlagPeek|cq.FlagClaim) == cq.FlagClaim:
		return key, nil
	case uint64(m.Addr) >= uint64(len(e.byAddr)):
		return key, ErrAddress
	}
	key.From = e.byAddr[m.Addr].id
	return key, nil
}

// Cancel ends the oldest waiting receive with this context: it completes with ECANCELED
// (fi_cancel). Messages that a buffer for several holds are reported before, and the entry has
// FlagMultiRecv: the buffer is the user's again. [ErrNotFound]: there is no such receive, because a
// message has it, for one. Sends cannot be cancelled.
func (e *Endpoint) Cancel(context uint64) error {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	if !e.posted.Cancel(context) {
		return ErrNotFound
	}
	e.flush()
	return nil
}

type stored = posted.Index[arrival]

// take gives a receive the messages that are for it, and has it wait for more if it takes more.
func (e *Endpoint) take(r *posted.Node[posted.Receive], of *stored) {
	for over := false; !over; {
		var m *posted.Node[arrival]
		if !e.owes() || of == &e.claimed { // else they may be for earlier receives
			m = of.Find(r.Key)
		}
		if m == nil {
			e.posted.Add(r)
			break
		}
		s, ok := e.posted.PlaceIn(r, m.Of.n)
		over = r.Of.Over() // before the message ends, and the receive with it
		if ok {
			e.unstore(of, m, s)
		} else {
			e.posted.Release(r)
		}
	}
}

// look ends a receive that asks for a message and takes nothing of it.
func (e *Endpoint) look(r *posted.Node[posted.Receive], of *stored, m *Msg) {
	s, _ := e.posted.PlaceIn(r, 0)
	n := of.Find(r.Key)
	if n == nil {
		e.entry = cq.Entry{Flags: cq.FlagRecv | m.Flags&cq.FlagTagged, Tag: m.Tag}
		e.posted.Done(&s, &e.entry, cq.Errno(syscall.ENOMSG), nil)
		return
	}
	e.endReceive(&s, &n.Of, 0, 0)
	switch {
	case m.Flags&cq.FlagDiscard != 0:
		e.unstore(of, n, posted.Span{})
	case m.Flags&cq.FlagClaim != 0:
		of.Remove(n)
		n.Key = claimKey(m)
		e.claimed.Add(n)
	}
}

// unstore takes a message out of the store to its receive, or to nobody.
func (e *Endpoint) unstore(of *stored, m *posted.Node[arrival], s posted.Span) {
	of.Remove(m)
	p := m.Of.peer
	if p.stored--; p.stored == 0 {
		p.forget()
	}
	e.bring(&m.Of, &s)
	m.Of.forget()
	e.makeRoom()
	e.stored[0].Free(m)
}

// arrive gives a message to the oldest receive that it is for, or to the store. The bytes that it
// has in a slot are there until the call returns.
func (e *Endpoint) arrive(m *arrival) {
	key := posted.Key{From: m.peer.id, Tag: m.tag}
	if !e.owes() {
		if s, ok := e.posted.Place(m.flags, key, m.n); ok {
			e.bring(m, &s)
			return
		}
	}
	x := &e.stored[class(m.flags)]
	n := e.stored[0].New() // wherever it is in the end
	n.Key = key
	e.keep(&n.Of, m)
	x.Add(n)
	m.peer.stored++
	e.stats.Stored++
	e.tell()
}

// drop takes those messages out of the store whose bytes are with a sender that has gone.
func (e *Endpoint) drop(from *inLane) {
	for _, of := range []*stored{&e.stored[0], &e.stored[1], &e.claimed} {
		for m := of.First(); m != nil; {
			next := m.Next()
			if m.Of.held && m.Of.from == from {
				of.Remove(m)
				m.Of.peer.stored--
				m.Of.forget()
				e.stored[0].Free(m)
			}
			m = next
		}
	}
}

// tell reports messages without a tag and a receive, as far as there is room. They wait for their
// claims then.
func (e *Endpoint) tell() (work int) {
	of := &e.stored[0]
	for e.opt.Buffered > 0 && of.Len() > 0 && !e.owes() {
		r, err := e.posted.Begin(cq.FlagCompletion)
		if err != nil {
			break
		}
		e.told++
		r.Of.Context = e.told
		r.Of.Memory(nil)
		s, _ := e.posted.PlaceIn(r, 0)
		m := of.First()
		of.Remove(m)
		m.Key = posted.Key{From: buffered, Tag: e.told}
		e.claimed.Add(m)
		flags := m.Of.flags
		if len(m.Of.here) < m.Of.n || m.Of.n > e.opt.Buffered {
			m.Of.flags |= cq.FlagMore
		}
		e.endReceive(&s, &m.Of, 0, 0)
		m.Of.flags = flags | cq.FlagClaim
		work++
	}
	return work
}

// Buffered returns the bytes that are here of a message that was told of by Options.Buffered, at
// most as many as that. They stay until the message is claimed or dropped, which is to be done with
// each. message is the Context of the entry. [ErrNotFound]: there is no such message, or its sender
// has gone with the rest of it.
func (e *Endpoint) Buffered(message uint64) ([]byte, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	m := e.claimed.Find(posted.Key{From: buffered, Tag: message})
	if m == nil {
		return nil, ErrNotFound
	}
	return m.Of.here[:min(len(m.Of.here), e.opt.Buffered)], nil
}

// settle reports messages that there was no room to report. Matching goes on where it stopped then:
// what came meanwhile is in the store, whoever it is for.
func (e *Endpoint) settle() (work int) {
	if !e.posted.Owes() {
		return e.tell()
	}
	work = e.posted.Settle()
	e.rematch()
	return work
}

// rematch gives messages in the store to receives that they are for.
func (e *Endpoint) rematch() {
	for i := range e.stored {
		for m := e.stored[i].First(); m != nil && !e.owes(); {
			next := m.Next()
			if s, ok := e.posted.Place(m.Of.flags, m.Key, m.Of.n); ok {
				e.unstore(&e.stored[i], m, s)
			}
			m = next
		}
	}
}

// endReceive reports that a message has ended in its part of a receive: all of it came that there
// is room for, or n bytes before it failed.
func (e *Endpoint) endReceive(s *posted.Span, m *arrival, num cq.Errno, n int) {
	if num == 0 {
		n = m.n
	}
	if m.missed > 0 {
		e.missed(m)
	}
	x := e.posted.Entry() // field by field: a literal is made elsewhere, and copied
	x.Flags, x.Len, x.Data, x.Tag = cq.FlagRecv|m.flags, uint64(n), m.data, m.tag
	x.Src, x.Meta = cq.From(m.peer.index), m.meta
	if s.Lends() {
		e.endLent(s, x, num)
	}
	e.posted.Done(s, x, num, nil)
}
