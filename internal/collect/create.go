package collect

import (
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Create is [shm.Dir.Create] in the place of something dead.
func Create(d *shm.Dir, name string, s shm.Spec, init func(*shm.Object) error) (*shm.Object,
	error) {
	obj, err := d.Create(name, s, init)
	if errors.Is(err, fs.ErrExist) && RemoveFormer(d, name) == nil {
		_ = d.RemoveSub(name) // that of a queue
		obj, err = d.Create(name, s, init)
	}
	return obj, err
}

// CreateIn is [shm.Dir.CreateIn] in the place of something dead.
func CreateIn(d *shm.Dir, sub, name string, s shm.Spec, init func(*shm.Object) error) (*shm.Object,
	*shm.Dir, error) {
	obj, dir, err := d.CreateIn(sub, name, s, init)
	if errors.Is(err, fs.ErrExist) && RemoveFormer(d, sub) == nil {
		obj, dir, err = d.CreateIn(sub, name, s, init)
	}
	return obj, dir, err
}

// RemoveFormer makes room for what is created where something dead stands, of whatever kind. It
// removes nothing that waits for a successor, not even what is aside, and no socket, and leaves the
// directory of a queue. It waits for others who remove the same, as long as a [Contest] lasts.
func RemoveFormer(d *shm.Dir, name string) error {
	var met Contest
	for {
		err := removeOnce(d, name, Options{forNew: true})
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a collector was faster
		}
		if errors.Is(err, shm.ErrStale) {
			err = ErrContested // or is about to be
		}
		pause, again := met.Wait(err, time.Now())
		if !again {
			return err
		}
		time.Sleep(pause)
	}
}

// ErrContested: who attaches or creates met somebody who removes the same.
var ErrContested error = kind.NewSentinel("somebody removes it, or died over that", syscall.EBUSY,
	[]error{kind.ErrBusy})

// ContestMost bounds how long a contest lasts. It is variable for tests of who does not wait in
// vain: how long that takes is not theirs to say.
var ContestMost = time.Second

// Pauses between two tries: each looks at every lane.
const (
	contestFirst = 5 * time.Millisecond
	contestPause = 80 * time.Millisecond
)

// Contest is the patience with others who have what one wants, for as long as they do without a
// break.
type Contest struct {
	since time.Time // zero: none
	pause time.Duration
}

// Wait says whether to try again after an error, and in how long.
func (c *Contest) Wait(err error, now time.Time) (pause time.Duration, again bool) {
	switch {
	case !errors.Is(err, ErrContested):
		c.since = time.Time{}
		return 0, false
	case c.since.IsZero():
		c.since, c.pause = now, contestFirst
	default:
		c.pause = min(2*c.pause, contestPause)
	}
	return c.pause, now.Sub(c.since) < ContestMost
}

// Outcome is the error for good: whoever has what nobody is known to remove keeps it.
func (c *Contest) Outcome(err error) error {
	if taken := new(TakenError); errors.As(err, &taken) {
		return taken.Err
	}
	return err
}

// TakenError is an error for want of something that somebody may give back in a moment.
type TakenError struct{ Err error }

// Error is that of the want.
func (e *TakenError) Error() string { return e.Err.Error() }

// Unwrap also says that it is worth while to try again.
func (e *TakenError) Unwrap() []error { return []error{e.Err, ErrContested} }
