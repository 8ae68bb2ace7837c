package cq

import (
	"errors"
	"slices"

	"github.com/shmring/shmring/internal/kind"
)

// BindingOptions say how an endpoint is bound to what it reports to (fi_ep_bind).
type BindingOptions struct {
	// Queue takes the completions, through this writer's lane. Without one only counters count.
	Queue *Writer
	// Flags are FlagTransmit, FlagRecv or both: which side of the endpoint is bound. With
	// FlagSelectiveCompletion beside them, only operations complete that ask for it.
	Flags Flags
	// Counters count operations that end.
	Counters []CounterBinding
	// Addresses is where sources are looked up, as Source says.
	Addresses *AddressVector
	Source    SourceMode
}

// CounterBinding is a counter with the kinds of operations that it counts: any of FlagSend,
// FlagRecv, FlagRead, FlagWrite, FlagRemoteRead and FlagRemoteWrite. A BytesCounter grows by the
// Len of the entry that ends an operation, whether that is posted or not.
type CounterBinding struct {
	Counter *Counter
	Flags   Flags
}

const (
	transmitKinds = FlagSend | FlagRead | FlagWrite
	receiveKinds  = FlagRecv | FlagRemoteRead | FlagRemoteWrite
	countedKinds  = transmitKinds | receiveKinds
	bindingFlags  = FlagTransmit | FlagRecv | FlagSelectiveCompletion

	// askingFlags ask for a completion: directly, or for one of a level. (libfabric's own helper
	// leaves the last two out; whoever names a level wants to know that it was reached.)
	askingFlags = FlagCompletion | FlagInjectComplete | FlagTransmitComplete | FlagDeliveryComplete |
		FlagCommitComplete | FlagMatchComplete
)

// Binding decides what an endpoint's operations leave in a completion queue and in counters. It
// belongs to the goroutine that its queue's writer belongs to.
//
//	operation                                   succeeds             fails
//	fi_inject and the like (FlagInjectCall)     nothing              error entry
//	any other, ordinary binding                 completion           error entry
//	selective, asks (FlagCompletion, a level)   completion           error entry
//	selective, does not ask                     nothing              error entry
//	last of a multi-receive buffer              completion           error entry
//
// Counters count each of them. To be sure that a completion finds room, the operation begins with
// Begin, which reserves it, and ends with one of Complete, CompleteFrom, Fail and Drop. In a queue
// with the policy OverrunQueue nothing is reserved or refused: there the application sees to it
// that the queue is large enough (FI_RM_DISABLED).
type Binding struct {
	opt       BindingOptions
	selective bool
	reserving bool // the queue refuses what it has no room for
	credits   int  // of Queue, reserved by operations that have not ended
	closed    bool
}

// NewBinding binds. ErrInvalid says which of the options makes no sense: FlagSelectiveCompletion
// must stand beside FlagTransmit or FlagRecv. The writer, its queue if that is this process's, the
// counters and the address vector cannot be closed before the binding is (EBUSY).
func NewBinding(o BindingOptions) (*Binding, error) {
	bad := func(field string, got, want any) (*Binding, error) {
		return nil, kind.Refuse("bind", "", field, got, want, ErrInvalid)
	}
	if o.Flags&^bindingFlags != 0 || o.Flags&(FlagTransmit|FlagRecv) == 0 {
		return bad("Flags", o.Flags, "FlagTransmit, FlagRecv or both, with or without "+
			"FlagSelectiveCompletion")
	}
	if o.Source > SourceErr {
		return bad("Source", uint32(o.Source), "SourceNone, SourceAddr or SourceErr")
	}
	for _, c := range o.Counters {
		if c.Counter == nil || c.Flags == 0 || c.Flags&^countedKinds != 0 {
			return bad("Counters", c.Flags, "a counter, and what it counts")
		}
	}
	if o.Queue == nil && len(o.Counters) == 0 {
		return bad("Queue", nil, "a queue or a counter")
	}
	o.Counters = slices.Clone(o.Counters)
	b := &Binding{opt: o, selective: o.Flags&FlagSelectiveCompletion != 0,
		reserving: o.Queue != nil && o.Queue.policy == BackPressure}
	for i, h := range b.held() {
		if err := h.bind(); err != nil {
			for _, h := range b.held()[:i] {
				h.unbind()
			}
			return nil, err
		}
	}
	return b, nil
}

