package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/posted"
)

// Recv posts memory to receive a message into (fi_recv), from whomever. It is the endpoint's until
// the completion, which carries the context. Messages fill buffers in the order in which they came,
// and those that came before go first. One that is longer than its buffer ends it with ETRUNC: an
// error entry with the bytes that fit in Len, and the number of those that did not in OverrunBytes.
//
// Errors: cq.ErrFull, which is EAGAIN: the queue has no room for one more completion; cq.ENoCQ
// without Options.Receive and a counter; errors of the queue; os.ErrClosed.
func (e *Endpoint) Recv(buf []byte, context uint64) error {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	if e.rx == nil {
		return cq.ENoCQ
	}
	r, err := e.posted.Begin(0)
	if err != nil {
		return err
	}
	r.Key = posted.Key{From: posted.Anybody}
	r.Of.Context = context
	r.Of.Memory(buf)
	if e.take(r) {
		e.makeRoom()
		e.flush()
	}
	return nil
}

// take gives a receive the messages in the store that are for it, and has it wait for more if it
// takes more. It reports whether there were any.
func (e *Endpoint) take(r *posted.Node[posted.Receive]) (any bool) {
	for over := false; !over; {
		var m *posted.Node[arrival]
		if !e.posted.Owes() { // else those of the store may be for earlier receives
			m = e.stored.Find(r.Key)
		}
		if m == nil {
			e.posted.Add(r)
			break
		}
		s, ok := e.posted.PlaceIn(r, m.Of.n)
		over = r.Of.Over() // before the message ends, and the receive with it
		if ok {
			e.unstore(m, s)
			any = true
		} else {
			e.posted.Release(r)
		}
	}
	return any
}

// unstore takes a message out of the store to its receive.
func (e *Endpoint) unstore(m *posted.Node[arrival], s posted.Span) {
	e.stored.Remove(m)
	p := m.Of.peer
	if p.stored--; p.stored == 0 {
		p.forget()
	}
	if m.Of.from == nil {
		e.self -= charge(m.Of.n)
	}
	e.bring(&m.Of, s)
	m.Of.forget()
	e.stored.Free(m)
}

// arrive gives a message to the oldest receive that it is for, or to the store. The bytes that it
// has in a slot are there until the call returns.
func (e *Endpoint) arrive(m *arrival) {
	key := posted.Key{From: m.peer.id}
	if !e.posted.Owes() {
		if s, ok := e.posted.Place(0, key, m.n); ok {
			e.bring(m, s)
			return
		}
	}
	e.number++
	n := e.stored.New()
	n.Key, n.Number = key, e.number
	n.Of.keep(m)
	e.stored.Add(n)
	m.peer.stored++
	e.stats.Stored++
	if m.from == nil {
		e.self += charge(m.n)
	}
}

// settle reports messages that there was no room to report. Matching goes on where it stopped then:
// what came meanwhile is in the store, whoever it is for.
func (e *Endpoint) settle() (work int) {
	if !e.posted.Owes() {
		return 0
	}
	work = e.posted.Settle()
	for m := e.stored.First(); m != nil && !e.posted.Owes(); {
		next := m.Next()
		if s, ok := e.posted.Place(0, m.Key, m.Of.n); ok {
			e.unstore(m, s)
		}
		m = next
	}
	return work
}

// endReceive reports that a message has ended in its part of a receive: n bytes of it came, or so
// many before it failed.
func (e *Endpoint) endReceive(s *posted.Span, m *arrival, num cq.Errno, n int) {
	e.entry = cq.Entry{Flags: recvKind, Len: uint64(n), Src: cq.From(m.peer.index)}
	e.posted.Done(s, &e.entry, num, nil)
}
