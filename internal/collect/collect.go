// Package collect finds what is garbage and removes it, under the locks that prove it. It stands
// below cq: who creates an object removes first what a dead one of that name left.
//
// # Files
//
//	collect   what may be asked for: Assess, Remove, Create in the place of something dead, Destroy
//	assess    a look from outside, by read-only mappings and without locks
//	remove    the proof: every lock, and a last look while they are held
//	leftover  sockets that nobody has bound, and objects that were truncated
package collect

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Fate says what may become of something that has a name.
type Fate string

// The fates. Only what is Garbage is ever removed, and only while the locks prove that it still is.
const (
	Garbage    Fate = "garbage"    // everybody who used it is provably gone, and nobody is to come
	Living     Fate = "living"     // a process that lives has it, if only to remove it
	Left       Fate = "left"       // left by its owner, for a successor
	Persistent Fate = "persistent" // made to wait for a successor
	Unread     Fate = "unread"     // one of the last two, with entries that nobody has read
	LockLost   Fate = "lock lost"  // its owner lives and has lost the lock: nobody may claim it
	Foreign    Fate = "foreign"    // nothing of this library, or nothing that it knows
)

// Remains says how something stands with the processes that use it.
type Remains struct {
	Kind      shm.Kind // 0: the directory of a queue that is gone, a socket, or what was truncated
	Socket    bool
	Fate      Fate
	Owner     shm.Owner // one that lives, of Living and LockLost; zero if none is known
	Unread    uint64    // entries of a queue that were not read
	Counted   bool      // Unread is known
	SizeBytes uint64    // of all its objects
	Truncated bool      // it, or the reader's object, was truncated: what it was is not known
}

// Options say what is meant. The zero value is whatever has the name, if nobody is to come for it.
type Options struct {
	// Waiting also removes what is persistent or was left to a successor, and memory that entries
	// may refer to, if nothing in it is unread and nobody alive uses it.
	Waiting bool
	// Kinds are those that are meant, all if there are none: else the error is shm.ErrKind.
	Kinds []shm.Kind
	// Object is the one that is meant, any if it is zero. Another one is fs.ErrNotExist, and so
	// is one that was truncated: whose it was is not known.
	Object shm.UUID

	forNew bool // to make room for a new one, which asks for the name
}

// errKept: what was to be removed is not garbage, or no longer.
var errKept error = kind.NewSentinel("it is in use, or waits for a successor", syscall.EBUSY,
	[]error{kind.ErrBusy})

// target is what a name led to. That is looked at and removed, whatever the name means by then.
type target struct {
	at   *shm.Dir // where it has its name
	name string
	dir  *shm.Dir // the directory of a queue, or nil
	main string   // the object that all depends on, in the queue's directory or in at
	o    Options
}

// find opens the directory of a queue; the caller closes it. What is no directory is not opened.
func find(d *shm.Dir, name string, o Options) (*target, error) {
	t := &target{at: d, name: name, main: name, o: o}
	dir, err := d.Sub(name, false)
	if err == nil {
		// Nobody waits for a queue whose maker died before it got its own name.
		t.o.Waiting = o.Waiting || shm.IsAside(name) && !o.forNew
		t.dir, t.main = dir, kind.ReaderFile
	} else if !isNoDirectory(err) {
		return nil, err
	}
	if len(o.Kinds) > 0 && !slices.ContainsFunc(o.Kinds, t.hasForm) {
		_ = t.dir.Close()
		return nil, kind.Refuse("find", name, "a directory", t.isQueue(), o.Kinds, shm.ErrKind)
	}
	return t, nil
}

// isNoDirectory reports whether an error of opening a directory says that something else stands
// there, or stood there when it was opened; or that its name is that of a bell.
func isNoDirectory(err error) bool {
	return errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) ||
		errors.Is(err, shm.ErrName) || errors.Is(err, shm.ErrKind)
}

func (t *target) isQueue() bool { return t.dir != nil }

// hasForm reports whether the target can be of a kind: queues have a directory each.
func (t *target) hasForm(k shm.Kind) bool {
	return t.isQueue() == (k == shm.KindQueue || k == shm.KindEvents)
}

// objectDir returns where the target's objects have their names.
func (t *target) objectDir() *shm.Dir {
	if t.isQueue() {
		return t.dir
	}
	return t.at
}

// admits refuses an object that is not meant.
func (o *Options) admits(obj *shm.Object) error {
	h := obj.Header()
	if len(o.Kinds) > 0 && !slices.Contains(o.Kinds, h.Kind) {
		return kind.Refuse("find", obj.Name(), "kind", h.Kind, o.Kinds, shm.ErrKind)
	}
	if o.Object != (shm.UUID{}) && o.Object != h.UUID {
		return fs.ErrNotExist
	}
	return nil
}

func (t *target) isAside() bool { return t.isQueue() && shm.IsAside(t.name) }

// moved reports whether a queue that was aside has got its own name since, under which it may wait
// for a successor.
func (t *target) moved() (bool, error) {
	if !t.isAside() {
		return false, nil
	}
	named, err := leadsTo(t.at, t.name, t.dir)
	return err == nil && !named, err
}

