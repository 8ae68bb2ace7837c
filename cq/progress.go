package cq

import (
	"errors"
	"runtime"
	"slices"
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
	// several goroutines at once, if several do. Nobody calls it while all of them sleep on
	// descriptors. It may post, and must neither read nor call the sets and channels that have the
	// queue.
	Progress() (again time.Duration)
	// Overrun tells the feeder that the queue loses entries and reports nothing new any more. It
	// may come from any goroutine, and must not call the queue, bind or unbind.
	Overrun(q *Queue)
}

// belled is a feeder with a bell of its own, which others ring when Progress has something to do.
// Who sleeps on that bell too need not call Progress before, unless that is to be at once. It is
// for any number of goroutines, so one of ours may stand in for who sleeps elsewhere.
type belled interface {
	// HoldBell returns the bell, which is shared, and keeps its memory until DropBell; nil once the
	// feeder is closed.
	HoldBell() *doorbell.Bell
	DropBell()
}

// manualFeeders counts them in the whole process, so that sets need not ask their members.
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

// feeders of a queue, or of a counter.
type feeders struct {
	// binding is held for as long as BindEvents takes, over every other lock.
	binding sync.Mutex

	mu      sync.Mutex
	all     []*feeder
	told    bool         // that the queue is overrun
	events  EventSink    // learns of it as well
	manual  atomic.Int32 // how many of them are driven by reads
	awaited int          // calls of await without their rest
	armed   func()       // rest, while a descriptor is armed
	arming  atomic.Bool  // there is one

	reported bool // to an event queue
}

type feeder struct {
	f      Feeder
	q      *Queue // which it is bound to, or nil
	manual bool
	belled belled // of a manual one, or nil

	// Under feeders.mu: whether a goroutine follows it, and whether it is bound no more.
	followed, gone bool
	following      sync.WaitGroup
}

// Bind says that f posts into the queue. Until unbind is called the queue cannot be closed
// (ErrBusy), and f learns of an overrun. With manual progress f moves on only while somebody reads
// (also nothing: a Read into an empty slice), polls or waits (FI_PROGRESS_MANUAL); otherwise it
// drives itself (FI_PROGRESS_AUTO), which is for free. Bind and unbind may be called from anywhere,
// but binding with manual progress counts as reading, and unbind waits for Progress to return.
func (q *Queue) Bind(f Feeder, manual bool) (unbind func(), err error) {
	if f == nil {
		return nil, errAbsent("bind")
	}
	if err := q.holders.bind(); err != nil {
		return nil, &Error{Pkg: kind.Pkg, Op: "bind", Name: q.name, Err: err}
	}
	stop := q.feeders.add(&feeder{f: f, q: q, manual: manual})
	if manual && q.enter() { // so that the next read looks closer
		q.leave()
		q.kick() // who sleeps has it followed
	}
	return sync.OnceFunc(func() { stop(); q.holders.unbind() }), nil
}

// Bind says that f adds to the counter (fi_cntr_bind of an endpoint): until unbind is called the
// counter cannot be closed (ErrBusy), and f moves on while somebody reads the counter or waits for
// it (FI_PROGRESS_MANUAL). Other handles of the counter do not move it. Bind and unbind may be
// called from anywhere; unbind waits for Progress to return.
func (c *Counter) Bind(f Feeder) (unbind func(), err error) {
	if f == nil {
		return nil, errAbsent("bind")
	}
	if err := c.holders.bind(); err != nil {
		return nil, &Error{Pkg: kind.Pkg, Op: "bind", Name: c.name, Err: err}
	}
	stop := c.feeders.add(&feeder{f: f, manual: true})
	c.closer.Store(true)
	c.kick()
	return sync.OnceFunc(func() { stop(); c.holders.unbind() }), nil
}

// add returns what takes the feeder out again.
func (s *feeders) add(e *feeder) (stop func()) {
	if e.manual {
		e.belled, _ = e.f.(belled)
		s.manual.Add(1)
		manualFeeders.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all[:len(s.all):len(s.all)], e)
	return func() { s.remove(e) }
}

func (s *feeders) remove(e *feeder) {
	s.mu.Lock()
	s.all = slices.DeleteFunc(slices.Clone(s.all), func(x *feeder) bool { return x == e })
	e.gone = true
	s.mu.Unlock()
	if !e.manual {
		return
	}
	s.manual.Add(-1)
	manualFeeders.Add(-1)
	if e.belled == nil {
		return
	}
	if b := e.belled.HoldBell(); b != nil {
		b.Kick()
		e.belled.DropBell()
	}
	e.following.Wait()
}

// driven reports whether there are feeders that do not drive themselves.
func (s *feeders) driven() bool { return s.manual.Load() > 0 }

// progress drives the feeders that do not drive themselves, for a read.
func (s *feeders) progress() {
	s.disarm()
	s.drive()
}

