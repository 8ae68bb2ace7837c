package cq

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
)

// Read takes the next event and fills ev (fi_eq_read). It never blocks. It returns how many bytes
// the event has, EventHeaderBytes and its payload, or 0 and: ErrWouldBlock if there is none;
// ETooSmall if the payload does not fit the capacity of ev.Payload, and the event stays: Want of
// the *[Error] is the capacity that is needed, an int; ErrAvail if an error event is next, until
// ReadErr has taken it; ErrOverrun once an overrun queue is drained; a *LaneError, once, for a
// writer that was given up; ErrClosed; ErrHandled.
//
// With FlagPeek the event stays in the queue (FI_PEEK): the next read returns it again, whatever
// else arrives, unless its object is closed meanwhile. What was readable stays so, also for a
// descriptor. Other flags are ErrInvalid.
//
// Events of one writer come in its order. An event that was read without FlagPeek is gone, whatever
// becomes of the process.
func (e *EventQueue) Read(ev *Event, flags Flags) (int, error) {
	// The usual read is what stands here, in one function: one lane at most can have something, and
	// there is nothing else to think of. Each word of the slot is loaded once.
	q := &e.core
	if flags != 0 || e.handler != nil {
		return e.readOnce(ev, flags)
	}
	if q.shared() {
		if !q.enter() {
			return 0, q.guard.refusal()
		}
	} else if !q.guard.enterAlone() {
		return 0, ErrClosed
	}
	bit := q.only()
	if bit < wake.Nobody || e.pinned != nil || e.purge.count > 0 || ev.From != nil {
		return e.readCarefully(ev)
	}
	if e.purge.due.Load() {
		return e.readCarefully(ev)
	}
	if bit == wake.Nobody {
		return e.readNothing()
	}
	l := q.lanes[bit]
	c := l.cons
	if c.Waiting() == 0 {
		if !c.Moved() && !l.overran() {
			return e.readNothing()
		}
		c.Len()
	}
	s := c.Front()
	if s == nil || loadMeta(s)&kindMask != kindEntry {
		return e.readCarefully(ev)
	}
	n := s.Len
	if n > 0 {
		data := l.detail.Data(c.Head())
		if n > uint64(len(data)) || n > uint64(cap(ev.Payload)) {
			return e.readCarefully(ev)
		}
		copy(ev.Payload[:n], data)
	}
	ev.load(s)
	ev.Payload, ev.Redelivered = ev.Payload[:n], false
	if crash.On {
		crash.At(crash.EventCopied)
	}
	l.note()
	c.Release(1)
	if crash.On {
		crash.At(crash.EventReleased)
	}
	e.readEnded()
	return EventHeaderBytes + int(n), nil
}

// readEnded leaves after a read that had nothing to think of.
func (e *EventQueue) readEnded() {
	if e.shared() {
		e.unlock()
	} else {
		e.guard.leaveAlone()
	}
}

func (e *EventQueue) readNothing() (int, error) {
	e.readEnded()
	return 0, ErrWouldBlock
}

// readCarefully is the rest of a read that has something to think of, and is inside. What is one
// goroutine's leaves first, to see whether there is another.
func (e *EventQueue) readCarefully(ev *Event) (int, error) {
	if e.shared() {
		return e.readInside(ev, false)
	}
	e.guard.leaveAlone()
	return e.readOnce(ev, 0)
}

// ReadContext is Read that waits until the context ends (fi_eq_sread); then it returns an error
// that matches ctx.Err() and its cause. The context is not looked at while an event is there.
// Besides Read's, its results are ErrTimedOut (EAGAIN as fi_eq(3) and ETIMEDOUT as kfi_eq(3) say);
// ErrSignaled; ErrClosed when the queue is closed while it waits; ErrNoWait for a queue that cannot
// block, whatever is there. Threshold, Source and From are for completions;
// whose an event is says [Event].From.
func (e *EventQueue) ReadContext(ctx context.Context, ev *Event, o ReadOptions) (int, error) {
	switch {
	case e.handler != nil:
		return 0, ErrHandled
	case o.Threshold > 1 || o.Source != nil || o.From != nil:
		return 0, kind.Refuse("sread", e.name, "Threshold, Source and From", o.Threshold,
			"none for events", ErrInvalid)
	case !e.options.Wait.blocks():
		return 0, e.errNoWait()
	}
	n, err := e.Read(ev, o.Flags)
	if err != ErrWouldBlock {
		return n, err
	}
	w := e.newWait(ctx, o.Timeout)
	defer w.close()
	for {
		if n, err = e.Read(ev, o.Flags); err != ErrWouldBlock {
			return n, err
		}
		if err = w.once(); err != nil {
			return 0, err
		}
	}
}

