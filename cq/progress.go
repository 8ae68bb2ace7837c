package cq

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
)

// Feeder is what posts into a queue from the queue's own process and has a life of its own: an
// endpoint, say. See [Queue.Bind].
type Feeder interface {
	// Progress moves the feeder's operations on, without blocking, and says after how long it
	// wants to be called again at the latest: 0 is as soon as possible, less is never. It is only
	// called for feeders that were bound with manual progress, by whoever reads, polls or waits: by
	// several goroutines at once, if several do. It may post, and must neither read
	// nor call the sets and channels that have the queue.
	Progress() (again time.Duration)
	// Overrun tells the feeder that the queue loses entries and reports nothing new any more. It
	// may come from any goroutine, and must not call the queue, bind or unbind.
	Overrun(q *Queue)
}

// belled is a feeder with a bell of its own, which others ring when Progress has something to do.
// A read that waits sleeps on that bell too, so how soon Progress wants to be called again means
// nothing to it unless that is at once. Sets, channels and descriptors know no such bell.
type belled interface {
	// HoldBell returns the bell, which is shared, and keeps its memory until DropBell; nil once the
	// feeder is closed.
	HoldBell() *doorbell.Bell
	DropBell()
}

// manualFeeders counts them in all queues of the process, so that sets need not ask their members.
var manualFeeders atomic.Int32

// EventSink is where a queue of this process, or an endpoint, reports what is no completion: an
// [*EventQueue] of this process, or an [*EventWriter] of another's.
type EventSink interface {
	Write(ev *Event) (int, error)
	WriteErr(ev *EventError) (int, error)

	post(e *Event, credited bool) error
	postErr(e *EventError, credited bool) error
	credit(n int) error
	returnCredits(n int)
	bind() error
	unbind()
	forget(FID)
	// sinkID tells an event queue from every other.
	sinkID() uint64
}

// BindEvents makes the queue report its overrun and the deaths of its writers to an event queue. An
// event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces the
// first, and is told the deaths for which that one had no room. nil ends the binding. So does
// closing the queue, which also purges its events there. BindEvents may be called from anywhere.
//
// An overrun is an error event with the queue's FID and EOverrun. It comes in much less than a
// second after the first entry was lost, also when nobody reads the queue; or after BindEvents, if
// nobody was told before. Room for it is reserved now: ErrFull if there is none.
//
// The death of a writer is an EventPeerDeath with the queue's FID, the lane as Data and a
// [PeerEntry] as payload. There is one for each writer that is proved dead: its process has ended,
// or the kernel has dropped its lock. Whoever has read the event can read every entry that the
// writer had published, by reads that begin then. The event does not wait for these entries to be
// read, nor for anybody to read at all. It comes in much less than a second, also when nobody
// waits, and stays due while the event queue is full. A writer that detached is not dead, nor is
// one that is stopped, or that lost its lock and lives. Writers of this process die with the queue.
//
// Each death is reported once. A death before BindEvents is reported if the lane has had no other
// writer since. A successor of this reader reports it only to another event queue than the last one
// that was bound. If a reader dies while it reports, its successor may report the death again, and
// marks that with PeerEntry.Again.
func (q *Queue) BindEvents(events EventSink) error {
	// One at a time: of two, each could else win one half.
	q.feeders.binding.Lock()
	defer q.feeders.binding.Unlock()
	// What can fail for want of room comes first: then the former binding stands, all of it. The
	// former event queue gets its room back last, or a death that waits for the next one would go
	// there.
	giveBack, err := q.bindOverrun(events)
	if err != nil {
		return err
	}
	err = q.bindDeaths(events)
	giveBack()
	if err != nil { // the queue is closed
		giveBack, _ = q.bindOverrun(nil)
		giveBack()
	}
	return err
}

// bindDeaths has deaths of writers reported.
func (q *core) bindDeaths(events EventSink) error {
	if events != nil {
		if !q.guard.enterAny() {
			return bindError(q.name, ErrClosed)
		}
		defer q.guard.leaveAny()
	}
	return q.deaths.bind(q.name, q.fid, events, func(former deathFinder) deathFinder {
		m, ok := former.(*writerDeaths)
		if ok {
			m.turnTo(events.sinkID())
			return m
		}
		return newWriterDeaths(q, events.sinkID())
	})
}

// bindOverrun has the overrun reported. giveBack unbinds the event queue that it was reported to
// before, and is never nil.
func (q *core) bindOverrun(events EventSink) (giveBack func(), err error) {
	if events != nil {
		if err := events.bind(); err != nil {
			return func() {}, bindError(q.name, err)
		}
		if err := events.credit(1); err != nil {
			events.unbind()
			return func() {}, bindError(q.name, err)
		}
	}
	q.feeders.mu.Lock()
	before, told := q.feeders.events, q.feeders.reported
	q.feeders.events = events
	q.feeders.mu.Unlock()
	if told && events != nil {
		events.returnCredits(1) // nothing more is to come
	}
	return func() {
		if before == nil {
			return
		}
		if !told {
			before.returnCredits(1)
		}
		before.unbind()
	}, nil
}

// unbindEvents is the end of a queue that is closed.
func (q *core) unbindEvents() {
	q.feeders.mu.Lock()
	events := q.feeders.events
	q.feeders.mu.Unlock()
	_ = q.bindDeaths(nil)
	if events != nil {
		events.forget(q.fid)
		giveBack, _ := q.bindOverrun(nil)
		giveBack()
	}
}