// drive drives them, and returns after how long they want it again, or a negative number for never.
// Of those with a bell, on which the caller sleeps or has somebody sleep, only 0 counts.
func (s *feeders) drive() (again time.Duration) {
	again = -1
	for _, e := range s.drivenFeeders() {
		if !e.manual {
			continue
		}
		d := e.f.Progress()
		if e.belled != nil && d > 0 {
			continue
		}
		if d >= 0 && (again < 0 || d < again) {
			again = d
		}
	}
	return again
}

// drivenFeeders returns all feeders if there are some that do not drive themselves.
func (s *feeders) drivenFeeders() []*feeder {
	if !s.driven() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all // never changed in place
}

// await has goroutines drive the feeders with bells until rest, for a caller that sleeps where who
// rings these does not look: on a set, a channel, a counter or a descriptor. It is nil if there are
// none; one that is added later wakes the caller, to await it too.
func (s *feeders) await() (rest func()) {
	if !s.driven() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	any := false
	for _, e := range s.all {
		if e.belled != nil {
			s.follow(e)
			any = true
		}
	}
	if !any {
		return nil
	}
	s.awaited++
	return func() {
		s.mu.Lock()
		s.awaited--
		s.mu.Unlock()
	}
}

// drivenOf returns what feeds those under a lock and does not drive itself.
func drivenOf[M any](mu *sync.Mutex, members *map[int]M, feeds func(M) *feeders) (all []*feeders) {
	if manualFeeders.Load() == 0 {
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	for _, m := range *members {
		if s := feeds(m); s.driven() {
			all = append(all, s)
		}
	}
	return all
}

// awaitAll is await for several. None of all is nil.
func awaitAll(all []*feeders) (rest func()) {
	var rests []func()
	for _, s := range all {
		if r := s.await(); r != nil {
			rests = append(rests, r)
		}
	}
	if rests == nil {
		return nil
	}
	return func() {
		for _, r := range rests {
			r()
		}
	}
}

// driveAll is drive for several.
func driveAll(all []*feeders) (again time.Duration) {
	again = -1
	for _, s := range all {
		if d := s.drive(); d >= 0 && (again < 0 || d < again) {
			again = d
		}
	}
	return again
}

// sliced drives all, and makes a wait of a set or channel end when that is to be done again.
func sliced(w doorbell.Wait, all []*feeders) doorbell.Wait {
	if again := driveAll(all); again >= 0 {
		until := deadline(max(1, again))
		if w.DeadlineNs == 0 || until < w.DeadlineNs {
			w.DeadlineNs = until
		}
	}
	return w
}

// arm is await for a descriptor: until the next read.
func (s *feeders) arm() {
	s.disarm()
	rest := s.await()
	if rest == nil {
		return
	}
	s.mu.Lock()
	s.armed, rest = rest, s.armed
	s.arming.Store(true)
	s.mu.Unlock()
	if rest != nil { // another goroutine armed it too
		rest()
	}
}

func (s *feeders) disarm() {
	if !s.arming.Load() {
		return
	}
	s.mu.Lock()
	rest := s.armed
	s.armed = nil
	s.arming.Store(false)
	s.mu.Unlock()
	if rest != nil {
		rest()
	}
}

// follow has a goroutine drive a feeder while that is awaited. One that is there already, and
// sleeps, is woken by whoever has news. The lock is held.
func (s *feeders) follow(e *feeder) {
	if !e.followed {
		e.followed = true
		e.following.Go(func() { s.drives(e) })
	}
}

// drives is that goroutine. It begins with a look, so that what came before it was awaited is not
// left.
func (s *feeders) drives(e *feeder) {
	for s.awaits(e) {
		if again := e.f.Progress(); again == 0 {
			runtime.Gosched()
		} else if !e.sleep(func() bool { return !s.isAwaited(e) }) {
			time.Sleep(max(time.Millisecond, again))
		}
	}
}

// isAwaited reports whether somebody wants the feeder driven.
func (s *feeders) isAwaited(e *feeder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaited > 0 && !e.gone
}

// awaits is isAwaited for the goroutine, which ends if it is not so.
func (s *feeders) awaits(e *feeder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.followed = s.awaited > 0 && !e.gone
	return e.followed
}

// sleep sleeps on the feeder's bell, and reports that a look is worth while: not if the feeder is
// closed, or the bell cannot be parked.
func (e *feeder) sleep(stop func() bool) bool {
	b := e.belled.HoldBell()
	if b == nil {
		return false
	}
	defer e.belled.DropBell()
	b.Lock()
	more, err := b.Park()
	b.Unlock()
	if !more && err == nil {
		b.Sleep(doorbell.Wait{Stop: stop})
	}
	return err == nil
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
func (s *feeders) holdBells(h *feederBells) {
	h.bells, h.held = h.room1[:0], h.room2[:0]
	for _, e := range s.drivenFeeders() {
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
