package cq

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Errno is an error number of libfabric: the operating system's below 256, its own above.
type Errno int32

// The numbers that exist in libfabric only (rdma/fi_errno.h).
const (
	EOther        Errno = 256 + iota // unspecified
	ETooSmall                        // buffer too small
	EOpBadState                      // not permitted in this state
	EAvail                           // error available
	EBadFlags                        // flags not supported
	ENoEQ                            // no event queue
	EDomain                          // wrong domain
	ENoCQ                            // no completion queue
	ECRC                             // checksum
	ETrunc                           // truncation
	ENoKey                           // key not available
	ENoAV                            // no address vector
	EOverrun                         // queue overrun
	ENoRx                            // receiver not ready
	ENoMR                            // no more memory registrations
	EFirewallAddr                    // host address unreachable
)

var fabricText = [...]string{
	"unspecified error", "provided buffer is too small", "operation not permitted in this state",
	"error available: read it with ReadErr", "flags not supported", "no event queue",
	"invalid resource domain", "no completion queue", "CRC error", "truncation",
	"key not available", "no address vector", "queue has been overrun", "receiver not ready",
	"no more memory registrations", "host address unreachable",
}

// Error returns the text of the number: libfabric's, or the operating system's (fi_strerror).
func (e Errno) Error() string {
	if i := int(e - EOther); i >= 0 && i < len(fabricText) {
		return fabricText[i]
	}
	return syscall.Errno(e).Error()
}

// fabricErrno maps libfabric's own numbers to the errno of the same meaning, where there is one.
var fabricErrno = map[Errno]syscall.Errno{
	ETooSmall: syscall.EMSGSIZE, EOpBadState: syscall.EPERM, EBadFlags: syscall.EINVAL,
	ECRC: syscall.EBADMSG, ETrunc: syscall.EMSGSIZE, EOverrun: syscall.EOVERFLOW,
	EFirewallAddr: syscall.EHOSTUNREACH,
	ENoKey:        126, // ENOKEY, which other systems have no name for
}

// Is reports a match with the operating system's number of the same meaning, and with what that
// stands for, as EACCES does for fs.ErrPermission.
func (e Errno) Is(target error) bool {
	switch t := target.(type) {
	case *kind.Sentinel:
		return t.Num == e || t.Num == error(syscall.Errno(e))
	case syscall.Errno:
		return t == syscall.Errno(e) && e < EOther || t == fabricErrno[e] && t != 0
	}
	return e < EOther && syscall.Errno(e).Is(target)
}

// What calls of this package return. Compare with [errors.Is].
var (
	// ErrWouldBlock: a call that does not wait found nothing (EAGAIN).
	ErrWouldBlock error = kind.NewSentinel("nothing is there", Errno(syscall.EAGAIN), nil)
	// ErrTimedOut: the time of a wait is over and what it waits for has not come (ETIMEDOUT,
	// os.ErrDeadlineExceeded and context.DeadlineExceeded). Each wait that has a timeout ends so.
	// From a read that waits, and from GetEvent of a channel, it is EAGAIN besides, as fi_cq_sread
	// and fi_eq_sread say, and another value: compare with errors.Is.
	ErrTimedOut = kind.ErrTimedOut
	// ErrHandled: the events of this queue go to its handler (EOPBADSTATE).
	ErrHandled error = kind.NewSentinel("events of this queue go to its handler", EOpBadState, nil)
	// ErrSignaled: Signal ended the wait (EAGAIN).
	ErrSignaled error = kind.NewSentinel("signaled with nothing to read", Errno(syscall.EAGAIN), nil)
	// ErrFull: no room in the lane, the reader is behind (EAGAIN). Post again later.
	ErrFull error = kind.NewSentinel("lane is full: post again when the reader has caught up",
		Errno(syscall.EAGAIN), nil)
	// ErrNoCredit: a credited post without a credit (EAGAIN).
	ErrNoCredit error = kind.NewSentinel("no credit reserved", Errno(syscall.EAGAIN), nil)
	// ErrAvail: an error entry is at the head; ReadErr returns it (EAVAIL).
	ErrAvail error = kind.NewSentinel("an error entry is next: take it with ReadErr", EAvail, nil)
	// ErrOverrun: the queue lost entries, for ever (EOVERRUN).
	ErrOverrun error = kind.NewSentinel("queue has been overrun: entries were lost; close it and "+
		"open a larger one", EOverrun, nil)
	// ErrClosed: closed by this process, or by its reader.
	ErrClosed = kind.ErrClosed
	// ErrNoWait: a blocking call on a queue that cannot block (ENOSYS).
	ErrNoWait error = kind.NewSentinel("queue was opened without a wait object that this call can use",
		Errno(syscall.ENOSYS), nil)
	// ErrInvalid: an argument no call could make sense of (EINVAL).
	ErrInvalid = kind.ErrInvalid
	// ErrFormat: the queue keeps less than was asked for (EINVAL).
	ErrFormat = kind.ErrFormat
	// ErrBusy: entries that Peek handed out are not released, or another goroutine is inside
	// (EBUSY).
	ErrBusy = kind.ErrBusy
	// ErrLanes: as many writers are attached as the queue has lanes (ENOSPC).
	ErrLanes = kind.ErrLanes
	// ErrNoFiles: the other process of a rendezvous can open no more files (EMFILE).
	ErrNoFiles = kind.ErrNoFiles
	// ErrPeerGone: the other process of a rendezvous died, or hung up, or the queue that a post waits
	// for has no reader any more (ECONNRESET).
	ErrPeerGone = kind.ErrPeerGone
	// ErrCorrupt: a peer wrote what it must not (EBADMSG).
	ErrCorrupt = kind.ErrCorrupt
)

