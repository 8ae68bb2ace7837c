package fabric

import (
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/posted"
	"github.com/shmring/shmring/shm"
)

// Alloc takes n bytes of Options.Pool, which peers can read in place. A send of them, or of a part,
// goes by reference if it is longer than MaxInline, and takes no copy here: the receiver copies
// once, from this memory to its buffer, or its user reads it here, see Payload. As with every send
// the memory is not to be changed before the completion, which comes when the receiver has done
// with it. What it holds is not cleared. It is gone after Close.
//
// Errors: cq.ErrFull, which is EAGAIN: there is no piece as long as that now; [ErrTooLong]: there
// never is; os.ErrClosed.
func (e *Endpoint) Alloc(n int) ([]byte, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	if most := len(e.pool.FabricPool) - e.pool.chunks*chunkBytes; n < 1 || n > most {
		return nil, e.outOf("allocate", "Options.Pool", most, n)
	}
	x := e.pool.alloc(n)
	if x == nil {
		e.poll()
		x = e.pool.alloc(n)
	}
	if x == nil {
		return nil, cq.ErrFull
	}
	mem, _ := e.pool.At(uint64(x.at), n)
	return mem, nil
}

// outOf says which option bounds what was asked for.
func (e *Endpoint) outOf(op, option string, most, n int) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: e.name, Field: "length", Got: n,
		Want: fmt.Sprintf("1 or more, and no more than the %d of %s", most, option), Err: ErrTooLong}
}

// Free gives memory of Alloc up, which may begin anywhere in it, and is not to be touched then. It
// may be called while sends of it are under way: it is free when they have ended. Errors:
// cq.ErrInvalid: it is no such memory, or was given up before; os.ErrClosed.
func (e *Endpoint) Free(b []byte) error {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	x, _ := e.pool.holds(b, &sendOp{})
	if x == nil {
		return fault("free", e.name, cq.ErrInvalid)
	}
	x.held = false
	e.pool.settle(x)
	return nil
}

// loan is a message that the user has in hand.
type loan struct {
	mem  []byte
	from *inLane // whose outbox it lies in; nil: in private memory
	op   uint16  // of the sender
}

// lend makes a loan of private memory. It is handed out when the receive ends.
func (e *Endpoint) lend(s *posted.Span, mem []byte) *loan {
	e.lent++
	x := &loan{mem: mem}
	e.loans[e.lent] = x
	s.Lend(e.lent, mem)
	return x
}

// endLent ends a receive without memory: with a loan, or with none.
func (e *Endpoint) endLent(s *posted.Span, x *cq.Entry, num cq.Errno) {
	if num == 0 {
		x.Flags |= cq.FlagFrame
		return
	}
	delete(e.loans, s.Loan())
	s.Lend(0, nil)
	x.Len = 0
}

// lend brings a message that lies in its sender's pool: its bytes are copied to their buffer, or
// lent as they are.
func (l *inLane) lend(m *arrival, s *posted.Span) {
	e := l.p.e
	if s.Lends() {
		x := e.lend(s, m.lies)
		x.from, x.op = l, m.op
		l.inBox++
		crash.At(crash.FabricLent)
	} else {
		s.Put(0, m.lies)
		l.returns(m.op)
	}
	e.endReceive(s, m, 0, m.n)
}

// returns tells the sender that nobody reads a message of its pool any more.
func (l *inLane) returns(op uint16) {
	crash.At(crash.FabricReturned)
	l.owed = append(l.owed, kind.FabricClear(op, l.pulls[op].generation, 0))
	delete(l.pulls, op)
	l.touch()
}

// unmap gives the outbox up, at the latest when its last loan has been given back.
func (l *inLane) unmap() {
	l.silent()
	l.dropBox()
}

// dropBox closes the outbox when neither the lane nor a loan is in it.
func (l *inLane) dropBox() {
	if l.inBox--; l.inBox == 0 {
		_ = l.box.Close()
	}
}

// Payload returns the bytes of a message that a completion lends: that of a receive with FlagFrame,
// which the completion has too. They are not to be touched after Release. The bytes of a message
// that was sent by reference are in memory of its sender, cannot be written here, and stay though
// that ends; it is the sender's to leave them as they are. Others were copied to private memory.
// [ErrNotFound]: the loan was given back.
func (e *Endpoint) Payload(c *cq.Entry) ([]byte, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	x := e.loans[c.Buf]
	if x == nil || c.Flags&cq.FlagFrame == 0 {
		return nil, ErrNotFound
	}
	return x.mem, nil
}

// Release gives back what receive completions lend, and tells their senders. Entries without
// FlagFrame are passed over. It may be called after Close. [ErrNotFound]: one was given back
// before; all others were given back.
func (e *Endpoint) Release(cs ...cq.Entry) (err error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	for i := range cs {
		if cs[i].Flags&cq.FlagFrame == 0 {
			continue
		}
		x := e.loans[cs[i].Buf]
		if x == nil {
			err = ErrNotFound
			continue
		}
		delete(e.loans, cs[i].Buf)
		e.endLoan(x)
	}
	if !e.closed {
		e.flush()
	}
	return err
}

func (e *Endpoint) endLoan(x *loan) {
	l := x.from
	if l == nil {
		return
	}
	if l.pulls[x.op] != nil { // else the sender has gone, or takes nothing back
		l.returns(x.op)
	}
	l.dropBox()
}

// returnLoans tells senders that nothing is read after a close, as far as there is room.
func (e *Endpoint) returnLoans() {
	for _, x := range e.loans {
		if l := x.from; l != nil && l.pulls[x.op] != nil {
			l.returns(x.op)
		}
	}
}
