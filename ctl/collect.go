package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// CollectOptions say what a collection may do. The zero value looks and removes nothing.
type CollectOptions struct {
	// Remove removes what is garbage; without it nothing is touched.
	Remove bool
	// Waiting names what is also removed though it is persistent, was left to a successor, or is a
	// region: if nobody alive uses it and nothing in it is unread.
	Waiting []string
}

// Fates of what a collection found, beyond those of cq.Fate.
const (
	FateGarbage   = "garbage"    // would be removed
	FateRemoved   = "removed"    // was removed
	FateFailed    = "failed"     // could not be removed: Error says why
	FateDamaged   = "damaged"    // an object that cannot be judged; Error says why
	FateVersion   = "version"    // an object of another version
	FateOtherUser = "other user" // not this user's, or open to others
	FateForeign   = "foreign"    // no object of this library, or of a kind that it does not know
)

// Remains is something that has a name in the directory, and what becomes of it.
type Remains struct {
	Name string  `json:"name"`
	Path string  `json:"path"`
	Kind *string `json:"kind"` // queue, events, counter, …, socket; nil: not known
	// Fate is garbage, removed, failed, damaged, version, other user, foreign, living, left,
	// persistent, unread or lock lost.
	Fate      string   `json:"fate"`
	Reason    string   `json:"reason"`  // the fate in words
	Process   *Process `json:"process"` // that lives and has it
	Unread    *uint64  `json:"unread"`  // entries of a queue that nobody has read
	SizeBytes *uint64  `json:"size_bytes"`
	Error     *Problem `json:"error"`
}

// Collect judges everything that has a name in a directory, and with Remove removes what is
// provably garbage, under the locks that prove it; so are sockets that no process has, such as
// those at which dead processes met others. Any number of processes may collect at once, while
// others create, adopt and attach; one that dies over it leaves what another can go on with. What
// somebody else took or removed meanwhile is not an error. An error means that the directory itself
// cannot be read.
func Collect(d *shm.Dir, o CollectOptions) ([]Remains, error) {
	names, err := d.List()
	if err != nil {
		return nil, err
	}
	out := make([]Remains, 0, len(names))
	for _, n := range names {
		c := collection{dir: d, name: n.Name, isDir: n.IsDir, remove: o.Remove}
		c.o.Waiting = slices.Contains(o.Waiting, n.Name)
		if r, there := c.one(); there {
			out = append(out, r)
		}
	}
	return out, nil
}

// collection is of one name.
type collection struct {
	dir    *shm.Dir
	name   string
	isDir  bool
	remove bool
	o      cq.Removal

	isSocket bool // found when it is judged
}

// lookAgain bounds how often something may be taken or left while it is removed.
const lookAgain = 4

func (c *collection) one() (r Remains, there bool) {
	for range lookAgain {
		var s cq.Remains
		s, r, there = c.judge()
		if !there || s.Fate != cq.FateGarbage || !c.remove {
			return r, there
		}
		err := c.take()
		if err == nil || errors.Is(err, syscall.ENOTEMPTY) {
			r.Fate, r.Reason = FateRemoved, "nobody used it, and nobody was to come"+lost(&s)
			if err != nil {
				r.Reason += "; other files keep its directory"
			}
			return r, true
		}
		if !taken(err) {
			r.Fate, r.Reason, r.Error = FateFailed, "garbage that cannot be removed", NewProblem(err)
			return r, true
		}
		r.Fate, r.Reason = cq.FateLiving.String(), "somebody takes it again and again"
	}
	return r, true
}

// taken tells the errors of something that somebody else took or removed between our look at it and
// our claim, as one does who creates a queue of its name.
func taken(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, shm.ErrStale) ||
		errors.Is(err, fs.ErrNotExist)
}

func (c *collection) take() error {
	if c.isSocket {
		return c.dir.RemoveUnbound(c.name)
	}
	if c.isDir {
		return cq.Remove(c.dir, c.name, c.o)
	}
	return cq.RemoveObject(c.dir, c.name, c.o)
}

