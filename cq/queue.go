package cq

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Queue is the reading end of a completion queue (fid_cq). It has one living reader at a time and
// as many writers as it has lanes.
//
// A Queue serves one goroutine at a time, unless Options.Shared; waiting counts. Signal, Close,
// Detach, Stats and the methods that return options may be called from anywhere.
type Queue struct{ core }

func newQueue() *Queue {
	q := new(Queue)
	q.whole = q
	return q
}

// given is what a constructor returns: nothing beside an error.
func given[Q any](q *Q, err error) (*Q, error) {
	if err != nil {
		return nil, err
	}
	return q, nil
}

// opened implements whole.
func (q *Queue) opened(made bool) error { return q.enterSet(q, made) }

// prune implements whole: completions are not purged.
func (q *Queue) prune() {}

// Create makes a queue and becomes its reader (fi_cq_open). It may be called from anywhere.
//
// A queue that is [Named] and exists is fs.ErrExist (EEXIST), unless it is ephemeral and everybody
// who had to do with it is provably dead: then it is removed first. Others who remove it, or look
// whether they can have it, are waited for, up to a second. Other errors are ErrInvalid,
// errors.ErrUnsupported for a wait object that is not there, and those of creating shared memory.
//
// A queue that is [Unnamed] lives as long as its reader: Detach is errors.ErrUnsupported, and
// Options.Lifetime means nothing. Writers get it over a connected socket, by [Queue.Accept] here
// and [Attach] there. With Options.Trust other users may write to it, and take what a reader left
// to the next one: see [CrossUser]. The bell of this process, which writers of the same user get as
// well, stands in the default directory if there is one: see [shm.DefaultPath].
func Create(p Place, o Options) (*Queue, error) {
	if err := p.creates("create", placeNamed|placeUnnamed, o.Existing); err != nil {
		return nil, err
	}
	o, err := o.resolve("create", p.name)
	if err != nil {
		return nil, err
	}
	q := newQueue()
	return given(q, q.create(p, queueShape(o)))
}

// Open becomes the reader of a queue that exists and has no living reader, or makes one
// (fi_cq_open); a living reader is a [*shm.BusyError]. It may be called from anywhere.
//
// Of the fields that are fixed when a queue is created, those of o that are not zero must be as
// they were fixed: else an [*Error] names the field, what the queue has (Got) and what was asked
// for (Want); it is ErrFormat for a larger format, ErrInvalid for anything else. All other options
// are this reader's own: what the previous one chose is not kept. What that one had been handed and
// not released comes again, marked FlagRedelivered.
//
// Other errors are those of Create and of opening shared memory, shm.ErrKind for another kind of
// object, and ErrBusy if others create and destroy it all the time. With Options.Existing no queue
// is made: what is not there is fs.ErrNotExist, and a queue that its reader just destroys
// ErrClosed.
func Open(p Place, o Options) (*Queue, error) {
	return openEither(p, o.Existing, func() (*Queue, error) {
		q := newQueue()
		return given(q, q.adopt(p, queueShape(o)))
	}, func() (*Queue, error) { return Create(p, o) })
}

// Remove removes a queue, event queue, counter or address vector that is [Named], whatever its
// lifetime, if nobody alive uses it and it keeps no unread entries for a successor: else it fails
// with ErrBusy, and nothing that counts has changed. Something of another kind is [shm.ErrKind],
// and what is not there is no error. ENOTEMPTY says that a queue is gone, and that its directory
// holds foreign files, or the lane of a writer that came late and removes it. Other errors say that
// what stands there cannot be judged. Any number of processes may remove at once, while others
// create, open and attach.
func Remove(p Place) error {
	if err := p.only("remove", placeNamed); err != nil {
		return err
	}
	return collect.Remove(p.dir, p.name, collect.Options{Waiting: true, Kinds: []shm.Kind{
		shm.KindQueue, shm.KindEvents, shm.KindCounter, shm.KindAddresses}})
}

// Options returns how the queue was created, with what was left open filled in.
func (q *Queue) Options() Options { return q.opt.Options }

