package netif

import (
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
)

// Error says which operation failed on which interface, and what to do about it.
type Error = shm.Error

const pkg = "netif" // of errors

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

// TableOptions of a table. Zero values stand for the defaults.
type TableOptions struct {
	// MaxDestinations bounds how many addresses are kept, 65536 by default. Beyond, Lookup returns
	// ErrFull.
	MaxDestinations int
	// Attempt is how long the kernel gets to resolve an address before it is asked again, and how
	// precisely the table knows what is in use; 1 s by default, which is how long the kernel
	// itself waits for an answer.
	Attempt time.Duration
	// Refresh is how often neighbours in use that the kernel takes for stale are looked after, and
	// routes asked for again; 30 s by default, after which the kernel takes an entry for stale.
	// What was not used for four times as long is forgotten.
	Refresh time.Duration
}

const (
	defaultDestinations = 1 << 16
	defaultAttempt      = time.Second
	defaultRefresh      = 30 * time.Second
	idleRefreshes       = 4
)

func (o TableOptions) resolve() TableOptions {
	if o.MaxDestinations <= 0 {
		o.MaxDestinations = defaultDestinations
	}
	if o.Attempt <= 0 {
		o.Attempt = defaultAttempt
	}
	if o.Refresh <= 0 {
		o.Refresh = defaultRefresh
	}
	o.Refresh = max(o.Refresh, o.Attempt)
	return o
}

// TableStats counts what a table did, and says how much it holds.
type TableStats struct {
	Destinations, Neighbours int

	RouteQuestions uint64 // RTM_GETROUTE
	Solicits       uint64 // RTM_NEWNEIGH with NTF_USE
	Messages       uint64 // received, those for others included
	Resyncs        uint64 // messages were lost, and everything was asked for again
	Unanswered     uint64 // questions that had to be repeated
}
