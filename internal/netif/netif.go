package netif

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
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
	ErrAddress = oserror.New("not an address to send to", syscall.EINVAL)
	// ErrFull: as many destinations are in use as the table may hold (ENOBUFS).
	ErrFull = oserror.New("too many destinations", syscall.ENOBUFS)
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
	Resyncs        uint64 // messages were lost, and everything was asked for again
}

// Kind says what happened to an interface.
type Kind uint8

// The events, and what each carries beside its kind.
const (
	Up             Kind = iota + 1 // up, and with a carrier
	Down                           // down, or without a carrier
	MTUChanged                     // MTU
	MACChanged                     // MAC
	AddressAdded                   // Prefix, once it may be used
	AddressRemoved                 // Prefix
	ProgramChanged                 // ProgramID: another XDP program than before, or none
	QueuesChanged                  // RxQueues and TxQueues
	Removed                        // Moved; nothing follows
)

// Event is one difference between how an interface was when it was last told of and how it is now.
type Event struct {
	Kind               Kind
	MTU                int
	MAC                [6]byte
	Prefix             netip.Prefix // an address of the interface with the length of its network
	ProgramID          uint32       // 0: there is none
	RxQueues, TxQueues int
	Moved              bool // to another network namespace, where it goes on
}

// State is how an interface is.
type State struct {
	Name      string
	Index     int
	Up        bool // and with a carrier
	MTU       int
	MAC       [6]byte
	Addresses map[netip.Prefix]bool // those that may be used; not to be changed
	// Groups are those that are joined on it, by whomever, as of the last look; not to be changed.
	// They are looked at only for OnLocal.
	Groups    map[netip.Addr]bool
	ProgramID uint32 // of the XDP program; 0 if there is none
	// RxQueues and TxQueues are those in use, 0 if the driver does not say.
	RxQueues, TxQueues int
	Removed, Moved     bool
}

// WatchOptions of a watcher. Zero values stand for the defaults.
type WatchOptions struct {
	// ProgramID is the XDP program that ought to be attached: if another one is, or none, when
	// watching begins, that is told as a change. 0: whatever is attached.
	ProgramID uint32
	// Poll is how often that is looked at which the kernel does not tell of; 1 s by default.
	// Negative: when the kernel tells of something else.
	Poll time.Duration
	// OnEvent gets the events, one at a time, from a goroutine of the
	// watcher. If it returns false the event is not taken: it comes again, if things are still so,
	// with the next change or poll. It must not call Close.
	OnEvent func(Event) bool
	// OnLocal gets what is addressed to the interface itself: once before Watch returns, and then
	// as often as it changes, from a goroutine of the watcher. The kernel tells of addresses at
	// once; groups are looked at each Poll. If it returns false the same comes again with the next
	// change or poll. It must not call Close.
	OnLocal func(xdp.Local) bool
}

const defaultPoll = time.Second

// next returns the first difference between what was told and what is. Something that ended comes
// before what replaces it, and the end of all before anything.
func next(told, is *State) (Event, bool) {
	switch {
	case told.Removed:
		return Event{}, false
	case is.Removed:
		return Event{Kind: Removed, Moved: is.Moved}, true
	case told.Up && !is.Up:
		return Event{Kind: Down}, true
	case told.MTU != is.MTU:
		return Event{Kind: MTUChanged, MTU: is.MTU}, true
	case told.MAC != is.MAC:
		return Event{Kind: MACChanged, MAC: is.MAC}, true
	case told.ProgramID != is.ProgramID:
		return Event{Kind: ProgramChanged, ProgramID: is.ProgramID}, true
	case told.RxQueues != is.RxQueues || told.TxQueues != is.TxQueues:
		return Event{Kind: QueuesChanged, RxQueues: is.RxQueues, TxQueues: is.TxQueues}, true
	}
	for p := range told.Addresses {
		if !is.Addresses[p] {
			return Event{Kind: AddressRemoved, Prefix: p}, true
		}
	}
	for p := range is.Addresses {
		if !told.Addresses[p] {
			return Event{Kind: AddressAdded, Prefix: p}, true
		}
	}
	return Event{Kind: Up}, is.Up && !told.Up
}

// tell makes s what is known by who took the event.
func (s *State) tell(e Event) {
	switch e.Kind {
	case Up, Down:
		s.Up = e.Kind == Up
	case MTUChanged:
		s.MTU = e.MTU
	case MACChanged:
		s.MAC = e.MAC
	case AddressAdded:
		s.Addresses[e.Prefix] = true
	case AddressRemoved:
		delete(s.Addresses, e.Prefix)
	case ProgramChanged:
		s.ProgramID = e.ProgramID
	case QueuesChanged:
		s.RxQueues, s.TxQueues = e.RxQueues, e.TxQueues
	case Removed:
		s.Removed, s.Moved = true, e.Moved
	}
}

// Local is what is addressed to the interface itself: its addresses, with its hardware address, and
// the groups that anybody on this host has joined on it, with theirs. A removed one has none.
func (s *State) Local() xdp.Local {
	l := xdp.Local{}
	if s.Removed {
		return l
	}
	for p := range s.Addresses {
		l[p.Addr()] = s.MAC
	}
	for g := range s.Groups {
		if mac, ok := packet.MulticastMAC(g); ok {
			l[g] = mac
		}
	}
	return l
}

// addGroups4 adds the groups of an interface in what /proc/net/igmp holds: a line for each
// interface, which begins with its number, and behind it one for each group, which begins with a
// tab. The group is a number as it lies in the kernel's memory.
func addGroups4(groups map[netip.Addr]bool, text []byte, index int) {
	ours := false
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		switch {
		case len(words) == 0:
		case line[0] != '\t':
			ours = string(words[0]) == strconv.Itoa(index)
		case ours:
			if n, err := strconv.ParseUint(string(words[0]), 16, 32); err == nil {
				var b [4]byte
				binary.NativeEndian.PutUint32(b[:], uint32(n))
				groups[netip.AddrFrom4(b)] = true
			}
		}
	}
}

// addGroups6 adds those in what /proc/net/igmp6 holds: a line for each group, with the number and
// the name of its interface and the address.
func addGroups6(groups map[netip.Addr]bool, text []byte, index int) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) < 3 || string(words[0]) != strconv.Itoa(index) {
			continue
		}
		b, err := hex.DecodeString(string(words[2]))
		if a, ok := netip.AddrFromSlice(b); ok && err == nil && a.Is6() {
			groups[a] = true
		}
	}
}
