// Package feed decides which operations of an endpoint complete where (fi_ep_bind): in a queue, in
// counters, or nowhere. It stands on the public names of package cq alone, so that whoever writes
// an endpoint of their own can do what it does.
package feed

import (
	"errors"
	"io"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// Options say how an endpoint is bound to what it reports to.
type Options struct {
	// Queue takes the completions, through this writer's lane. Without one only counters count.
	Queue *cq.Writer
	// Flags are FlagTransmit, FlagRecv or both: which side of the endpoint is bound. With
	// FlagSelectiveCompletion beside them, only operations complete that ask for it.
	Flags cq.Flags
	// Counters count operations that end, each of the kinds that stand with it: any of FlagSend,
	// FlagRecv, FlagRead, FlagWrite, FlagRemoteRead and FlagRemoteWrite. A BytesCounter grows by
	// the Len of the entry that ends an operation, whether that is posted or not.
	Counters map[*cq.Counter]cq.Flags
	// Addresses is where the endpoint looks up sources. It is only kept open.
	Addresses *cq.AddressVector
}

const (
	transmitKinds = cq.FlagSend | cq.FlagRead | cq.FlagWrite
	receiveKinds  = cq.FlagRecv | cq.FlagRemoteRead | cq.FlagRemoteWrite
	countedKinds  = transmitKinds | receiveKinds
	sides         = cq.FlagTransmit | cq.FlagRecv
	bindingFlags  = sides | cq.FlagSelectiveCompletion

	// Levels are the flags of completion levels.
	Levels = cq.FlagInjectComplete | cq.FlagTransmitComplete | cq.FlagDeliveryComplete |
		cq.FlagMatchComplete | cq.FlagCommitComplete

	// askingFlags ask for a completion: directly, or for one of a level. (libfabric's own helper
	// leaves the last two out; whoever names a level wants to know that it was reached.)
	askingFlags = cq.FlagCompletion | Levels
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
// Begin, which reserves it, and ends with one of Complete, CompleteUnknown, Fail and Drop. In a
// queue with the policy OverrunQueue nothing is reserved or refused: there the application sees to
// it that the queue is large enough (FI_RM_DISABLED).
type Binding struct {
	queue     *cq.Writer
	counters  []counter
	sides     cq.Flags
	selective bool
	reserving bool // the queue refuses what it has no room for
	credits   int  // of the queue, reserved by operations that have not ended
	ahead     int  // of these, by none that has begun
	release   func()
	closed    bool
}

type counter struct {
	*cq.Counter
	kinds cq.Flags
	bytes bool // it counts these
}

// Bind binds. ErrInvalid says which of the options makes no sense: FlagSelectiveCompletion must
// stand beside FlagTransmit or FlagRecv. The writer, its queue if that is this process's, the
// counters and the address vector cannot be closed before the binding is (EBUSY).
func Bind(o Options) (*Binding, error) {
	bad := func(field string, got, want any) (*Binding, error) {
		return nil, kind.Refuse("bind", "", field, got, want, cq.ErrInvalid)
	}
	if o.Flags&^bindingFlags != 0 || o.Flags&sides == 0 {
		return bad("Flags", o.Flags, "FlagTransmit, FlagRecv or both, with or without "+
			"FlagSelectiveCompletion")
	}
	b := &Binding{queue: o.Queue, sides: o.Flags & sides,
		selective: o.Flags&cq.FlagSelectiveCompletion != 0,
		reserving: o.Queue != nil && o.Queue.Stats().Overrun == cq.BackPressure}
	var held []io.Closer
	if o.Queue != nil {
		held = append(held, o.Queue)
	}
	for c, kinds := range o.Counters {
		if c == nil || kinds == 0 || kinds&^countedKinds != 0 {
			return bad("Counters", kinds, "a counter, and what it counts")
		}
		b.counters = append(b.counters, counter{c, kinds, c.Options().Events == cq.BytesCounter})
		held = append(held, c)
	}
	if len(held) == 0 {
		return bad("Queue", nil, "a queue or a counter")
	}
	if o.Addresses != nil {
		held = append(held, o.Addresses)
	}
	var err error
	if b.release, err = cq.Hold(held...); err != nil {
		return nil, err
	}
	return b, nil
}

// Close ends the binding, and gives back the room that operations had reserved which have not
// ended. Closing twice is harmless. It never fails.
func (b *Binding) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	if b.queue != nil {
		b.queue.Credits().Return(b.credits)
	}
	b.release()
	return nil
}

// Wants reports whether an operation with these flags completes into the queue if it succeeds. The
// flags are those of the call, or the endpoint's default ones where the call takes none.
func (b *Binding) Wants(op cq.Flags) bool {
	return b.queue != nil && op&cq.FlagInjectCall == 0 && (!b.selective || op&askingFlags != 0)
}

// Holds reports whether an operation reserves room: for its completion, or for the one that gives a
// multi-receive buffer back.
func (b *Binding) Holds(op cq.Flags) bool {
	return b.reserving && (b.Wants(op) || op&cq.FlagMultiRecv != 0)
}

// Begin is called before an operation is accepted. It reserves room in the queue for what the
// operation will certainly report; ErrFull says that there is none, and the operation is to be
// refused with EAGAIN. An operation that reports nothing if all goes well reserves none: should it
// fail, its error can find the queue full. Nor do messages in a multi-receive buffer, of which
// nobody knows the number, but for the one that gives it back.
func (b *Binding) Begin(op cq.Flags) error {
	if b.closed {
		return cq.ErrClosed
	}
	if !b.Holds(op) {
		return nil
	}
	if b.ahead > 0 {
		b.ahead--
		return nil
	}
	err := b.queue.Credits().Add(1)
	if err == nil {
		b.credits++
	}
	return err
}

// Expect reserves room for n operations at once, of which Begin takes as many as begin, and gives
// up what the last Expect has left. Without room for all of them each Begin asks for itself.
func (b *Binding) Expect(n int) {
	b.giveUp(b.ahead)
	b.ahead = 0
	if n > 0 && b.reserving && !b.closed && b.queue.Credits().Add(n) == nil {
		b.credits += n
		b.ahead = n
	}
}

// Drop ends an operation that was begun and then not accepted. Nothing is reported or counted.
func (b *Binding) Drop(op cq.Flags) {
	if b.Holds(op) && b.credits > 0 {
		b.credits--
		b.queue.Credits().Return(1)
	}
}

// Complete ends an operation that went well: it posts the completion, if one is wanted, and counts.
// e.Flags say what completed and op what was asked for. An entry with FlagMultiRecv gives the
// multi-receive buffer back and is posted even by a selective binding.
//
// Errors are those of Post, ErrInvalid for an entry of the side that is not bound, and ErrNoCredit
// without Begin. After ErrFull, which only operations get that reserved no room, nothing is counted
// and the call is to be repeated.
func (b *Binding) Complete(e *cq.Entry, op cq.Flags) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.reports(e.Flags, op) {
		if b.spends(e.Flags, op) {
			if b.credits == 0 {
				return cq.ErrNoCredit
			}
			b.giveUp(1)
		}
		err = b.queue.Post(e)
	}
	return b.count(err, e.Flags, e.Len, false)
}

