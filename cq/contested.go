package cq

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// contestedMost bounds how long Attach waits for somebody who removes the queue. It is variable for
// tests of who does not wait in vain: how long that takes is not theirs to say.
var contestedMost = time.Second

// mayComeFree reports that there is, or may be in a moment, a lane that nobody has, though none was
// found: one was left since it was looked at, or its owner has not begun to write and attaches just
// now, or has it to remove the queue and may give it back.
func (h *dirHome) mayComeFree(queue shm.UUID, rows []kind.RowWords, opt shape) bool {
	for bit := 1; bit < opt.rows(); bit++ {
		if rows[bit].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue // nobody can have it afterwards
		}
		obj, err := h.openLane(bit)
		if errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if err != nil {
			continue
		}
		is := laneMayComeFree(obj, bit, queue, &rows[bit], opt)
		_ = obj.Close()
		if is {
			return true
		}
	}
	return false
}

func laneMayComeFree(obj *shm.Object, bit int, queue shm.UUID, row *kind.RowWords, opt shape) bool {
	if errors.Is(opt.attrs().LaneBelongs(obj, bit, queue), kind.ErrOtherQueue) {
		return true // of a queue that was destroyed: its writer removes it, or who collects it
	}
	words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(bit))
	if err != nil {
		return false
	}
	life, err := obj.Life()
	if err != nil {
		return false
	}
	if o := obj.Owner(); life != shm.Dead && o.State == shm.StateOwned {
		if words.Epochs[o.Generation%kind.LaneEpochs].Generation.Load() != o.Generation {
			return true
		}
		if _, died, err := obj.OwnerDied(); err != nil || !died {
			return false
		}
	}
	// Its lock may be held all the same, for a moment: by who just leaves it, or looks whether it
	// may claim it. Or by a child of a dead owner, for longer: then there was nothing to wait for.
	return opt.attrs().LaneBelongs(obj, bit, queue) == nil && lanePossible(obj, bit, opt.Size,
		row) == nil
}

// giveBack gives up a lane that was claimed too late. Its name goes only if nobody can use the
// queue any more. The queue's state does not say that: who removes it can take that back, and a
// reader that adopts it meanwhile has this lane open, perhaps with entries that it has not read.
func (w *Writer) giveBack(row *kind.RowWords) {
	last, _ := w.door.leave(w.obj, func() bool {
		gone, err := w.door.gone(w.reader)
		return err == nil && gone || row.Bell.Parked.Load()&kind.RowClosed != 0
	})
	if last {
		w.door.vacate()
	}
}

// claimedError is ErrLanes of a queue that may have a lane in a moment.
type claimedError struct{ lanes error }

func (e *claimedError) Error() string   { return e.lanes.Error() }
func (e *claimedError) Unwrap() []error { return []error{e.lanes, errContested} }

// contest is Attach's patience with others who have what it wants, for as long as they do without a
// break.
type contest struct {
	since time.Time // zero: none
	pause time.Duration
}

// contestedPause is the longest pause between two tries: each looks at every lane.
const contestedPause = 80 * time.Millisecond

// wait says whether to try again after an error, and in how long.
func (c *contest) wait(err error, now time.Time) (pause time.Duration, again bool) {
	switch {
	case !errors.Is(err, errContested):
		c.since = time.Time{}
		return 0, false
	case c.since.IsZero():
		c.since, c.pause = now, attachEvery
	default:
		c.pause = min(2*c.pause, contestedPause)
	}
	return c.pause, now.Sub(c.since) < contestedMost
}

// outcome is the error for good: whoever has the lanes of a queue that nobody is known to remove
// keeps them.
func (c *contest) outcome(err error) error {
	if claimed := new(claimedError); errors.As(err, &claimed) {
		return claimed.lanes
	}
	return err
}

// errContested: who attaches met somebody who removes the queue.
var errContested error = kind.NewSentinel("somebody removes the queue, or died over it",
	Errno(syscall.EBUSY), []error{ErrBusy})

const hintContested = "try again; if who removes it has died, adopt the queue or collect it"

func noLane(op, name string, opt shape) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: name, Field: "lanes", Got: opt.MaxLanes,
		Err:  ErrLanes,
		Hint: "detach a writer, or create the queue with a larger MaxLanes"}
}

// takesWriters is nil if writers may attach to a queue in a state.
func takesWriters(state uint64, name string) error {
	switch state {
	case kind.StateClosed:
		return ErrClosed
	case kind.StateRemoving:
		return &Error{Pkg: kind.Pkg, Op: "attach", Name: name, Err: errContested, Hint: hintContested}
	}
	return nil
}
