// Package posted keeps the receives of an endpoint: which message gets which of them and where in
// its memory, and what completes when (fi_recv, fi_trecv, FI_MULTI_RECV, fi_cancel). It is under
// the lock of its endpoint.
package posted

import (
	"bytes"
	"errors"
	"math"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/shm"
)

// Options say where receives report.
type Options struct {
	Binding  *feed.Binding
	Queue    *cq.Writer // of the binding, or nil
	Most     int        // receives at once; 0: any number
	MinMulti int        // bytes that a multi-receive buffer must have left to stay in use
	Alone    bool       // its release is told by an entry of its own
	Count    Counts
}

// Counts are where it is counted what became of receives.
type Counts struct {
	Received, Truncated, Cancelled, Unknown *uint64
	// Abandoned is of completions that found no room, or a closed queue.
	Abandoned *uint64
}

// Receive is memory that was posted.
type Receive struct {
	Context uint64
	Flags   cq.Flags // of the call; with FlagTagged it takes tagged messages, else the others
	Base    shm.Ref
	buf     []byte
	more    [][]byte // pieces behind buf
	room    int      // bytes of all of them
	used    int      // of a multi-receive buffer
	spans   int      // messages that have a part of it, and have not been reported
	over    bool     // it takes no more
	why     cq.Errno // of its end, if that is a failure
}

// Memory gives a receive that is not in use its memory.
func (r *Receive) Memory(buf []byte, more ...[]byte) {
	r.buf, r.more, r.room = buf, r.more[:0], len(buf)
	for _, p := range more {
		r.more = append(r.more, p)
		r.room += len(p)
	}
	r.used, r.over, r.why = 0, false, 0
}

func (r *Receive) multi() bool { return r.Flags&cq.FlagMultiRecv != 0 }

// Span is the part of a receive that a message has. The zero value is that of a message that
// nobody receives.
type Span struct {
	of  *Node[Receive]
	at  int // where it begins
	Len int // bytes that fit
	n   int // bytes of the message
}

// Put copies bytes of the message to where they belong, as far as they fit.
func (s *Span) Put(at int, b []byte) {
	if b = b[:max(0, min(len(b), s.Len-at))]; len(b) == 0 {
		return
	}
	r := &s.of.Of
	at += s.at
	if at < len(r.buf) {
		n := copy(r.buf[at:], b)
		if n == len(b) {
			return
		}
		b, at = b[n:], at+n
	}
	at -= len(r.buf)
	for _, p := range r.more {
		if len(b) == 0 {
			return
		}
		if at < len(p) {
			n := copy(p[at:], b)
			b, at = b[n:], at+n
		}
		at -= len(p)
	}
}

// Memory returns where the bytes go that fit, or nil if that is not one piece.
func (s *Span) Memory() []byte {
	if s.of == nil || s.at+s.Len > len(s.of.Of.buf) {
		return nil
	}
	return s.of.Of.buf[s.at : s.at+s.Len]
}

// Lends reports whether the receive has no memory, and is for a loan of the message.
func (s *Span) Lends() bool { return s.of != nil && s.of.Of.Flags&cq.FlagFrame != 0 }

// Lend says what the completion calls the loan, and where bytes of the message go that are put.
func (s *Span) Lend(as shm.Ref, mem []byte) { s.of.Of.Base, s.of.Of.buf = as, mem }

// Decline has nothing of the message fit, which is not lent.
func (s *Span) Decline() { s.of.Of.Flags, s.Len = s.of.Of.Flags&^cq.FlagFrame, 0 }

// Loan returns what the completion calls the loan.
func (s *Span) Loan() shm.Ref { return s.of.Of.Base }

// Receives are those of one endpoint.
type Receives struct {
	staged staged // first: its entries begin lines, which is a tenth of a message's time
	Options
	of       [2]Index[Receive] // of messages without and with a tag
	number   uint64
	n, multi int // begun and not ended; of them, for several messages
	owed     []owed
	unbound  bool // nothing is refused for want of room
	failure  cq.ErrorEntry
}

// owed is a message that has its place, and no room to be reported.
type owed struct {
	Span
	entry cq.Entry
	err   cq.Errno
	raw   []byte
}

// New returns an endpoint's.
func New(o Options) Receives {
	return Receives{Options: o, unbound: o.Queue == nil || !o.Binding.Reserves()}
}

func class(f cq.Flags) int { return int(f&cq.FlagTagged) / int(cq.FlagTagged) }

// Len returns how many receives wait for messages.
func (p *Receives) Len() int { return p.of[0].Len() + p.of[1].Len() }

// Begin begins a receive, and reserves room for what it will report. Its Context, Flags, Base, Key
// and memory are the caller's to set. ErrFull: there is no room.
func (p *Receives) Begin(op cq.Flags) (*Node[Receive], error) {
	multi := op&cq.FlagMultiRecv != 0
	if p.staged.credited < p.staged.n {
		_ = p.Commit() // some count on the room that this may take
	}
	if p.n == p.Most && p.Most > 0 || (multi || p.multi > 0) && p.freeRoom() < 2 {
		return nil, cq.ErrFull // messages in a multi-receive buffer need a place that is nobody's
	}
	if err := p.Binding.Begin(op); err != nil {
		return nil, err
	}
	p.n++
	if multi {
		p.multi++
	}
	r := p.of[0].New()
	r.Of.Flags = op
	return r, nil
}

