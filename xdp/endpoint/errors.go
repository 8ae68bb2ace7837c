package endpoint

import (
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// What a post can be refused with beside errors of package cq: cq.ErrFull says that the queue of
// completions has no room for one more operation, and is EAGAIN like the first three here. They
// are compared with errors.Is, as are the numbers in brackets, and returning one never allocates.
var (
	// ErrNoFrame: every send frame is under way (EAGAIN). Post again after Progress.
	ErrNoFrame = oserror.New("no free frame to send from: post again after Progress",
		syscall.EAGAIN)
	// ErrFenced: a post with FlagFence while earlier sends are under way (EAGAIN).
	ErrFenced = oserror.New("earlier sends are under way: post the fenced one again after Progress",
		syscall.EAGAIN)
	// ErrResolving: the hardware address of the destination is being asked for (EAGAIN).
	ErrResolving = packet.ErrResolving
	// ErrUnreachable: there is no way to the destination (EHOSTUNREACH). Operations that have a
	// completion are accepted and end with this number in an error entry; inject returns it.
	ErrUnreachable = packet.ErrUnreachable
	// ErrNotSupported: a datagram endpoint cannot do this, or was not configured to (EOPNOTSUPP).
	ErrNotSupported = oserror.New("not supported by this endpoint", syscall.EOPNOTSUPP)
	// ErrTooBig: the payload does not fit one packet on the path (EMSGSIZE).
	ErrTooBig = xdp.ErrTooBig
	// ErrAddress: the address is not in the address vector, or cannot be sent to from here
	// (EINVAL).
	ErrAddress = oserror.New("no address that this endpoint can send to", syscall.EINVAL)
	// ErrFlags: a flag that the call does not know, or one that contradicts another (EINVAL).
	ErrFlags = oserror.New("flags not supported by this call", syscall.EINVAL)
	// ErrPieces: a scatter list of more than MaxPieces pieces (EINVAL).
	ErrPieces = oserror.New("scatter list is too long", syscall.EINVAL)
	// ErrFrame: the frame is not the caller's: given back already, or never received (EINVAL).
	ErrFrame = xdp.ErrFrame
	// ErrDriven: another goroutine drives the endpoint (EBUSY).
	ErrDriven = oserror.New("another goroutine drives this endpoint", syscall.EBUSY)
	// ErrNotFound: no operation with this context can be cancelled (ENOENT).
	ErrNotFound = oserror.New("no such operation is under way", syscall.ENOENT)
)

// Numbers of error entries.
const (
	errCanceled    = cq.Errno(syscall.ECANCELED)
	errUnreachable = cq.Errno(syscall.EHOSTUNREACH)
	errRefused     = cq.Errno(syscall.EIO)
)

const pkg = "endpoint" // of errors

func fault(op string, err error, hint string) error {
	return &shm.Error{Pkg: pkg, Op: op, Err: err, Hint: hint}
}