// onlyPeek refuses flags that reads of events do not know.
func (e *EventQueue) onlyPeek(flags Flags) error {
	if flags&^FlagPeek != 0 {
		return kind.Refuse("read", e.name, "Flags", flags, FlagPeek, ErrInvalid)
	}
	return nil
}

func (e *EventQueue) readOnce(ev *Event, flags Flags) (int, error) {
	if err := e.onlyPeek(flags); err != nil {
		return 0, err
	}
	if e.handler != nil {
		return 0, ErrHandled
	}
	if !e.enter() {
		return 0, e.guard.refusal()
	}
	return e.readInside(ev, flags != 0)
}

func (e *EventQueue) readInside(ev *Event, peek bool) (int, error) {
	l, err := e.take(ev)
	switch {
	case err != nil:
	case peek:
		crash.At(crash.EventCopied)
		l.pin()
		crash.At(crash.EventPinned)
	default:
		crash.At(crash.EventCopied)
		e.pinned = nil
		e.release(l)
		crash.At(crash.EventReleased)
	}
	e.leave()
	if err != nil {
		return 0, err
	}
	return EventHeaderBytes + len(ev.Payload), nil
}

// take fills ev with the next event and pins its lane. The caller releases it, or leaves it.
func (e *EventQueue) take(ev *Event) (*lane, error) {
	q := &e.core
	e.prune()
	l := e.pinned
	if l == nil {
		var err error
		if l, err = e.find(); err != nil {
			return nil, err
		}
	}
	a, _ := l.cons.Peek(1)
	if len(a) == 0 { // another goroutine took it, which may not be here
		e.pinned = nil
		return nil, ErrWouldBlock
	}
	s := a[0] // copied once; everything below looks at the copy
	data := l.detail.Data(l.cons.Head())
	e.pinned = l
	need, ok := ev.decode(&s, data)
	if !ok {
		if need <= uint64(len(data)) {
			return nil, kind.Refuse("read", q.name, "cap(Payload)", cap(ev.Payload), int(need), ETooSmall)
		}
		e.pinned = nil
		q.giveUp(l, "payload length", kind.Refuse("read", q.name, "payload length", need,
			fmt.Sprintf("at most %d", len(data)), ErrCorrupt))
		_, err := q.result(0)
		return nil, err
	}
	if ev.From != nil {
		*ev.From, _ = q.origin(l)
	}
	ev.Redelivered = l.again() > 0
	return l, nil
}

// find returns the lane whose next entry is an event that is due.
func (e *EventQueue) find() (*lane, error) {
	q := &e.core
	if q.final {
		return nil, ErrOverrun
	}
	if q.errLane != nil {
		return nil, ErrAvail
	}
	// With a writer whose death would not be noticed, only full rounds lead to a full look.
	if bit := q.only(); bit >= 0 && !q.sliced.Load() {
		l := q.lanes[bit]
		a, _ := l.cons.Peek(1)
		if len(a) > 0 && loadMeta(&a[0])&kindMask == kindEntry {
			return l, nil
		}
		if len(a) == 0 && l.cons.Err() == nil && l.words.Overrun.Load() == 0 {
			_, err := q.result(0)
			return nil, err
		}
	}
	q.takeMarks()
	r := q.newRound()
	for bit := r.next(); bit >= 0; bit = r.next() {
		l := q.lanes[bit]
		a, _ := l.cons.Peek(1)
		if len(a) == 0 {
			q.empty(bit)
			continue
		}
		if m := loadMeta(&a[0]); m&kindMask != kindEntry {
			q.notEntry(l, m)
			_, err := q.result(0)
			return nil, err
		}
		q.bell.Warm()
		q.gave(bit, 1)
		return l, nil
	}
	if err := q.cool(r.looks); err != nil {
		return nil, err
	}
	_, err := q.result(0)
	return nil, err
}

// pin notes in shared memory that the next entry was seen, so that a successor can say so.
func (l *lane) pin() {
	if l.again() == 0 {
		l.peeked = l.cons.Head() + 1
		ring.StoreRelease(&l.row.Peeked, l.peeked)
	}
}

// release takes the next entry of a lane away, and those behind it that were purged.
func (e *EventQueue) release(l *lane) {
	l.release(1)
	if e.purge.count > 0 {
		e.skip(l)
	}
}

// ReadErr takes the error event that is next and fills ev (fi_eq_readerr). It never blocks. It
// returns EventErrorBytes, or 0 and: ErrWouldBlock if the next event is not an error; ErrClosed;
// ErrHandled. As much of the error data as the capacity of ev.ErrData allows is copied there; the
// memory is the caller's. With FlagPeek the error event stays in the queue (FI_PEEK); other flags
// are ErrInvalid.
func (e *EventQueue) ReadErr(ev *EventError, flags Flags) (int, error) {
	if e.handler != nil {
		return 0, ErrHandled
	}
	if err := e.onlyPeek(flags); err != nil {
		return 0, err
	}
	q := &e.core
	if !q.enter() {
		return 0, q.guard.refusal()
	}
	defer q.leave()
	e.prune()
	l, err := e.takeErr(ev)
	if err != nil {
		return 0, err
	}
	if flags != 0 {
		l.pin()
	} else {
		q.errLane = nil
		e.release(l)
	}
	return EventErrorBytes, nil
}