// end gives a receive up that was reported. Its memory is the user's again.
func (p *Receives) end(r *Node[Receive]) {
	p.n--
	if r.Of.multi() {
		p.multi--
	}
	clear(r.Of.more)
	r.Of.buf = nil
	p.of[0].Free(r)
}

// Add has a receive wait for messages.
func (p *Receives) Add(r *Node[Receive]) {
	p.number++
	r.Number = p.number
	p.of[class(r.Of.Flags)].Add(r)
}

// Place finds the receive that a message of n bytes gets. kind tells with FlagTagged which.
func (p *Receives) Place(kind cq.Flags, k Key, n int) (s Span, ok bool) {
	x := &p.of[class(kind)]
	for {
		r := x.Find(k)
		if r == nil {
			return s, false
		}
		s, ok = p.PlaceIn(r, n)
		if r.Of.over {
			x.Remove(r)
		}
		if ok {
			return s, true
		}
		p.Release(r)
	}
}

// PlaceIn gives a message of n bytes a part of a receive. ok is false if that is for several
// messages, and too little is left of it. After either it may be Over.
func (p *Receives) PlaceIn(of *Node[Receive], n int) (s Span, ok bool) {
	r := &of.Of
	left := r.room - r.used
	if n > left && r.used > 0 {
		r.over = true
		return s, false
	}
	if r.Flags&cq.FlagFrame != 0 {
		left = n
	}
	s = Span{of: of, at: r.used, Len: min(n, left), n: n}
	r.spans++
	r.used += s.Len
	r.over = !r.multi() || left-s.Len < p.MinMulti
	return s, true
}

// Over reports whether a receive takes no more messages.
func (r *Receive) Over() bool { return r.over }

// Entry returns where the next entry is staged. One that its caller fills there, for Done, is not
// copied.
func (p *Receives) Entry() *cq.Entry { return &p.staged.entries[p.staged.n] }

// Done reports that a message has ended in its place. e says what and who it was: Flags, Data, Tag,
// Src, Meta, and in Len how much came. With err the message came only in part; raw is the address
// that it came from if nobody knows that.
func (p *Receives) Done(s *Span, e *cq.Entry, err cq.Errno, raw []byte) {
	if s.of == nil {
		return
	}
	r := &s.of.Of
	e.Context, e.Buf = r.Context, r.Base+shm.Ref(s.at)
	if len(p.owed) > 0 || !p.report(s, e, err, raw) {
		p.owed = append(p.owed, owed{*s, *e, err, bytes.Clone(raw)})
	}
}

// Settle reports what there was no room for, in its order. It returns how much.
func (p *Receives) Settle() (done int) {
	for done < len(p.owed) {
		o := &p.owed[done]
		if !p.report(&o.Span, &o.entry, o.err, o.raw) {
			break
		}
		done++
	}
	p.owed = append(p.owed[:0], p.owed[done:]...)
	return done
}

// Owes reports whether there is something that there was no room for. It is bounded by whoever
// takes messages.
func (p *Receives) Owes() bool { return len(p.owed) > 0 }

// report does what Done says, or reports false if there is no room, and nothing has happened then.
func (p *Receives) report(s *Span, e *cq.Entry, err cq.Errno, raw []byte) bool {
	r := &s.of.Of
	last := r.over && r.spans == 1
	ends := last && (!r.multi() || !p.Alone && r.why == 0)
	if !ends && p.Binding.Wants(r.Flags) && p.room() <= 0 {
		return false
	}
	if ends && r.multi() {
		e.Flags |= cq.FlagMultiRecv
	}
	switch {
	case err != 0:
		p.fail(e, r.Flags, err, 0)
	case s.Len < s.n:
		*p.Count.Truncated++
		e.Len = uint64(s.Len)
		p.fail(e, r.Flags, cq.ETrunc, s.n-s.Len)
	case raw != nil:
		p.unknown(e, r.Flags, raw)
	default:
		p.stage(e, r.Flags, ends)
	}
	r.spans--
	if ends {
		p.end(s.of)
	} else {
		p.Release(s.of)
	}
	return true
}

// Release ends a receive that is over and holds no message. There is room to tell that.
func (p *Receives) Release(of *Node[Receive]) {
	r := &of.Of
	if !r.over || r.spans > 0 {
		return
	}
	if r.why != 0 {
		p.fail(&cq.Entry{Context: r.Context, Buf: r.Base, Tag: of.Tag,
			Flags: recvKind(r.Flags) | r.Flags&cq.FlagMultiRecv}, r.Flags, r.why, 0)
	} else if p.Queue != nil {
		p.stageEntry(&cq.Entry{Context: r.Context, Flags: cq.FlagMultiRecv, Buf: r.Base}, true)
	}
	p.end(of)
}