func (c *collection) judge() (s cq.Remains, r Remains, there bool) {
	r = Remains{Name: c.name, Path: filepath.Join(c.dir.Path(), c.name)}
	var err error
	if c.isDir {
		s, err = cq.Remaining(c.dir, c.name, c.o)
	} else {
		s, err = cq.RemainingObject(c.dir, c.name, c.o)
		if errors.Is(err, syscall.ENXIO) || errors.Is(err, shm.ErrName) { // as it is of sockets
			if fate, e := c.socket(); c.isSocket {
				s.Fate, r.Kind, err = fate, new(kindSocket), e
			}
		}
	}
	if s.Kind != 0 {
		r.Kind = new(s.Kind.String())
		r.SizeBytes = &s.SizeBytes
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENXIO) {
			return s, r, false
		}
		s.Fate = 0 // nothing is known of it
		r.Error = NewProblem(err)
		r.Fate, r.Reason = fateOfError(err)
		return s, r, true
	}
	r.Fate, r.Reason = s.Fate.String(), reasonOf(&s)
	if c.isSocket && s.Fate == cq.FateGarbage {
		r.Reason = "a socket that no process has"
	}
	if s.Owner.PID != 0 {
		life := shm.Alive
		if s.Fate == cq.FateLockLost {
			life = shm.LockLost
		}
		r.Process = new(process(s.Owner, life))
	}
	if s.Counted {
		r.Unread = &s.Unread
	}
	return s, r, true
}

func fateOfError(err error) (fate, reason string) {
	var e *shm.Error
	isShm := errors.As(err, &e)
	switch {
	case errors.Is(err, shm.ErrVersion):
		return FateVersion, "made by another version of the library, which knows what it is"
	case isShm && e.Field == "type", errors.Is(err, syscall.ENXIO), errors.Is(err, shm.ErrName),
		!isObject(err) && !errors.Is(err, shm.ErrOwner):
		return FateForeign, "no object of this library"
	case errors.Is(err, shm.ErrOwner):
		return FateOtherUser, "of another user, or open to others"
	case errors.Is(err, shm.ErrCorrupt), errors.Is(err, shm.ErrTruncated):
		return FateDamaged, "damaged, so that nothing says whether it is in use"
	}
	return FateFailed, "it cannot be looked at"
}

// reasons are the fates in words. What is found to be garbage is said for each kind.
var reasons = map[cq.Fate]string{
	cq.FateLeft:       "left by its owner for a successor",
	cq.FatePersistent: "persistent: it waits for a successor",
	cq.FateUnread:     "it waits for a successor, and entries in it are unread",
	cq.FateLockLost:   "its owner lives and has lost the lock, so that nobody may take it",
	cq.FateForeign:    "no object of this library, or of a kind that it does not know",
}

func reasonOf(s *cq.Remains) string {
	switch s.Fate {
	case cq.FateLiving:
		if s.Owner.PID == 0 {
			return "a process that lives has it"
		}
		return shm.NameProcess(s.Owner) + " lives and has it"
	case cq.FateGarbage:
		if s.Cut {
			return "it was cut, and no process has what is left"
		}
		switch s.Kind {
		case 0:
			return "nothing in it belongs to a queue that exists"
		case shm.KindQueue, shm.KindEvents:
			return "its reader and all writers are gone" + lost(s)
		case shm.KindCounter:
			return "no process has it open"
		}
		return "its process is gone"
	case cq.FatePersistent:
		if s.Kind == shm.KindRegion || s.Kind == shm.KindUMEM {
			return "memory that entries may refer to; its owner is gone"
		}
	}
	return reasons[s.Fate]
}

// lost says what goes with a queue that its reader would have destroyed.
func lost(s *cq.Remains) string {
	switch s.Unread {
	case 0:
		return ""
	case 1:
		return ", with 1 entry that nobody read"
	}
	return fmt.Sprintf(", with %d entries that nobody read", s.Unread)
}

// IsGarbage reports whether a collection would remove it, or should have.
func (r *Remains) IsGarbage() bool { return r.Fate == FateGarbage || r.Fate == FateFailed }
