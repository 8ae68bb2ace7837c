package route

import "time"

// Options of a table. Zero values stand for the defaults.
type Options struct {
	// MaxDestinations bounds how many addresses are kept: those in use, and as many again learnt.
	// 65536 by default. Beyond, Lookup returns ErrFull.
	MaxDestinations int
	// Attempt is how long the kernel gets to resolve an address before it is asked again, and how
	// precisely the table knows what is in use; 1 s by default, which is how long the kernel
	// itself waits for an answer.
	Attempt time.Duration
	// Refresh is how often neighbours in use that the kernel takes for stale are looked after, and
	// routes asked for again; 30 s by default, after which the kernel takes an entry for stale.
	// What was not used for four times as long is forgotten.
	Refresh time.Duration
	// OnChange is called after Generation moved, by a goroutine of the table or whoever called Add,
	// Remove or Learn. It must not wait, and must not call Close.
	OnChange func()
}

const (
	defaultDestinations = 1 << 16
	defaultAttempt      = time.Second
	defaultRefresh      = 30 * time.Second
	idleRefreshes       = 4
)

func (o Options) resolve() Options {
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

// Stats counts what a table did, and says how much it holds.
type Stats struct {
	Destinations, Neighbours, Learnt, Static int

	RouteQuestions uint64 // RTM_GETROUTE
	Solicits       uint64 // RTM_NEWNEIGH with NTF_USE
	Messages       uint64 // received, those for others included
	Resyncs        uint64 // messages were lost, and everything was asked for again
	Unanswered     uint64 // questions that had to be repeated
}