// takeErr fills ev with the error event that is next. The caller releases it, or leaves it.
func (e *EventQueue) takeErr(ev *EventError) (*lane, error) {
	l, s, d := e.nextError()
	if l == nil {
		return nil, ErrWouldBlock
	}
	ev.decode(&s, &d, l.detail.Data(l.cons.Head()))
	if ev.From != nil {
		*ev.From, _ = e.origin(l)
	}
	ev.Redelivered = l.again() > 0
	return l, nil
}

// purge is what a queue knows of objects that were closed. What is asked for comes from any
// goroutine; what is done, by whoever reads.
type purge struct {
	due    atomic.Bool
	mu     sync.Mutex
	asked  map[FID]struct{}
	count  int        // entries that are marked
	marked [][]uint64 // by lane: a bit a slot, nil until needed
}

// maxPurges bounds how many closed objects are remembered until the next read.
const maxPurges = 1 << 16

// drop removes every event and error event about an object that is in the queue now: no later read
// returns one, not even an event that was peeked at. It is for objects that are closed: queues and
// memory regions of this process; an address vector leaves what tells of its operations. It may be
// called from anywhere; what is written about the object between the call and the next read may be
// removed too. It fails with ErrFull if 65536 objects were purged since the last read.
func (e *EventQueue) drop(id FID) error {
	p := &e.purge
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.guard.isClosed() {
		return ErrClosed
	}
	if len(p.asked) >= maxPurges {
		return &Error{Pkg: kind.Pkg, Op: "purge", Name: e.name, Err: ErrFull,
			Hint: "read the event queue"}
	}
	if p.asked == nil {
		p.asked = map[FID]struct{}{}
	}
	p.asked[id] = struct{}{}
	p.due.Store(true)
	return nil
}

// prune implements whole. It runs under the bell's lock.
func (e *EventQueue) prune() {
	if e.purge.due.Load() {
		e.applyPurges()
	}
}

// applyPurges marks what is queued about the objects that were asked for. The marks are private
// and bounded by the queue's size; an entry's mark goes when the reader comes to it. It runs under
// the bell's lock.
func (e *EventQueue) applyPurges() {
	p, q := &e.purge, &e.core
	p.mu.Lock()
	asked := p.asked
	p.asked = nil
	p.due.Store(false)
	p.mu.Unlock()
	if p.marked == nil {
		p.marked = make([][]uint64, len(q.lanes))
	}
	q.bell.Take()
	if q.findLanes(true) != nil || q.starves() {
		e.purgeLater(asked)
	}
	for bit, l := range q.lanes {
		if l == nil || l.cons == nil || !q.bell.Knows(bit) {
			continue
		}
		a, b := l.cons.Peek(l.cons.Cap())
		at := l.cons.Head()
		for _, span := range [2][]Entry{a, b} {
			for i := range span {
				if s := span[i]; isAsked(asked, &s) {
					e.mark(l, at)
				}
				at++
			}
		}
		e.skip(l)
	}
}

// purgeLater keeps what was asked for, for lanes that cannot be opened now.
func (e *EventQueue) purgeLater(asked map[FID]struct{}) {
	p := &e.purge
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asked == nil {
		p.asked = map[FID]struct{}{}
	}
	maps.Copy(p.asked, asked)
	p.due.Store(true)
}

func isAsked(asked map[FID]struct{}, s *Entry) bool {
	_, ok := asked[eventFID(s)]
	return ok
}

func (e *EventQueue) mark(l *lane, at uint64) {
	m := &e.purge.marked[l.bit]
	if *m == nil {
		*m = make([]uint64, (l.cons.Cap()+63)/64)
	}
	i := at & uint64(l.cons.Cap()-1)
	if (*m)[i/64]&(1<<(i%64)) == 0 {
		(*m)[i/64] |= 1 << (i % 64)
		e.purge.count++
	}
}

// skip releases the marked entries from a lane's head on, so that the head of a lane is never one.
func (e *EventQueue) skip(l *lane) {
	m := e.purge.marked[l.bit]
	if m == nil {
		return
	}
	for l.cons.Len() > 0 {
		i := l.cons.Head() & uint64(l.cons.Cap()-1)
		if m[i/64]&(1<<(i%64)) == 0 {
			return
		}
		m[i/64] &^= 1 << (i % 64)
		e.purge.count--
		if e.pinned == l {
			e.pinned = nil
		}
		if e.errLane == l {
			e.errLane = nil
		}
		l.release(1)
	}
}