// feeders of a queue.
type feeders struct {
	// binding is held for as long as BindEvents takes, over every other lock.
	binding sync.Mutex

	mu     sync.Mutex
	all    []*feeder
	told   bool         // that the queue is overrun
	events EventSink    // learns of it as well
	manual atomic.Int32 // how many of them are driven by reads

	reported bool // to an event queue
}

type feeder struct {
	f      Feeder
	q      *Queue // which it is bound to
	manual bool
	belled belled // of a manual one, or nil
}

// Bind says that f posts into the queue. Until unbind is called the queue cannot be closed
// (ErrBusy), and f learns of an overrun. With manual progress f moves on only while somebody reads
// (also nothing: a Read into an empty slice), polls or waits (FI_PROGRESS_MANUAL); otherwise it
// drives itself (FI_PROGRESS_AUTO), which is for free. Bind and unbind may be called from anywhere,
// but binding with manual progress counts as reading.
func (q *Queue) Bind(f Feeder, manual bool) (unbind func(), err error) {
	if f == nil {
		return nil, errAbsent("bind")
	}
	if err := q.holders.bind(); err != nil {
		return nil, &Error{Pkg: kind.Pkg, Op: "bind", Name: q.name, Err: err}
	}
	e := &feeder{f: f, q: q, manual: manual}
	if manual {
		e.belled, _ = f.(belled)
	}
	q.feeders.mu.Lock()
	q.feeders.all = append(q.feeders.all, e)
	if manual {
		q.feeders.manual.Add(1)
		manualFeeders.Add(1)
	}
	q.feeders.mu.Unlock()
	if manual && q.enter() { // so that the next read looks closer
		q.leave()
	}
	return sync.OnceFunc(func() { q.unbind(e) }), nil
}

func (q *Queue) unbind(e *feeder) {
	q.feeders.mu.Lock()
	for i, x := range q.feeders.all {
		if x == e {
			q.feeders.all = append(q.feeders.all[:i:i], q.feeders.all[i+1:]...)
			break
		}
	}
	if e.manual {
		q.feeders.manual.Add(-1)
		manualFeeders.Add(-1)
	}
	q.feeders.mu.Unlock()
	q.holders.unbind()
}

// driven reports whether there are feeders that do not drive themselves.
func (q *core) driven() bool { return q.feeders.manual.Load() > 0 }

// progress drives the feeders that do not drive themselves, and returns after how long they want it
// again, or a negative number for never.
func (q *core) progress() (again time.Duration) { return q.drive(false) }

// drive is progress. With asleep the caller sleeps on the bells of feeders that have one.
func (q *core) drive(asleep bool) (again time.Duration) {
	again = -1
	for _, e := range q.drivenFeeders() {
		if !e.manual {
			continue
		}
		d := e.f.Progress()
		if asleep && e.belled != nil && d > 0 {
			continue
		}
		if d >= 0 && (again < 0 || d < again) {
			again = d
		}
	}
	return again
}

// drivenFeeders returns all feeders if there are some that do not drive themselves.
func (q *core) drivenFeeders() []*feeder {
	if !q.driven() {
		return nil
	}
	q.feeders.mu.Lock()
	defer q.feeders.mu.Unlock()
	return q.feeders.all // never changed in place
}

// feederBells are the bells of a queue's feeders while somebody looks at them or sleeps on them. A
// feeder that is closed ends that, and waits for it.
type feederBells struct {
	bells []*doorbell.Bell
	held  []belled
	room1 [2]*doorbell.Bell
	room2 [2]belled
}

// holdBells fills h, for which there is a drop.
func (q *core) holdBells(h *feederBells) {
	h.bells, h.held = h.room1[:0], h.room2[:0]
	for _, e := range q.drivenFeeders() {
		if e.belled == nil {
			continue
		}
		if b := e.belled.HoldBell(); b != nil {
			h.bells, h.held = append(h.bells, b), append(h.held, e.belled)
		}
	}
}

func (h *feederBells) drop() {
	for _, f := range h.held {
		f.DropBell()
	}
}

// pending reports whether a feeder has something to do.
func (h *feederBells) pending() (any bool) {
	for _, b := range h.bells {
		b.Lock()
		any = any || b.Pending()
		b.Unlock()
	}
	return any
}

// park has others ring from now on, and reports whether there is something to do.
func (h *feederBells) park() (more bool, err error) {
	for _, b := range h.bells {
		b.Lock()
		m, e := b.Park()
		b.Unlock()
		more, err = more || m, errors.Join(err, e)
	}
	return more, err
}

// reportedOverrun reports whether an event queue was told that the queue loses entries.
func (q *core) reportedOverrun() bool {
	q.feeders.mu.Lock()
	defer q.feeders.mu.Unlock()
	return q.feeders.reported
}

// overran tells everybody who is bound to the queue that it loses entries, once. It is called by
// the reader, with the queue's lock held, and by whoever looks for deaths.
func (q *core) overran() {
	q.feeders.mu.Lock()
	defer q.feeders.mu.Unlock()
	if !q.feeders.told {
		q.feeders.told = true
		for _, e := range q.feeders.all {
			e.f.Overrun(e.q)
		}
	}
	if q.feeders.events != nil && !q.feeders.reported {
		q.feeders.reported = true
		_ = q.feeders.events.postErr(&EventError{FID: q.fid, Err: EOverrun}, true)
	}
}
