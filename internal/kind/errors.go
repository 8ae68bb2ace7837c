package kind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"syscall"

	"github.com/shmring/shmring/shm"
)

// Pkg is what errors are said to be of: who uses the library knows no other package that has
// queues.
const Pkg = "cq"

// Sentinel is an error that is also the number of the same meaning. Comparing one costs nothing and
// making one never allocates.
type Sentinel struct {
	Text string
	Num  error   // syscall.Errno, or one of libfabric's
	Also []error // sentinels of the same meaning
}

// NewSentinel returns one. num is a syscall.Errno, or an error number of libfabric.
func NewSentinel(text string, num error, also []error) *Sentinel {
	return &Sentinel{Text: text, Num: num, Also: also}
}

// Error returns the text.
func (s *Sentinel) Error() string { return Pkg + ": " + s.Text }

// Is reports a match with a number or sentinel of the same meaning. Sentinels that share a number
// are not the same. A number of libfabric's knows itself which sentinels it is.
func (s *Sentinel) Is(target error) bool {
	if slices.Contains(s.Also, target) {
		return true
	}
	if _, other := target.(*Sentinel); other {
		return false
	}
	number, ok := target.(interface{ Is(target error) bool })
	return errors.Is(s.Num, target) || ok && number.Is(s)
}

// Errors of package cq that what stands below it returns. They are documented there.
var (
	ErrCorrupt error = &Sentinel{"peer wrote an impossible value", syscall.EBADMSG,
		[]error{shm.ErrCorrupt}}
	ErrBusy   error = NewSentinel("queue is in use", syscall.EBUSY, nil)
	ErrClosed error = NewSentinel("queue is closed: open or attach again to go on",
		syscall.ESHUTDOWN, []error{os.ErrClosed})
	ErrLanes error = NewSentinel("every lane of the queue has a living writer", syscall.ENOSPC, nil)
	// ErrTimedOut matches what stands elsewhere for a time that is over.
	ErrTimedOut error = NewSentinel("timed out", syscall.ETIMEDOUT,
		[]error{os.ErrDeadlineExceeded, context.DeadlineExceeded})
	ErrInvalid error = NewSentinel("invalid argument", syscall.EINVAL, nil)
	ErrFormat  error = NewSentinel("queue keeps a smaller format", syscall.EINVAL, nil)
	ErrNoFiles error = NewSentinel("out of file descriptors: raise that process's limit of open "+
		"files (ulimit -n), or have it close some", syscall.EMFILE, nil)
	ErrPeerGone error = NewSentinel("peer is gone", syscall.ECONNRESET, nil)
)

// Ended returns why a context ended a wait, matching both context.Canceled and its cause.
func Ended(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("%s: wait: %w: %w", Pkg, ctx.Err(), cause)
	}
	return fmt.Errorf("%s: wait: %w", Pkg, ctx.Err())
}

// Refuse returns an error that says which value was refused.
func Refuse(op, name, field string, got, want any, err error) error {
	return &shm.Error{Pkg: Pkg, Op: op, Name: name, Field: field, Got: got, Want: want, Err: err}
}

// Absent says that there is no object behind m, which is a mistake of the caller's.
func Absent(m any) bool {
	v := reflect.ValueOf(m)
	return m == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// NilPointer says that an option is set, and to a nil pointer.
func NilPointer(m any) bool { return m != nil && Absent(m) }

// CheckKind returns an error that is [shm.ErrKind] unless an object is of the kind that is wanted.
func CheckKind(h shm.Header, want shm.Kind) error {
	if h.Kind == want {
		return nil
	}
	return &shm.Error{Op: "open", Name: h.Name, Field: "kind", Got: h.Kind, Want: want,
		Err: shm.ErrKind, Hint: "take another name, or remove what stands there"}
}

// Failed says which call failed on which object, unless err says so itself. It is nil for nil.
func Failed(op, name string, err error) error {
	var e *shm.Error
	if err == nil || errors.As(err, &e) && e.Op == op && e.Name == name {
		return err
	}
	return fmt.Errorf("%s: %s %q: %w", Pkg, op, name, err)
}

// Damaged reports errors that lie in an object, and not in the moment.
func Damaged(err error) bool {
	return errors.Is(err, shm.ErrCorrupt) || errors.Is(err, shm.ErrTruncated) ||
		errors.Is(err, shm.ErrVersion) || errors.Is(err, shm.ErrKind)
}

// Starved tells errors of accepting and opening that say nothing of the listener or the object.
func Starved(err error) bool {
	for _, is := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOMEM,
		syscall.ENOBUFS} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}
