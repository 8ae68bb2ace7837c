package ctl

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// States: one word for what is to be known first of a queue, a lane or another object. Of several
// that apply the one that comes first in [States] is given.
const (
	StateVersion  = "version"   // made by another version of the library
	StateDenied   = "denied"    // of another user, or open to others
	StateCorrupt  = "corrupt"   // damaged, or one of its lanes is
	StateError    = "error"     // cannot be looked at for another reason
	StateClosed   = "closed"    // destroyed by its owner
	StateOverrun  = "overrun"   // entries were lost
	StateDead     = "dead"      // its owner died
	StateLockKept = "lock-kept" // its owner died, and a process that it forked keeps the lock
	StateLockLost = "lock-lost" // its owner lives without the lock, so that nobody may take it
	StateReleased = "released"  // left by its owner to a successor
	StateStopped  = "stopped"   // its owner lives and is stopped by a signal or debugger
	StateFull     = "full"      // a lane has no room
	StateOpen     = "open"      // all is well
)

// States returns all states, those that matter more first.
func States() []string {
	return []string{StateVersion, StateDenied, StateCorrupt, StateError, StateClosed, StateOverrun,
		StateDead, StateLockKept, StateLockLost, StateReleased, StateStopped, StateFull, StateOpen}
}

// stateOfError is the state of what cannot be looked at.
func stateOfError(err error) string {
	switch {
	case errors.Is(err, cq.ErrClosed):
		return StateClosed
	case errors.Is(err, shm.ErrVersion):
		return StateVersion
	case errors.Is(err, shm.ErrOwner), errors.Is(err, fs.ErrPermission):
		return StateDenied
	case errors.Is(err, shm.ErrCorrupt), errors.Is(err, shm.ErrTruncated),
		errors.Is(err, shm.ErrKind):
		return StateCorrupt
	}
	return StateError
}

// lifeKept is how an object stands with a process that died, of which a child holds the lock.
const lifeKept = "lock kept"

// state is how an object stands with its owner, open if there is nothing to say.
func (p *Process) state() string {
	if p == nil || p.Life == nil {
		return StateOpen
	}
	switch *p.Life {
	case shm.Released.String():
		return StateReleased
	case shm.Dead.String():
		return StateDead
	case lifeKept:
		return StateLockKept
	case shm.LockLost.String():
		return StateLockLost
	}
	if p.Stopped != nil && *p.Stopped {
		return StateStopped
	}
	return StateOpen
}

// state sums a queue up, of which published is what its reader says.
func (q *Queue) state(published uint64) string {
	switch published {
	case kind.StateOpen:
	case kind.StateClosed, kind.StateRemoving:
		return StateClosed
	case kind.StateOverrun:
		return StateOverrun
	default:
		return StateCorrupt
	}
	own := q.Reader.state()
	word := StateOpen
	for i := range q.Lanes {
		switch l := &q.Lanes[i]; {
		case l.Error != nil || *l.Poisoned:
			return StateCorrupt
		case *l.Overrun:
			word = StateOverrun
		case word == StateOpen && *l.Depth == *q.Capacity:
			word = StateFull
		}
	}
	if word == StateOverrun || own == StateOpen {
		return word
	}
	return own
}

// state sums a lane up.
func (l *Lane) state(capacity uint64) string {
	switch own := l.Process.state(); {
	case *l.Poisoned:
		return StateCorrupt
	case *l.Overrun:
		return StateOverrun
	case own == StateOpen && *l.Depth == capacity:
		return StateFull
	default:
		return own
	}
}

// state sums another object up.
func (o *Object) state() string {
	switch {
	case o.Addresses != nil && o.Addresses.Closed:
		return StateClosed
	case o.Counter != nil && len(o.Counter.Handles) == 0:
		return StateReleased
	}
	return o.Process.state()
}
