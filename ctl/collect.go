package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/text"
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

// Fates of what a collection found.
const (
	FateGarbage    = string(collect.Garbage)    // would be removed
	FateRemoved    = "removed"                  // was removed
	FateFailed     = "failed"                   // could not be removed: Error says why
	FateLiving     = string(collect.Living)     // a process that lives has it
	FateLeft       = string(collect.Left)       // left by its owner, for a successor
	FatePersistent = string(collect.Persistent) // made to wait for a successor
	FateUnread     = string(collect.Unread)     // one of the last two, with unread entries
	FateLockLost   = string(collect.LockLost)   // its owner lives without the lock
	FateDamaged    = "damaged"                  // an object that cannot be assessed; Error says why
	FateVersion    = "version"                  // an object of another version
	FateOtherUser  = "other user"               // not this user's, or open to others
	FateForeign    = string(collect.Foreign)    // no object of this library, or of an unknown kind
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

// Collect assesses everything that has a name in a directory, and with Remove removes what is
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
		waiting := collect.Options{Waiting: slices.Contains(o.Waiting, n.Name())}
		if r, there := collectOne(d, n.Name(), waiting, o.Remove); there {
			out = append(out, r)
		}
	}
	return out, nil
}

// lookAgain bounds how often something may be taken or left while it is removed.
const lookAgain = 4

func collectOne(d *shm.Dir, name string, o collect.Options, remove bool) (r Remains, there bool) {
	for range lookAgain {
		s, err := collect.Assess(d, name, o)
		if errors.Is(err, fs.ErrNotExist) {
			return r, false
		}
		r = remains(d, name, &s, err)
		if r.Fate != FateGarbage || !remove {
			return r, true
		}
		err = collect.Remove(d, name, o)
		if err == nil || errors.Is(err, syscall.ENOTEMPTY) {
			r.Fate, r.Reason = FateRemoved, "nobody used it, and nobody was to come"+lost(&s)
			if err != nil {
				r.Reason += "; other files keep its directory"
			}
			return r, true
		}
		// Somebody else may take it between our look and our claim, as one does who creates a queue
		// of its name.
		if !errors.Is(err, syscall.EBUSY) {
			r.Fate, r.Reason, r.Error = FateFailed, "garbage that cannot be removed", NewProblem(err)
			return r, true
		}
		r.Fate, r.Reason = FateLiving, "somebody takes it again and again"
	}
	return r, true
}

// remains says in words what was found, or why nothing was.
func remains(d *shm.Dir, name string, s *collect.Remains, err error) Remains {
	r := Remains{Name: name, Path: filepath.Join(d.Path(), name)}
	switch {
	case s.Socket:
		r.Kind = new(kindSocket)
	case s.Kind != 0:
		r.Kind, r.SizeBytes = new(s.Kind.String()), &s.SizeBytes
	}
	if err != nil {
		r.Error = NewProblem(err)
		r.Fate, r.Reason = fateOfError(err)
		return r
	}
	r.Fate, r.Reason = string(s.Fate), reasonOf(s)
	if s.Owner.PID != 0 {
		life := shm.Alive
		if s.Fate == collect.LockLost {
			life = shm.LockLost
		}
		r.Process = new(DescribeProcess(s.Owner, life))
	}
	if s.Counted {
		r.Unread = &s.Unread
	}
	return r
}

// kindSocket is what a socket is called among kinds of objects.
const kindSocket = "socket"

func fateOfError(err error) (fate, reason string) {
	var e *shm.Error
	isShm := errors.As(err, &e)
	switch {
	case errors.Is(err, shm.ErrVersion):
		return FateVersion, "made by another version of the library, which knows what it is"
	case isShm && e.Field == "type", errors.Is(err, shm.ErrName),
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
var reasons = map[collect.Fate]string{
	collect.Left:       "left by its owner for a successor",
	collect.Persistent: "persistent: it waits for a successor",
	collect.Unread:     "it waits for a successor, and entries in it are unread",
	collect.LockLost:   "its owner lives and has lost the lock, so that nobody may take it",
	collect.Foreign:    "no object of this library, or of a kind that it does not know",
}

func reasonOf(s *collect.Remains) string {
	switch s.Fate {
	case collect.Living:
		if s.Owner.PID == 0 {
			return "a process that lives has it"
		}
		return text.Process(s.Owner.PID, s.Owner.PIDNS, shm.Self().PIDNS) + " lives and has it"
	case collect.Garbage:
		switch {
		case s.Socket:
			return "a socket that no process has"
		case s.Truncated:
			return "it was truncated, and no process has what is left"
		}
		switch s.Kind {
		case 0:
			return "nothing in it belongs to a queue that exists"
		case shm.KindQueue, shm.KindEvents:
			return "its reader and all writers are gone" + lost(s)
		case shm.KindCounter, shm.KindGroup:
			return "no process has it open"
		}
		return "its process is gone"
	case collect.Unread:
		if s.Kind == shm.KindOutbox {
			return "its process is gone, and a peer that lives has not taken all that it sent"
		}
	case collect.Persistent:
		if s.Kind == shm.KindRegion || s.Kind == shm.KindUMEM {
			return "memory that entries may refer to; its owner is gone"
		}
	}
	return reasons[s.Fate]
}

// lost says what goes with a queue that its reader would have destroyed.
func lost(s *collect.Remains) string {
	switch s.Unread {
	case 0:
		return ""
	case 1:
		return ", with 1 entry that nobody read"
	}
	return fmt.Sprintf(", with %d entries that nobody read", s.Unread)
}