// CompleteUnknown is Complete for data that came from rawAddr, which nobody knows (FI_SOURCE_ERR).
// The error entry is made only where a completion would be, and counts as one: the data has
// arrived.
func (b *Binding) CompleteUnknown(e *cq.Entry, op cq.Flags, rawAddr []byte) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.reports(e.Flags, op) {
		unknown := UnknownSource(e, rawAddr)
		err = b.fail(&unknown, b.spends(e.Flags, op))
	}
	return b.count(err, e.Flags, e.Len, false)
}

// UnknownSource is a completion as the error entry that says where it came from: its fields are
// those of e, and rawAddr is what AddressVector.Insert takes.
func UnknownSource(e *cq.Entry, rawAddr []byte) cq.ErrorEntry {
	out := cq.ErrorEntry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf, Data: e.Data,
		Tag: e.Tag, Err: cq.Errno(syscall.EADDRNOTAVAIL), ErrData: rawAddr}
	if e.Meta&cq.MetaNoContext != 0 {
		out.Flags |= cq.FlagNoContext
	}
	return out
}

// CompleteTarget reports what a peer did to this process's memory: an operation that nobody here
// began. It is counted, and has a completion, without a context, if it carries remote CQ data.
// Errors are those of Complete.
func (b *Binding) CompleteTarget(e *cq.Entry) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.queue != nil && e.Flags&cq.FlagRemoteCQData != 0 {
		c := *e
		c.Context, c.Meta = 0, c.Meta|cq.MetaNoContext
		err = b.queue.Post(&c)
	}
	return b.count(err, e.Flags, e.Len, false)
}

// Fail ends an operation that failed. There is an error entry for every one, whether it asked for a
// completion or not. What is not known any more is left zero in e, with FlagNoContext if that is
// the context; calls that have no context (FlagInjectCall) get the mark by themselves. Errors are
// those of Complete.
func (b *Binding) Fail(e *cq.ErrorEntry, op cq.Flags) error {
	if err := b.check(e.Flags); err != nil {
		return err
	}
	var err error
	if b.queue != nil {
		c := *e
		if op&cq.FlagInjectCall != 0 {
			c.Context, c.Flags = 0, c.Flags|cq.FlagNoContext
		}
		err = b.fail(&c, b.spends(e.Flags, op))
	}
	return b.count(err, e.Flags, 0, true)
}

// fail posts an error entry.
func (b *Binding) fail(e *cq.ErrorEntry, credited bool) error {
	if credited {
		return b.spent(b.queue.Credits().PostError(e))
	}
	return b.queue.PostError(e)
}

