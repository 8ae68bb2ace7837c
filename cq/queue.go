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

// Create makes a queue and becomes its reader (fi_cq_open). A queue of that name that exists is
// fs.ErrExist (EEXIST), unless it is ephemeral and everybody who had to do with it is provably
// dead: then it is removed first. Others who remove it, or look whether they can have it, are
// waited for, up to a second. Other errors are ErrInvalid, errors.ErrUnsupported for a wait object
// that is not there, and those of creating shared memory.
func Create(d *shm.Dir, name string, o Options) (*Queue, error) {
	o, err := o.resolve("create", name)
	if err != nil {
		return nil, err
	}
	q := newQueue()
	return given(q, q.create(d, name, queueShape(o)))
}

// Remove removes a queue, event queue, counter or address vector by its name, whatever its
// lifetime, if nobody alive uses it and it keeps no unread entries for a successor: else it fails
// with ErrBusy, and nothing that counts has changed. Something of another kind is [shm.ErrKind],
// and what is not there is no error. ENOTEMPTY says that a queue is gone, and that its directory
// holds foreign files, or the lane of a writer that came late and removes it. Other errors say that
// what stands there cannot be judged. Any number of processes may remove at once, while others
// create, adopt and attach.
func Remove(d *shm.Dir, name string) error {
	return collect.Remove(d, name, collect.Options{Waiting: true, Kinds: []shm.Kind{shm.KindQueue,
		shm.KindEvents, shm.KindCounter, shm.KindAddresses}})
}

// Adopt becomes the reader of a queue that exists and has no living reader; a living one is a
// [*shm.BusyError]. Of the fields that are fixed when a queue is created, those of want that are
// not zero must be as they were fixed: else an [*Error] names the field, what the queue has (Got)
// and what was asked for (Want); it is ErrFormat for a larger format, ErrInvalid for anything else.
// All other options are this reader's own: what the previous one chose is not kept. What that one
// had been handed and not released comes again, marked FlagRedelivered.
func Adopt(d *shm.Dir, name string, want Options) (*Queue, error) {
	q := newQueue()
	return given(q, q.adopt(d, name, queueShape(want)))
}

// Open adopts the queue if it exists, and creates it if not (fi_cq_open). Errors are those of Adopt
// and Create, and ErrBusy if others create and destroy it all the time.
func Open(d *shm.Dir, name string, o Options) (*Queue, error) {
	return openEither(d, name, func() (*Queue, error) { return Adopt(d, name, o) },
		func() (*Queue, error) { return Create(d, name, o) })
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
