package cq

import (
	"errors"
	"math"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// EventSink is where a queue of this process, or an endpoint, reports what is no completion: an
// [*EventQueue] of this process, or an [*EventWriter] of another's.
type EventSink interface {
	Write(ev *Event) (int, error)
	WriteErr(ev *EventError) (int, error)

	post(e *Event, credited bool) error
	postErr(e *EventError) error
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
	q.overrunTo.binding.Lock()
	defer q.overrunTo.binding.Unlock()
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
		if err := bindSink(q.name, events); err != nil {
			return func() {}, err
		}
		if err := events.credit(1); err != nil {
			events.unbind()
			return func() {}, bindError(q.name, err)
		}
	}
	q.overrunTo.mu.Lock()
	before, told := q.overrunTo.sink, q.overrunTo.reported
	q.overrunTo.sink = events
	q.overrunTo.mu.Unlock()
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
	q.overrunTo.mu.Lock()
	events := q.overrunTo.sink
	q.overrunTo.mu.Unlock()
	_ = q.bindDeaths(nil)
	if events != nil {
		events.forget(q.fid)
		giveBack, _ := q.bindOverrun(nil)
		giveBack()
	}
}

// overrunBinding is where a queue reports that it loses entries.
type overrunBinding struct {
	// binding is held for as long as BindEvents takes, over every other lock.
	binding sync.Mutex

	mu       sync.Mutex
	sink     EventSink
	reported bool // to one of them
}

// reportedOverrun reports whether an event queue was told that the queue loses entries.
func (q *core) reportedOverrun() bool {
	q.overrunTo.mu.Lock()
	defer q.overrunTo.mu.Unlock()
	return q.overrunTo.reported
}

// overran tells everybody who is bound to the queue that it loses entries, once. It is called by
// the reader, with the queue's lock held, and by whoever looks for deaths.
func (q *core) overran() {
	q.feeders.overran()
	q.overrunTo.mu.Lock()
	defer q.overrunTo.mu.Unlock()
	// One that takes none any more has a successor.
	if q.overrunTo.sink != nil && !q.overrunTo.reported {
		err := q.overrunTo.sink.postErr(&EventError{FID: q.fid, Err: EOverrun})
		q.overrunTo.reported = err == nil
	}
}

// newsOf is what a watch finds as events. The oldest says how many nobody remembers.
func newsOf(w *place.OwnerWatch, entry func(shm.Owner) PeerEntry) (out []peerNews) {
	dead, more := w.Look(processWatch.nudge)
	for _, o := range dead {
		out = append(out, peerNews{EventPeerDeath, entry(o)})
	}
	if len(out) > 0 {
		out[0].More = more
	}
	return out
}

// succession tells also of those who come: of the owners of an object of this user, one after the
// other.
type succession struct {
	place.OwnerWatch
	unnoted
	known uint64 // generation of the owner that this process knows of
}

func (s *succession) begin(obj *shm.Object) { s.known = s.Begin(obj).Generation }

func (s *succession) close([]peerNews) { s.Rest() }

func (s *succession) look(entry func(shm.Owner) PeerEntry) (out []peerNews) {
	out = newsOf(&s.OwnerWatch, entry)
	owner := s.Of.Owner()
	if owner.Generation > s.known && owner.State == shm.StateOwned {
		s.known = owner.Generation
		out = append(out, peerNews{EventPeerNew, entry(owner)})
	}
	return out
}

// ownerEntry is what an event says of an owner of an object.
func ownerEntry(role PeerRole, obj *shm.Object, o shm.Owner) PeerEntry {
	return PeerEntry{Role: role, PID: o.PID, PIDNS: o.PIDNS, StartTicks: o.StartTicks,
		Object: obj.Header().UUID, Generation: o.Generation}
}

// sinkID names an event queue to a successor of this process. Who writes to it may close it while
// it is bound.
func sinkID(obj *shm.Object) uint64 { return max(1, objectID(obj)&math.MaxInt64) }

// deathWatch is the one goroutine of this process that finds out who has died, for all its queues
// and writers that are bound to event queues, and for those who wait for lanes. The kernel's
// notices wake it; besides it looks every now and then for what no notice tells: those who came
// while nobody read, and those in other PID namespaces. It runs while anything is bound.
type deathWatch struct {
	mu      sync.Mutex
	bound   map[watched]struct{}
	running bool
	awake   chan struct{}
}

// watched is told to look: a *deathReport, or unwatchedLanes.
type watched interface{ report() }

var processWatch = deathWatch{bound: map[watched]struct{}{}, awake: make(chan struct{}, 1)}

// nudge makes the goroutine look now. It never blocks.
func (w *deathWatch) nudge() {
	select {
	case w.awake <- struct{}{}:
	default:
	}
}

func (w *deathWatch) add(r watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bound[r] = struct{}{}
	if !w.running {
		w.running = true
		go w.run()
	}
}

func (w *deathWatch) remove(r watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bound, r)
	w.nudge()
}