// check refuses an entry of a side that is not bound.
func (b *Binding) check(f cq.Flags) error {
	if b.closed {
		return cq.ErrClosed
	}
	side := cq.Flags(0)
	if f&transmitKinds != 0 {
		side |= cq.FlagTransmit
	}
	if f&(receiveKinds|cq.FlagMultiRecv) != 0 {
		side |= cq.FlagRecv
	}
	if side == 0 || side&^b.sides != 0 {
		return kind.Refuse("complete", "", "Flags", f, b.sides, cq.ErrInvalid)
	}
	return nil
}

// reports says whether a completion is posted.
func (b *Binding) reports(entry, op cq.Flags) bool {
	return b.Wants(op) || b.queue != nil && entry&cq.FlagMultiRecv != 0
}

// spends says whether an entry is the one that its operation reserved room for.
func (b *Binding) spends(entry, op cq.Flags) bool {
	return b.Holds(op) && (op&cq.FlagMultiRecv == 0 || entry&cq.FlagMultiRecv != 0)
}

// spent notes that a credited post used a credit up, unless it did not.
func (b *Binding) spent(err error) error {
	if err == nil {
		b.credits--
	}
	return err
}

// count adds to the counters of an operation's kind, unless it is to be reported again.
func (b *Binding) count(posted error, f cq.Flags, lenBytes uint64, failed bool) error {
	switch {
	case posted != nil && (posted == cq.ErrFull || posted == cq.ErrNoCredit ||
		errors.Is(posted, cq.ErrInvalid)):
		return posted
	case !failed:
		if err := b.Count(f, 1, lenBytes); err != nil {
			return errors.Join(posted, err)
		}
		return posted
	}
	for _, c := range b.counters {
		if c.kinds&f != 0 {
			posted = errors.Join(posted, c.AddErr(1))
		}
	}
	return posted
}

// Slots returns up to n slots for completions that are posted together, to be filled and published
// with [cq.Writer.Commit] of the queue's writer before anything else is posted. So many as credited
// of them end operations that Begin reserved room for, which is given up here: for those, n slots
// are always there. Wants says which operations are to have one, and Count counts them all. Errors
// are those of [cq.Writer.Reserve].
func (b *Binding) Slots(n, credited int) (first, second []cq.Entry, err error) {
	if b.closed || b.queue == nil {
		return nil, nil, cq.ErrClosed
	}
	b.giveUp(credited)
	return b.queue.Reserve(n)
}

// Post is Slots of one completion, which it publishes.
func (b *Binding) Post(e *cq.Entry, credited int) error {
	if b.closed || b.queue == nil {
		return cq.ErrClosed
	}
	b.giveUp(credited)
	return b.queue.Post(e)
}

func (b *Binding) giveUp(credits int) {
	if b.reserving {
		credits = min(credits, b.credits)
		b.credits -= credits
		b.queue.Credits().Return(credits)
	}
}

// Count adds n operations of a kind that went well, of so many bytes together, to the counters.
// Complete and its like count by themselves.
func (b *Binding) Count(kind cq.Flags, n int, bytes uint64) error {
	if len(b.counters) == 0 {
		return nil
	}
	return b.addTo(kind, n, bytes)
}

// addTo is apart, so that Count is inlined.
func (b *Binding) addTo(kind cq.Flags, n int, bytes uint64) error {
	var err error
	for _, c := range b.counters {
		switch {
		case c.kinds&kind == 0 || n == 0:
		case c.bytes:
			err = errors.Join(err, c.Add(bytes))
		default:
			err = errors.Join(err, c.Add(uint64(n)))
		}
	}
	return err
}

// Reserves reports whether Begin reserves room, and refuses operations for which there is none. It
// does not for a queue with the policy OverrunQueue.
func (b *Binding) Reserves() bool { return b.reserving }

// Drive has reads of the queues and counters, and waits for them, move a feeder, until stop is
// called. None of them can be closed before (EBUSY). After an error none is bound.
func Drive(f cq.Feeder, queues []*cq.Queue, counters ...*cq.Counter) (stop func(), err error) {
	var undos []func()
	stop = func() {
		for _, undo := range undos {
			undo()
		}
		undos = nil
	}
	for _, q := range queues {
		undo, err := q.Bind(f, true)
		if err != nil {
			stop()
			return nil, err
		}
		undos = append(undos, undo)
	}
	for _, c := range counters {
		undo, err := c.Bind(f)
		if err != nil {
			stop()
			return nil, err
		}
		undos = append(undos, undo)
	}
	return stop, nil
}

// Close closes the bindings of an endpoint that there are, and stops what drives it.
func Close(stop func(), bindings ...*Binding) {
	if stop != nil {
		stop()
	}
	for _, b := range bindings {
		if b != nil {
			_ = b.Close()
		}
	}
}
