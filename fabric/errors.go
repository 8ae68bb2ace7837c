package fabric

import (
	"errors"
	"os"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/shm"
)

// What calls and error entries say beside errors of package cq. cq.ErrFull, which is EAGAIN, says
// that the lane, the grant or the queue has no room now: progress of both sides cures it. All are
// compared with errors.Is, as are the numbers in brackets; an error entry has the number.
var (
	// ErrNoPeer: no endpoint has this name or address, or it has been closed (EHOSTUNREACH).
	ErrNoPeer = oserror.New("no such endpoint: ask for its address again", syscall.EHOSTUNREACH)
	// ErrPeerDied: the process of the peer has ended (ECONNRESET).
	ErrPeerDied = oserror.New("the peer's process has ended", syscall.ECONNRESET)
	// ErrPeerClosed: the peer has closed its endpoint (EPIPE).
	ErrPeerClosed = oserror.New("the peer has closed its endpoint", syscall.EPIPE)
	// ErrRefused: the peer takes nothing from this endpoint: it could not map it, or found in its
	// lane what cannot be (ECONNABORTED).
	ErrRefused = oserror.New("the peer has refused this endpoint's lane", syscall.ECONNABORTED)
	// ErrCorrupt: the peer wrote what cannot be, and is cut off (EBADMSG).
	ErrCorrupt = cq.ErrCorrupt
	// ErrTooLong: more than MaxInline bytes (EMSGSIZE).
	ErrTooLong = oserror.New("message is too long", syscall.EMSGSIZE)
	// ErrPeers: this endpoint, or the peer, has as many peers as it takes (ENOSPC).
	ErrPeers = oserror.New("no room for one more peer: open with more Options.Peers",
		syscall.ENOSPC)
	// ErrAddress: a number that Insert and Resolve did not return, or bytes that are no address
	// (EINVAL).
	ErrAddress = oserror.New("no such address", syscall.EINVAL)
)

const pkg = "fabric" // of errors

func fault(op, name string, err error) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: name, Err: err}
}

var errClosed = fault("use", "", os.ErrClosed)

const errCanceled = cq.Errno(syscall.ECANCELED)

// number is that of an error in an error entry.
func number(err error) cq.Errno {
	for _, n := range []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED,
		syscall.EBADMSG} {
		if errors.Is(err, n) {
			return cq.Errno(n)
		}
	}
	return cq.Errno(syscall.EIO)
}