// SignalAll ends every blocking read that waits now and leaves nothing for later ones. They
// return ErrSignaled.
func (q *Queue) SignalAll() error {
	if q.opt.Wait == WaitNone {
		return &Error{Pkg: kind.Pkg, Op: "signal", Name: q.name, Err: ErrNoWait}
	}
	if !q.guard.enterAny() {
		return &Error{Pkg: kind.Pkg, Op: "signal", Name: q.name, Err: ErrClosed}
	}
	defer q.guard.leaveAny()
	q.broadcast.Add(1)
	q.bell.Kick()
	return nil
}

// core is what a queue and an event queue are alike: the reading end of the lanes of writers. It is
// embedded by value in both, which add how their entries are read.
type core struct {
	name  string
	fid   FID
	opt   shape
	side  *place.Lanes
	obj   *shm.Object
	words *kind.QueueWords
	rows  []kind.RowWords
	bell  *wake.Bell
	face  *wake.Face
	spin  time.Duration
	guard guard

	widest  uintptr    // format that may be read
	lanes   []*lane    // by row; nil until seen. Under the bell's lock.
	cursor  cursor     // where the next read begins
	errLane *lane      // has an error entry at its head, which a read stopped at
	from    *Lane      // of the read that is under way, if it asks whose the entries are
	out     *lane      // has entries handed out by Peek
	overrun *lane      // overran and is drained: nothing new is reported
	final   bool       // that was reported
	broken  []error    // lanes given up, to be reported once each
	starved []int      // lanes that could not be opened now, to be marked later
	breaks  sync.Mutex // of these, whose parts must fit each other even if two goroutines are here
	later   retry.Later

	open   atomic.Pointer[lane] // of a shared queue: whose door was opened last
	vacant *lane                // stands for none that can have anything; nil unless there are doors

	broadcast   atomic.Uint64 // grows with every SignalAll
	redelivered bool          // of what the last Read or Peek returned
	sliced      atomic.Bool   // a death or a mark would not be noticed: wake up now and then
	noBarrier   atomic.Bool   // the kernel refuses membarrier since the queue was opened
	changes     uint64        // of the reader side, at the last full look

	holders   holders // sets, channels and feeders of this process
	feeders   feeders
	overrunTo overrunBinding
	keeper    *condKeeper // of WaitMutexCond
	seatMu    sync.Mutex
	deaths    deathBinding            // of writers
	leavers   leavers                 // lanes of other users that have ended, and may not be drained
	given     atomic.Uint64           // lanes given up
	bit       int                     // in the process's bell, -1 before the first set; under seatMu
	seated    atomic.Bool             // it has a bit
	opening   bool                    // it enters the set that it was opened in
	channel   atomic.Pointer[Channel] // that it is attached to
	self      *Writer                 // on lane 0
	selfMu    sync.Mutex
	watches   sync.Mutex    // guards lane.stop and unwatched
	unwatched []int         // lanes that had a writer whose death gives no notice
	gone      chan struct{} // closed when the queue is

	whole whole // that it is embedded in
}

// whole is what a core is embedded in.
type whole interface {
	Waitable
	// opened does what is left to do when the core is there. It is of a queue that was made, or
	// adopted.
	opened(made bool) error
	// prune takes out what was purged: it is nothing to wake for.
	prune()
}

