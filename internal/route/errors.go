package route

import (
	"syscall"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
)

// Error says which operation failed on which interface, and what to do about it.
type Error = shm.Error

const pkg = "route" // of errors

// unreachable is a reason for packet.ErrUnreachable with a number of its own.
type unreachable struct {
	text  string
	errno syscall.Errno
}

func (u *unreachable) Error() string { return u.text }

func (u *unreachable) Is(target error) bool {
	return target == packet.ErrUnreachable || target == error(u.errno)
}

// Why there is no way to a destination, beside packet.ErrUnreachable itself, which is that nobody
// answered. All of these are packet.ErrUnreachable too. They come wrapped in an [Error] that names
// the destination.
var (
	// ErrNoRoute: the routing table has no way to the destination (ENETUNREACH).
	ErrNoRoute error = &unreachable{"no route", syscall.ENETUNREACH}
	// ErrWrongInterface: there is a way, by another interface (ENETUNREACH).
	ErrWrongInterface error = &unreachable{"route leaves by another interface", syscall.ENETUNREACH}
	// ErrRefused: a route says that such packets are to be refused: blackhole, unreachable or
	// prohibit. errors.Is finds the number that a socket of the kernel would have: EINVAL,
	// EHOSTUNREACH or EACCES.
	ErrRefused error = &unreachable{"route refuses packets", 0}
	// ErrNotAllowed: the neighbour is not known, and this process may not have the kernel ask for
	// it (EPERM).
	ErrNotAllowed error = &unreachable{"not allowed to have the kernel resolve", syscall.EPERM}
)

var (
	// ErrAddress: nothing can be sent to such an address (EINVAL).
	ErrAddress = shm.Sentinel("not an address to send to", syscall.EINVAL)
	// ErrFull: as many destinations are in use as the table may hold (ENOBUFS).
	ErrFull = shm.Sentinel("too many destinations", syscall.ENOBUFS)
)