// held returns who must stay open as long as the binding does.
func (b *Binding) held() (out []holder) {
	if b.opt.Queue != nil {
		out = append(out, b.opt.Queue)
	}
	for _, c := range b.opt.Counters {
		out = append(out, &c.Counter.holders)
	}
	if b.opt.Addresses != nil {
		out = append(out, &b.opt.Addresses.holders)
	}
	return out
}

// Close ends the binding, and gives back the room that operations had reserved which have not
// ended. Closing twice is harmless. It never fails.
func (b *Binding) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.opt.Queue != nil {
		b.opt.Queue.Credits().Return(b.credits)
	}
	for _, h := range b.held() {
		h.unbind()
	}
	return nil
}

// Wants reports whether an operation with these flags completes into the queue if it succeeds. The
// flags are those of the call, or the endpoint's default ones where the call takes none.
func (b *Binding) Wants(op Flags) bool {
	return b.opt.Queue != nil && op&FlagInjectCall == 0 && (!b.selective || op&askingFlags != 0)
}

// holds reports whether an operation reserves room: for its completion, or for the one that gives a
// multi-receive buffer back.
func (b *Binding) holds(op Flags) bool {
	return b.reserving && (b.Wants(op) || op&FlagMultiRecv != 0)
}

// Begin is called before an operation is accepted. It reserves room in the queue for what the
// operation will certainly report; ErrFull says that there is none, and the operation is to be
// refused with EAGAIN. An operation that reports nothing if all goes well reserves none: should it
// fail, its error can find the queue full. Nor do messages in a multi-receive buffer, of which
// nobody knows the number, but for the one that gives it back.
func (b *Binding) Begin(op Flags) error {
	if b.closed {
		return ErrClosed
	}
	if !b.holds(op) {
		return nil
	}
	err := b.opt.Queue.Credits().Add(1)
	if err == nil {
		b.credits++
	}
	return err
}

// Drop ends an operation that was begun and then not accepted. Nothing is reported or counted.
func (b *Binding) Drop(op Flags) {
	if b.holds(op) && b.credits > 0 {
		b.credits--
		b.opt.Queue.Credits().Return(1)
	}
}

// Complete ends an operation that went well: it posts the completion, if one is wanted, and counts.
// e.Flags say what completed and op what was asked for. An entry with FlagMultiRecv gives the
// multi-receive buffer back and is posted even by a selective binding.
//
// Errors are those of Post, ErrInvalid for an entry of the side that is not bound, and ErrNoCredit
// without Begin. After ErrFull, which only operations get that reserved no room, nothing is counted
// and the call is to be repeated.
func (b *Binding) Complete(e *Entry, op Flags) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.reports(e.Flags, op) {
		if b.spends(e.Flags, op) {
			err = b.spent(b.opt.Queue.Credits().Post(e))
		} else {
			err = b.opt.Queue.Post(e)
		}
	}
	return b.count(err, e.Flags, e.Len, false)
}

// CompleteFrom is Complete for data that came from a raw address, which becomes e.Src as
// BindingOptions.Source says; see [Writer.PostFrom]. An error entry for want of a known source is
// made only where a completion would be, and counts as one: the data has arrived.
func (b *Binding) CompleteFrom(e *Entry, op Flags, rawAddr []byte) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.reports(e.Flags, op) {
		from := source{raw: rawAddr, av: b.opt.Addresses, mode: b.opt.Source, bound: true}
		credited := b.spends(e.Flags, op)
		if err = b.opt.Queue.postFrom(e, from, credited); credited {
			err = b.spent(err)
		}
	}
	return b.count(err, e.Flags, e.Len, false)
}

// CompleteTarget reports what a peer did to this process's memory: an operation that nobody here
// began. It is counted, and has a completion, without a context, if it carries remote CQ data.
// Errors are those of Complete.
func (b *Binding) CompleteTarget(e *Entry) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.opt.Queue != nil && e.Flags&FlagRemoteCQData != 0 {
		c := *e
		c.Context, c.Meta = 0, c.Meta|MetaNoContext
		err = b.opt.Queue.Post(&c)
	}
	return b.count(err, e.Flags, e.Len, false)
}