// create makes a queue and becomes its reader. Its options are resolved.
func (q *core) create(p Place, o shape) (err error) {
	if barrier.All() != nil {
		o.WritersPay = true
	}
	if p.form == placeUnnamed {
		return failed("create", p.name, q.createMemfds(p.name, o))
	}
	if o.Trust != SameUser {
		return errNamedTrust("create", p.name)
	}
	for range 16 {
		// The last party of an earlier queue may be removing the directory.
		if err = q.createOnce(p.dir, p.name, o); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return failed("create", p.name, err)
}

func (q *core) createOnce(d *shm.Dir, name string, o shape) error {
	obj, dir, err := collect.CreateIn(d, name, kind.ReaderFile, o.attrs().ReaderSpec(name),
		kind.InitReader)
	if err != nil {
		return err
	}
	return q.init(place.NewNamed(d, name, dir).Owned(), obj, name, o, true)
}

// adopt becomes the reader of a queue that has none.
func (q *core) adopt(p Place, want shape) error {
	dir, err := p.dir.Sub(p.name, false)
	if err != nil {
		return failed("adopt", p.name, err)
	}
	if err := q.adoptIn(p.dir, dir, p.name, want); err != nil {
		_ = dir.Close()
		return failed("adopt", p.name, err)
	}
	return nil
}

func (q *core) adoptIn(d, dir *shm.Dir, name string, want shape) error {
	obj, err := dir.Open(kind.ReaderFile, shm.ReadWrite)
	if err != nil {
		return err
	}
	o, err := stored("adopt", name, obj.Header())
	if err == nil {
		err = o.checkKind("adopt", name, want)
	}
	if err == nil {
		err = want.agrees(o, name)
	}
	if err == nil {
		err = obj.Claim(func() error {
			if err := kind.RefuseClosed("open", name, obj); err != nil {
				return err
			}
			return dropSignal(obj, o)
		})
	}
	if err == nil && !o.WritersPay && barrier.All() != nil {
		err = kind.Refuse("adopt", name, "membarrier", "refused by the kernel",
			"allowed, as for the reader that created the queue", ErrInvalid)
	}
	if err != nil {
		_ = obj.Close()
		return err
	}
	crash.At(crash.AdoptClaimed)
	o.Options = want.fixed(o.Options)
	return q.init(place.NewNamed(d, name, dir).Owned(), obj, name, o, false)
}

// dropSignal takes the signal that was left for a former reader, while nobody is the reader: what
// comes later is for the next one.
func dropSignal(obj *shm.Object, o shape) error {
	hints, err := hintsOf(obj, true, o)
	if err == nil {
		hints.DropSignal()
	}
	return err
}

// openEither adopts or creates, whichever is possible, though others do the same at once.
func openEither[Q any](p Place, existing bool, adopt, create func() (*Q, error)) (*Q, error) {
	if err := p.only("open", placeNamed); err != nil {
		return nil, err
	}
	for range 16 {
		q, err := adopt()
		if existing {
			return q, err
		}
		another := errors.Is(err, shm.ErrTruncated) || errors.Is(err, shm.ErrKind)
		if another && collect.RemoveFormer(p.dir, p.name) == nil {
			err = fs.ErrNotExist // it was cut or of another kind, and nobody had what was left
		}
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrClosed) &&
			!errors.Is(err, shm.ErrStale) { // removed between our finding and our claiming it
			return q, err
		}
		q, err = create()
		if err == nil || !errors.Is(err, fs.ErrExist) {
			return q, err
		}
	}
	return nil, &Error{Pkg: kind.Pkg, Op: "open", Name: p.name, Err: ErrBusy,
		Hint: "try again: others create and destroy it all the time"}
}

// init maps the words of an object that this process owns. If that fails, one that was just made
// goes again.
func (q *core) init(names *place.Named, obj *shm.Object, name string, o shape, made bool) error {
	h := place.NewLanes(host{q}, names, name, o.attrs(), obj)
	*q = core{whole: q.whole, name: name, opt: o, side: h, obj: obj, bit: -1,
		spin: spin.Budget(o.Spin), lanes: make([]*lane, o.rows()), gone: make(chan struct{})}
	q.guard.shared, q.widest, q.later.Try = o.Shared, o.Format.bytes(), q.markAgain
	h.UserLanes = o.UserLanes
	q.deaths.over = func() { h.KeepDeaths(false) }
	if o.Shared && !o.events {
		q.vacant = &lane{words: new(kind.LaneWords)}
		obj.Outlast()
	}
	err := q.start()
	if err == nil && o.Shared {
		h.Forward(q.bell)
	}
	if err == nil && q.opt.Wait == WaitMutexCond {
		q.keeper, err = newCondKeeper(q.face.FD())
	}
	if err == nil {
		err = q.whole.opened(made)
	}
	if err == nil {
		return nil
	}
	if made {
		_ = q.drop(q.destroy)
		h.RemoveDir()
	} else {
		_ = q.drop(obj.Release)
	}
	_ = h.Close()
	return err
}

