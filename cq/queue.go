package cq

import (
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
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
