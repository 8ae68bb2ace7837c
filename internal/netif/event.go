package netif

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/shmring/shmring/xdp"
)

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

var kindNames = [...]string{"", "link up", "link down", "MTU changed", "hardware address changed",
	"address added", "address removed", "XDP program changed", "queue count changed",
	"interface removed"}

// String returns the kind in words, or its number.
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

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
	// once; groups are looked at each Poll. It must not call Close.
	OnLocal func(xdp.Local)

	patience time.Duration // patienceNs, for tests
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