func recvKind(op cq.Flags) cq.Flags {
	if op&cq.FlagTagged != 0 {
		return cq.FlagRecv | cq.FlagTagged
	}
	return cq.FlagRecv | cq.FlagMsg
}

// Cancel ends the oldest waiting receive with this context. It reports whether there was one. The
// error entry comes after what is reported of messages that the receive holds.
func (p *Receives) Cancel(context uint64) bool {
	var found *Node[Receive]
	for i := range p.of {
		r := p.of[i].First()
		for r != nil && r.Of.Context != context {
			r = r.Next()
		}
		if r != nil && (found == nil || r.Number < found.Number) {
			found = r
		}
	}
	if found != nil {
		p.cancel(found)
	}
	return found != nil
}

// CancelAll ends all that wait, oldest first.
func (p *Receives) CancelAll() {
	for p.Len() > 0 {
		a, b := p.of[0].First(), p.of[1].First()
		if a == nil || b != nil && b.Number < a.Number {
			a = b
		}
		p.cancel(a)
	}
}

// Quit ends all that there is. A message that was owed, and of which there is no room to tell
// still, is told of by nobody.
func (p *Receives) Quit() {
	for i := range p.owed {
		o := &p.owed[i]
		if !p.report(&o.Span, &o.entry, o.err, o.raw) {
			*p.Count.Abandoned++
			o.of.Of.spans--
			p.Release(o.of)
		}
	}
	p.owed = nil
	p.CancelAll()
	_ = p.Commit()
}

func (p *Receives) cancel(r *Node[Receive]) {
	*p.Count.Cancelled++
	p.of[class(r.Of.Flags)].Remove(r)
	r.Of.over, r.Of.why = true, cq.Errno(syscall.ECANCELED)
	p.Release(r)
}

// staged are completions that are published together.
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
func (p *Receives) freeRoom() int {
	if p.unbound {
		return math.MaxInt32
	}
	return p.Queue.Free()
}

func (p *Receives) room() int {
	if p.staged.n == p.staged.credited { // what holds a credit takes none of it
		p.staged.room = p.freeRoom()
	}
	return p.staged.room
}

// stage ends a message that went well. With a credit there is always room.
func (p *Receives) stage(e *cq.Entry, op cq.Flags, credited bool) {
	p.staged.count++
	p.staged.bytes += e.Len
	if p.Binding.Wants(op) || e.Flags&cq.FlagMultiRecv != 0 && p.Queue != nil {
		p.stageEntry(e, credited)
	}
}

// stageEntry adds an entry that ends no message, or whose message is counted.
func (p *Receives) stageEntry(e *cq.Entry, credited bool) {
	s := &p.staged
	if at := p.Entry(); at != e {
		*at = *e
	}
	s.n++
	if credited {
		s.credited++
	} else {
		s.room--
	}
	if s.n == len(s.entries) {
		_ = p.Commit() // an error is found again by what is posted next
	}
}

// unknown ends a message whose source is not known with an error entry, in its order.
func (p *Receives) unknown(e *cq.Entry, op cq.Flags, raw []byte) {
	_ = p.Commit()
	*p.Count.Unknown++
	*p.Count.Received++
	if p.Binding.CompleteUnknown(e, op, raw) != nil {
		*p.Count.Abandoned++
	}
}

// fail ends a message or a receive with an error entry, in its order.
func (p *Receives) fail(e *cq.Entry, op cq.Flags, err cq.Errno, lost int) {
	_ = p.Commit() // what went wrong shows when the error is posted
	p.failure = cq.ErrorEntry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf,
		Data: e.Data, Tag: e.Tag, Src: e.Src, OverrunBytes: uint64(lost), Err: err,
		ProvErrno: int32(err)}
	if p.Binding.Fail(&p.failure, op) != nil {
		*p.Count.Abandoned++
	}
}

// Commit publishes what was reported, with one store. It is called before the endpoint's call
// returns.
func (p *Receives) Commit() error {
	if p.staged.count == 0 && p.staged.n == 0 {
		return nil
	}
	return p.commit()
}

func (p *Receives) commit() error {
	s := &p.staged
	err := p.Binding.Count(cq.FlagRecv, s.count, s.bytes)
	*p.Count.Received += uint64(s.count)
	s.count, s.bytes = 0, 0
	for at := 0; at < s.n; {
		n, failed := p.publish(s.entries[at:s.n], s.credited)
		if s.credited = 0; failed != nil {
			*p.Count.Abandoned += uint64(s.n - at)
			if !errors.Is(failed, cq.ErrOverrun) { // the queue tells its reader
				err = failed
			}
			break
		}
		at += n
	}
	s.n, s.credited = 0, 0
	return err
}

// publish publishes some of the entries. So many as credited of them hold a credit.
func (p *Receives) publish(entries []cq.Entry, credited int) (n int, err error) {
	if len(entries) == 1 {
		return 1, p.Binding.Post(&entries[0], credited)
	}
	a, b, err := p.Binding.Slots(len(entries), credited)
	if err != nil {
		return 0, err
	}
	n = copy(a, entries)
	n += copy(b, entries[n:])
	return n, p.Queue.Commit(n)
}