// Assess looks at what has a name: a queue's directory, another object, or a socket. It does so by
// read-only mappings: no lock is taken and nobody notices. An object that means nothing without its
// process, as a bell does, is garbage when that is gone. Regions are persistent: entries may refer
// to them, and nothing in them says whether. An error says that it cannot be assessed: it is
// damaged, of another version, or of another user.
func Assess(d *shm.Dir, name string, o Options) (r Remains, err error) {
	t, err := find(d, name, o)
	if err != nil {
		return r, kind.Failed("assess", name, err)
	}
	defer t.dir.Close()
	if r, err = t.assess(); err == nil && r.Fate == Garbage {
		var moved bool
		if moved, err = t.moved(); moved {
			err = fs.ErrNotExist
		}
	}
	return r, kind.Failed("assess", name, err)
}

// Remove removes what [Assess] calls garbage, if the locks of all its objects prove that it is
// still so. Any number of processes may do so at once, while others create, adopt and attach.
// Otherwise it fails with [kind.ErrBusy], and nothing that counts has changed. What is not there is
// no error. ENOTEMPTY says that a queue is gone, and that its directory holds foreign files, or the
// lane of a writer that came late and removes it. Other errors are those of [Assess].
func Remove(d *shm.Dir, name string, o Options) error {
	err := removeOnce(d, name, o)
	for n := 1; n < staleTries && errors.Is(err, shm.ErrStale); n++ {
		err = removeOnce(d, name, o) // what is left, or stands there instead
	}
	if errors.Is(err, shm.ErrStale) {
		err = ErrContested
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return kind.Failed("remove", name, err)
	}
	return nil
}

// staleTries bounds how often others may remove what we have opened.
const staleTries = 8

// Create is [shm.Dir.Create] in the place of something dead.
func Create(d *shm.Dir, name string, s shm.Spec, init func(*shm.Object) error) (*shm.Object,
	error) {
	obj, err := d.Create(name, s, init)
	if again, why := makesRoom(d, name, err); !again {
		return obj, why
	}
	_ = d.RemoveSub(name) // that of a queue
	return d.Create(name, s, init)
}

// CreateIn is [shm.Dir.CreateIn] in the place of something dead.
func CreateIn(d *shm.Dir, sub, name string, s shm.Spec, init func(*shm.Object) error) (*shm.Object,
	*shm.Dir, error) {
	obj, dir, err := d.CreateIn(sub, name, s, init)
	if again, why := makesRoom(d, sub, err); !again {
		return obj, dir, why
	}
	return d.CreateIn(sub, name, s, init)
}

// makesRoom reports whether something dead had the name that a call found taken, and is gone. That
// it could not be looked at, for want of descriptors say, does not mean that the name is taken.
func makesRoom(d *shm.Dir, name string, err error) (again bool, why error) {
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	switch former := RemoveFormer(d, name); {
	case former == nil:
		return true, nil
	case kind.Starved(former):
		err = former
	}
	return false, err
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

// ErrGone: the last who had an object removed it between our finding it and our taking a seat
// there.
var ErrGone = fmt.Errorf("the object was just removed: %w", fs.ErrNotExist)

// Sit takes a seat at an object that nobody owns. Whoever creates or removes it has all of them for
// a moment. Once there is a seat nobody can remove the object. If it had a name, and has none by
// then, it is ErrGone.
func Sit(obj *shm.Object, seats shm.Seats, named bool) (seat *shm.Seat, err error) {
	const tries = 2000
	var busy *shm.BusyError
	for range tries {
		seat, err = seats.Take()
		if err != nil && !errors.As(err, &busy) {
			return nil, err
		}
		if named {
			linked, e := obj.Linked()
			if e == nil && !linked {
				e = ErrGone
			}
			if e != nil {
				if seat != nil {
					seat.Leave()
				}
				return nil, e
			}
		}
		if err == nil {
			return seat, nil
		}
		time.Sleep(time.Millisecond)
	}
	return nil, err
}

// TakenError is an error for want of something that somebody may give back in a moment.
type TakenError struct{ Err error }

// Error is that of the want.
func (e *TakenError) Error() string { return e.Err.Error() }

// Unwrap also says that it is worth while to try again.
func (e *TakenError) Unwrap() []error { return []error{e.Err, ErrContested} }

// Destroy removes the objects of a queue in its directory whose reader is this process, and has
// condemned it: lanes that nobody owns, the FIFO, and last the reader object, so that nothing of a
// new queue of this name is there yet. A lane of a living writer stays; that one removes it when it
// closes.
func Destroy(dir *shm.Dir, reader *shm.Object, rows int) error {
	var left error
	for row := 1; row < rows; row++ {
		if err := destroyLane(dir, kind.LaneFile(row)); left == nil {
			left = err // others are left for the same reason
		}
	}
	crash.At(crash.CloseLanes)
	return errors.Join(left, removeFIFO(dir), reader.Unlink())
}

// destroyLane removes a lane whose writer released it or is provably dead. It fails if this process
// cannot look at one that is there.
func destroyLane(dir *shm.Dir, name string) error {
	obj, err := dir.Open(name, shm.ReadWrite)
	if err == nil {
		if err = obj.Claim(nil); err == nil {
			_ = obj.Unlink()
		}
		_ = obj.Close()
	}
	if !kind.Starved(err) {
		return nil
	}
	return &shm.Error{Pkg: kind.Pkg, Op: "remove lane", Name: name, Err: err,
		Hint: "it may stay until there is a new queue of this name, or for shmctl gc"}
}

func removeFIFO(dir *shm.Dir) error {
	err := dir.Remove(kind.FifoFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