func (q *core) start() (err error) {
	if q.words, err = kind.WordsOf[kind.QueueWords](q.obj, kind.SectQueue, 0); err != nil {
		return err
	}
	if q.rows, err = kind.RowsOf(q.obj, q.opt.rows()); err != nil {
		return err
	}
	q.side.Rows = q.rows
	hints, err := hintsOf(q.obj, true, q.opt)
	if err != nil {
		return err
	}
	if q.opt.Wait.hasFD() {
		if q.face, err = q.side.NewFace(); err != nil {
			return err
		}
		q.words.Face.Store(uint64(q.face.EventFD()) + 1)
	} else {
		q.words.Face.Store(0)
	}
	generation := q.obj.Generation()
	q.fid = objectFID(q.opt.fidKind(), q.obj)
	q.words.FaceGen.Store(generation)
	q.words.Bell.Generation.Store(0) // the predecessor's is no use
	q.bell = wake.NewBell(wake.Config{Arm: &q.words.Arm, Hints: hints,
		Lanes: q.opt.rows(), Generation: uint16(generation), Face: q.face,
		Open: q.openLane, Marked: q.laneMarked, Shared: q.opt.Shared,
		Refused: q.barrierRefused})
	q.bell.Lock()
	defer q.bell.Unlock()
	if err := q.ownLane(); err != nil {
		return err
	}
	q.words.State.CompareAndSwap(kind.StateRemoving, kind.StateOpen) // whoever did that died over it
	if q.words.State.Load() == kind.StateOverrun {
		q.bell.SetFlags(kind.RowOverrun)
		q.overrun = q.lanes[0]
	}
	crash.At(crash.AdoptStarted)
	if !q.opt.WritersPay {
		// The previous reader may have parked a lane and died before it paid for that.
		if err := barrier.All(); err != nil {
			return err
		}
	}
	// Hints died with whoever took them: look at every lane there may be.
	err = q.findLanes(true)
	q.settle()
	return err
}

// UserContext returns the UserContext of its options.
func (q *core) UserContext() any { return q.opt.UserContext }

// Signal ends one wait of one waiter (fi_cq_signal): one that waits now, or else the next one that
// finds nothing. A blocking read ends with ErrSignaled; a wait on a set returns the queue, once; a
// wait on the descriptor ends, and the TryWait that follows is ErrSignaled, once. Of several
// waiters any one takes it, and the others sleep on; one on a descriptor may look and find nothing.
// Calls that do not wait leave it, signals do not add up, and none is left to a successor. A queue
// without wait object is ErrNoWait.
func (q *core) Signal() error {
	if q.opt.Wait == WaitNone {
		return &Error{Pkg: kind.Pkg, Op: "signal", Name: q.name, Err: ErrNoWait}
	}
	if !q.guard.enterAny() {
		return &Error{Pkg: kind.Pkg, Op: "signal", Name: q.name, Err: ErrClosed}
	}
	defer q.guard.leaveAny()
	q.bell.Signal()
	return nil
}

// Stats are counts of a queue's reader.
type Stats struct {
	Read     uint64 // entries handed to the application, by this reader and those before it
	Sleeps   uint64 // system calls to sleep
	Barriers uint64 // system calls that paid for the order of writers' publishes
	Resets   uint64 // system calls of TryWait, to reset the descriptor
	Lanes    int    // lanes that entries were ever taken from
	GivenUp  uint64 // lanes whose writers could not be trusted; see LaneError
	Retired  uint64 // lanes of other users that have ended
	// NoBarrier says that membarrier(2) was allowed when the queue was opened and is refused by now,
	// which a seccomp filter does that comes late. No entry is lost, but a wake may be: each sleep
	// ends after 100 ms and looks at all lanes. Install filters first, or allow that call.
	NoBarrier bool
}

// Stats returns counters. It may be called from anywhere while the queue is open.
func (q *core) Stats() Stats {
	if !q.guard.enterAny() {
		return Stats{}
	}
	defer q.guard.leaveAny()
	s := Stats{GivenUp: q.given.Load(), NoBarrier: q.noBarrier.Load()}
	s.Sleeps, s.Barriers, s.Resets = q.bell.Counts()
	for i := range q.rows {
		s.Retired += q.rows[i].Retired.Load()
		if n := q.rows[i].Head.Load(); n > 0 {
			s.Read += n
			s.Lanes++
		}
	}
	return s
}