func (w *deathWatch) run() {
	t := time.NewTicker(time.Duration(sliceNs))
	defer t.Stop()
	var all []watched
	for {
		all = all[:0]
		w.mu.Lock()
		for r := range w.bound {
			all = append(all, r)
		}
		w.running = len(all) > 0
		w.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for i, r := range all {
			r.report()
			all[i] = nil
		}
		select {
		case <-w.awake:
		case <-t.C:
		}
	}
}

// deathFinder finds out about the deaths at one queue or writer. Its methods are called under the
// report's lock.
type deathFinder interface {
	// look returns what came to light since the last look.
	look() []peerNews
	// telling is called before an event is written, told after.
	telling(n *peerNews)
	told(n *peerNews)
	// close is given what was looked for and never reported.
	close(untold []peerNews)
}

// unnoted is of finders that leave no note for others of what was told.
type unnoted struct{}

func (unnoted) telling(*peerNews) {}
func (unnoted) told(*peerNews)    {}

// peerNews is an event that is due.
type peerNews struct {
	kind EventKind
	PeerEntry
}

// newsKept bounds how many events wait for room.
const newsKept = 1 << 12

// deathBinding is what is bound now of a queue or writer, and may be nothing.
type deathBinding struct {
	mu     sync.Mutex
	report *deathReport
	over   func() // called when nothing is bound any more, unless it is nil
}

// end unbinds, and returns who found what was reported, or nil. The lock is held.
func (b *deathBinding) end() (former deathFinder) {
	if r := b.report; r != nil {
		b.report = nil
		r.end()
		r.sink.unbind()
		former = r.who
	}
	return former
}

// bind has what who finds reported from now on, or nothing any more. who is given the finder whose
// report this one replaces, or nil.
func (b *deathBinding) bind(name string, fid FID, events EventSink,
	who func(former deathFinder) deathFinder) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if events != nil {
		if err := bindSink(name, events); err != nil {
			return err
		}
	}
	former := b.end()
	if events != nil {
		b.report = startReport(fid, events, who(former))
	} else if b.over != nil {
		b.over()
	}
	return nil
}

// bindSink keeps open what an object reports to.
func bindSink(name string, events EventSink) error {
	if kind.Absent(events) {
		return errAbsent("bind events")
	}
	if err := events.bind(); err != nil {
		return bindError(name, err)
	}
	return nil
}

// bindError says which object could not be bound to events.
func bindError(name string, err error) error {
	return &Error{Pkg: kind.Pkg, Op: "bind events", Name: name, Err: err}
}

// unbind is the end of what was bound, which nobody can bind any more.
func (b *deathBinding) unbind() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end()
}

// deathReport is one binding.
type deathReport struct {
	fid  FID
	sink EventSink

	mu      sync.Mutex
	who     deathFinder
	pending []peerNews
	refused []peerNews // for ever, by this sink
	closed  bool
	buf     []byte
}

// startReport begins to report what the deathFinder finds to the sink.
func startReport(fid FID, sink EventSink, who deathFinder) *deathReport {
	r := &deathReport{fid: fid, sink: sink, who: who}
	processWatch.add(r)
	processWatch.nudge()
	return r
}

// end stops it. When it returns nobody looks any more. What is pending is for whoever is bound
// next.
func (r *deathReport) end() {
	processWatch.remove(r)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.who.close(append(r.refused, r.pending...))
	}
}

// report writes the events that are due, as far as there is room. The rest waits for the next time.
func (r *deathReport) report() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	for _, n := range r.who.look() {
		if k := len(r.pending); k >= newsKept {
			r.pending[k-1].More += 1 + n.More
			continue
		}
		r.pending = append(r.pending, n)
	}
	for len(r.pending) > 0 {
		err := r.write(&r.pending[0])
		if errors.Is(err, ErrFull) {
			return
		}
		if err != nil && len(r.refused) < newsKept {
			r.refused = append(r.refused, r.pending[0])
		}
		r.pending = r.pending[1:]
	}
	r.pending = nil
}

// write is ErrFull if the event must wait. After any other error this sink takes none any more, and
// nobody was told: the next one that is bound may hear of it.
func (r *deathReport) write(n *peerNews) error {
	if n.kind == EventPeerDeath {
		crash.At(crash.DeathProven)
	}
	r.who.telling(n)
	r.buf = n.appendTo(r.buf[:0])
	ev := Event{Event: n.kind, FID: r.fid, Data: uint64(n.Lane), Payload: r.buf}
	if n.Role == PeerReader { // each has the queue under a FID of its own
		ev.FID.Generation = n.Generation
	}
	if n.kind == EventPeerDeath {
		crash.At(crash.DeathTelling)
	}
	err := r.sink.post(&ev, false)
	if errors.Is(err, ErrInvalid) { // it has no room for a payload of that length
		ev.Payload = nil
		err = r.sink.post(&ev, false)
	}
	if err == nil {
		if n.kind == EventPeerDeath {
			crash.At(crash.DeathWritten)
		}
		r.who.told(n)
	}
	return err
}