// Fail ends an operation that failed. There is an error entry for every one, whether it asked for a
// completion or not. What is not known any more is left zero in e, with FlagNoContext if that is
// the context; calls that have no context (FlagInjectCall) get the mark by themselves. Errors are
// those of Complete.
func (b *Binding) Fail(e *ErrorEntry, op Flags) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if q := b.opt.Queue; q != nil {
		c := *e
		if op&FlagInjectCall != 0 {
			c.Context, c.Flags = 0, c.Flags|FlagNoContext
		}
		if b.spends(e.Flags, op) {
			err = b.spent(q.Credits().PostError(&c))
		} else {
			err = q.PostError(&c)
		}
	}
	return b.count(err, e.Flags, 0, true)
}

// check refuses an entry of a side that is not bound.
func (b *Binding) check(f Flags) error {
	if b.closed {
		return ErrClosed
	}
	side := Flags(0)
	if f&transmitKinds != 0 {
		side |= FlagTransmit
	}
	if f&(receiveKinds|FlagMultiRecv) != 0 {
		side |= FlagRecv
	}
	if side == 0 || side&^b.opt.Flags != 0 {
		return kind.Refuse("complete", "", "Flags", f, b.opt.Flags&(FlagTransmit|FlagRecv), ErrInvalid)
	}
	return nil
}

// reports says whether a completion is posted.
func (b *Binding) reports(entry, op Flags) bool {
	return b.Wants(op) || b.opt.Queue != nil && entry&FlagMultiRecv != 0
}

// spends says whether an entry is the one that its operation reserved room for.
func (b *Binding) spends(entry, op Flags) bool {
	return b.holds(op) && (op&FlagMultiRecv == 0 || entry&FlagMultiRecv != 0)
}

// spent notes that a credited post used a credit up, unless it did not.
func (b *Binding) spent(err error) error {
	if err == nil {
		b.credits--
	}
	return err
}

// count adds to the counters of an operation's kind, unless it is to be reported again.
func (b *Binding) count(posted error, f Flags, lenBytes uint64, failed bool) error {
	if posted != nil && (posted == ErrFull || posted == ErrNoCredit ||
		errors.Is(posted, ErrInvalid)) {
		return posted
	}
	err := posted
	for _, c := range b.opt.Counters {
		switch {
		case c.Flags&f == 0:
		case failed:
			err = errors.Join(err, c.Counter.AddError())
		default:
			err = errors.Join(err, c.Counter.AddCompletion(lenBytes))
		}
	}
	return err
}

// Slots returns up to n slots for completions that are posted together, to be filled and published
// with [Writer.Commit] of the queue's writer before anything else is posted. So many as credited of
// them end operations that Begin reserved room for, which is given up here: for those, n slots are
// always there. Wants says which operations are to have one, and Count counts them all. Errors are
// those of [Writer.Reserve].
func (b *Binding) Slots(n, credited int) (first, second []Entry, err error) {
	if b.closed || b.opt.Queue == nil {
		return nil, nil, ErrClosed
	}
	if b.reserving {
		credited = min(credited, b.credits)
		b.credits -= credited
		b.opt.Queue.Credits().Return(credited)
	}
	return b.opt.Queue.Reserve(n)
}

// Count adds n operations of a kind that went well, of so many bytes together, to the counters.
// Complete and its like count by themselves.
func (b *Binding) Count(kind Flags, n int, bytes uint64) error {
	var err error
	for _, c := range b.opt.Counters {
		switch {
		case c.Flags&kind == 0 || n == 0:
		case c.Counter.opt.Events == BytesCounter:
			err = errors.Join(err, c.Counter.Add(bytes))
		default:
			err = errors.Join(err, c.Counter.Add(uint64(n)))
		}
	}
	return err
}

// Reserves reports whether Begin reserves room, and refuses operations for which there is none. It
// does not for a queue with the policy OverrunQueue.
func (b *Binding) Reserves() bool { return b.reserving }
