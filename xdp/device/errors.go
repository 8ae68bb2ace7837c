package device

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// What can go wrong between an application and a device process. errors.Is finds the OS error
// number in brackets too.
var (
	// ErrServerGone: the device process is gone, or does not answer yet (ENOTCONN). The endpoint
	// looks for the next one by itself; what is called meanwhile fails with this.
	ErrServerGone = shm.Sentinel("device process is gone", syscall.ENOTCONN)
	// ErrRefused: the allow-list of the device process has no place for this application (EACCES).
	ErrRefused = shm.Sentinel("refused by the device process", syscall.EACCES)
	// ErrBudget: more frames, sends, ports or applications than the allow-list grants (EDQUOT).
	ErrBudget = shm.Sentinel("over the budget of this user", syscall.EDQUOT)
	// ErrBusy: this user begins more connections at once than the device process talks to (EAGAIN).
	// Dial tries again as long as its context lasts.
	ErrBusy = shm.Sentinel("too many connections begun", syscall.EAGAIN)
	// ErrPortTaken: another application, or this one, has the port already (EADDRINUSE).
	ErrPortTaken = shm.Sentinel("port is taken", syscall.EADDRINUSE)
	// ErrProtocol: the other side said what it must not (EPROTO).
	ErrProtocol = shm.Sentinel("impossible message", syscall.EPROTO)
	// ErrNoSlot: as many sends are under way as were granted (EAGAIN). Try again after a
	// completion.
	ErrNoSlot = shm.Sentinel("no send slot free", syscall.EAGAIN)
	// ErrServing: another device process serves this socket path (EADDRINUSE).
	ErrServing = shm.Sentinel("another device process serves this path", syscall.EADDRINUSE)
	// ErrOptions: a configuration or request that makes no sense (EINVAL).
	ErrOptions = xdp.ErrOptions
)

// Error says which operation failed on what, and what to do about it.
type Error = shm.Error

const pkg = "device"

func failed(op, name string, err error, hint string) error {
	return &Error{Pkg: pkg, Op: op, Name: name, Err: err, Hint: hint}
}

// RefusedError is the no of a device process.
type RefusedError struct {
	Errno syscall.Errno
	Text  string // in its own words
}

// Error repeats what the device process said.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("device: the device process says: %s (%v)", e.Text, e.Errno)
}

// Is matches the number, and the sentinels of this package that have it.
func (e *RefusedError) Is(target error) bool {
	if n, ok := target.(syscall.Errno); ok {
		return n == e.Errno
	}
	for _, s := range refusals {
		if target == s.err && s.num == e.Errno {
			return true
		}
	}
	return false
}

// refusals are the reasons that pass over the socket as numbers.
var refusals = []struct {
	err error
	num syscall.Errno
}{
	{ErrRefused, syscall.EACCES}, {ErrBudget, syscall.EDQUOT},
	{ErrBusy, syscall.EAGAIN}, {ErrPortTaken, syscall.EADDRINUSE}, {ErrProtocol, syscall.EPROTO},
	{ErrOptions, syscall.EINVAL}, {shm.ErrVersion, syscall.EPROTONOSUPPORT},
}

// What a connection says whose other end is gone.
const (
	errReset = syscall.ECONNRESET
	errPipe  = syscall.EPIPE
)

func errnoOf(err error, def syscall.Errno) cq.Errno {
	var num syscall.Errno
	if errors.As(err, &num) && num > 0 && num < 256 {
		return cq.Errno(num)
	}
	return cq.Errno(def)
}
