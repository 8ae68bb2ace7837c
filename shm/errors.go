package shm

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/text"
)

// What can be wrong with an object or a name. Every error of this package that has one of these
// meanings wraps it, so errors.Is(err, shm.ErrCorrupt) is the way to ask; the error number in
// brackets is found too.
var (
	// ErrName: a name that cannot be used, for example because it has a slash or is reserved
	// (EINVAL).
	ErrName = oserror.New("name not allowed", syscall.EINVAL)
	// ErrCorrupt: not an object of this library, half written or scribbled over (EBADMSG).
	ErrCorrupt = oserror.New("damaged object", syscall.EBADMSG)
	// ErrVersion: another version, byte order, or a feature unknown here (EPROTONOSUPPORT).
	ErrVersion = oserror.New("object of another version", syscall.EPROTONOSUPPORT)
	// ErrKind: an object or a section of another kind than the caller wants, or a file, directory
	// or link in its place (EINVAL).
	ErrKind = oserror.New("object of another kind", syscall.EINVAL)
	// ErrTruncated: the file is shorter than its header says, or became so (ENODATA).
	ErrTruncated = oserror.New("truncated object", errNoData)
	// ErrStale: what is referred to has been replaced or removed (ESTALE).
	ErrStale = oserror.New("stale reference", syscall.ESTALE)
	// ErrLockLost: the owner lives but its lock is gone, so nobody may take over (ENOLCK).
	ErrLockLost = oserror.New("lock lost by a living owner", syscall.ENOLCK)
	// ErrOwner: owned by another user, or open to others (EPERM, fs.ErrPermission).
	ErrOwner = oserror.New("not private to this user", syscall.EPERM)
	// ErrNoSpace: the memory does not fit (ENOSPC). Field of the *Error says what limits, the file
	// system, a memory cgroup or the machine, Got how many bytes there are, and Want how many are
	// needed, each as uint64. Got is 0 also where the kernel refuses and does not say what there is.
	ErrNoSpace = oserror.New("not enough shared memory", syscall.ENOSPC)
)

// Error says which operation failed on what, and which field held what instead of what.
// Field, Got, Want and Hint may be zero; Err never is. Packages above this one use it too.
type Error struct {
	Pkg   string // whose operation; "" is this package's
	Op    string // the operation: "open", "create", "claim"
	Name  string // the object, section or directory
	Field string // the property that was wrong
	Got   any    // what was found
	Want  any    // what was possible
	Err   error  // the sentinel or OS error
	Hint  string // what to do about it
}

// Error prints everything that is known on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(cmp.Or(e.Pkg, "shm"))
	b.WriteString(": ")
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	b.WriteString(": ")
	if e.Field != "" {
		fmt.Fprintf(&b, "%s is %v", e.Field, e.Got)
		if e.Want != nil {
			fmt.Fprintf(&b, ", want %v", e.Want)
		}
		b.WriteString(": ")
	}
	fmt.Fprintf(&b, "%v", e.Err)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return text.Printable(b.String()) // what was found may come out of another process's memory
}

// Unwrap returns the sentinel or OS error.
func (e *Error) Unwrap() error { return e.Err }

// BusyError: the object's lock is held. errors.Is finds EBUSY.
type BusyError struct {
	Name string
	PID  int // as its owner recorded it, in the owner's PID namespace; 0 when unknown
	// Elsewhere says that it is another namespace than this process's: PIDNS by its inode, 0 if that
	// is not known.
	Elsewhere bool
	PIDNS     uint64
	// Gone says that the owner has died and that a process which it forked, without an exec, still
	// has its descriptors, and so the lock; or that somebody holds it who is about to remove it.
	Gone bool
	// Released says that the last owner, whose PID is not told, has left the object, and that
	// somebody has the lock all the same: for a moment that one, or who takes the object over or
	// removes it; or for longer who has a seat.
	Released bool
}

// Error names the owner.
func (e *BusyError) Error() string {
	if e.Released {
		return fmt.Sprintf("shm: claim %q: its owner has left it, and its lock is held: for a moment "+
			"by a process that takes it over or removes it, or by one with a seat; try again", e.Name)
	}
	if e.PID == 0 {
		return fmt.Sprintf("shm: claim %q: owned by a living process; stop it first", e.Name)
	}
	if e.Gone {
		return fmt.Sprintf("shm: claim %q: process %d is gone, and its lock is held by a process that "+
			"it forked, which has to end, or for a moment by one that removes it", e.Name, e.PID)
	}
	if e.Elsewhere {
		return fmt.Sprintf("shm: claim %q: owned by %s, which lives; stop it first", e.Name,
			text.Process(e.PID, e.PIDNS, Self().PIDNS))
	}
	return fmt.Sprintf("shm: claim %q: owned by living process %d; stop it first", e.Name, e.PID)
}

// Is reports EBUSY.
func (e *BusyError) Is(target error) bool { return target == error(syscall.EBUSY) }

// osHint says what to do about an error of the operating system that users meet by a wrong name.
func osHint(err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "it is not made yet, was removed, or " + EnvDir + " differs from its owner's"
	case errors.Is(err, syscall.EEXIST):
		return "open what is there, remove it when nobody uses it, or take another name"
	case errors.Is(err, syscall.EACCES):
		return "it, or a directory above it, is another user's: set " + EnvDir +
			" to a directory of your own, or run as that user"
	}
	return ""
}

// named fills in operation and name where a deeper layer could not know them.
func named(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var busy *BusyError
	if errors.As(err, &busy) {
		return err
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Op: op, Name: name, Err: err, Hint: osHint(err)}
	}
	if e.Op == "" {
		e.Op = op
	}
	if e.Name == "" {
		e.Name = name
	}
	return err
}