// errReadTimedOut is ErrTimedOut of a call whose page says EAGAIN.
var errReadTimedOut error = kind.NewSentinel("timed out with nothing to read",
	Errno(syscall.EAGAIN),
	[]error{ErrTimedOut, syscall.ETIMEDOUT, Errno(syscall.ETIMEDOUT), os.ErrDeadlineExceeded,
		context.DeadlineExceeded})

// errFailed is ErrAvail of a counter, which keeps no entry.
var errFailed error = kind.NewSentinel("an operation has failed: ReadErr says how many have",
	EAvail,
	[]error{ErrAvail})

// Error says which call failed on which queue, and why. Field, Got and Want are set where a value
// was refused.
type Error = shm.Error

// LaneError says that a lane was given up because its writer wrote what it must not. The other
// lanes are not affected. If errors.Is finds EMFILE, ENFILE or ENOMEM, this process had none left
// to open the lane with: nothing is given up, and reads try again as long as that is so.
type LaneError struct {
	Lane  int
	PID   int    // the writer, 0 if not known
	Field string // what was wrong
	Err   error
}

// Error names lane, writer and what was wrong.
func (e *LaneError) Error() string {
	if kind.Starved(e.Err) {
		return fmt.Sprintf("cq: lane %d cannot be opened yet: %v", e.Lane, e.Err)
	}
	return fmt.Sprintf("cq: lane %d of process %d is given up: %s: %v", e.Lane, e.PID, e.Field, e.Err)
}

// Unwrap returns the cause.
func (e *LaneError) Unwrap() error { return e.Err }

// Is reports a match with [ErrCorrupt] and EBADMSG; with [ErrBusy] and EBUSY if it was not the
// writer: two goroutines used the queue at once, and what the lane holds is not known any more.
func (e *LaneError) Is(target error) bool {
	if e.Err == ring.ErrMisuse {
		return target == ErrBusy || target == syscall.EBUSY
	}
	return (target == ErrCorrupt || target == syscall.EBADMSG) && !kind.Starved(e.Err)
}

// Error names the operation and both error numbers.
func (e *ErrorEntry) Error() string {
	return fmt.Sprintf("cq: operation %#x (%v) failed: %v (provider error %d)",
		e.Context, e.Flags, e.Err, e.ProvErrno)
}

// Unwrap returns the error number.
func (e *ErrorEntry) Unwrap() error { return e.Err }

// failed says which call failed on which queue, unless err says so itself.
func failed(op, name string, err error) error { return kind.Failed(op, name, err) }

// StrError returns the text of a provider error number and its detail (fi_cq_strerror,
// fi_eq_strerror). Numbers of this library and the operating system have one; others are printed as
// they are.
func StrError(provErrno int32, errData []byte) string {
	text := fmt.Sprintf("provider error %d", provErrno)
	if provErrno > 0 && (provErrno < int32(EOther)+int32(len(fabricText))) {
		text = Errno(provErrno).Error()
	}
	if len(errData) > 0 {
		text = fmt.Sprintf("%s (detail %x)", text, errData)
	}
	return text
}
