package packet

import (
	"fmt"
	"net/netip"
	"syscall"
)

// Hop is the way of packets to one destination: what is the same in the headers of all of them.
type Hop struct {
	LocalMAC [6]byte    // of the interface that they leave by
	NextMAC  [6]byte    // of the destination if it is on the link, of a gateway if not
	Source   netip.Addr // of the interface, as the route prefers it
	MTU      int        // bytes of the longest IP packet that the path takes; 0 if not known
	// Generation is another number as soon as anything above may have changed.
	Generation uint64
}

// What a lookup of a hop can find instead of one.
var (
	// ErrResolving: the kernel has been asked for the hardware address and has no answer yet
	// (EAGAIN). Ask again later.
	ErrResolving = fmt.Errorf("packet: hardware address is being resolved: %w", syscall.EAGAIN)
	// ErrUnreachable: there is no route, or nobody answered (EHOSTUNREACH).
	ErrUnreachable = fmt.Errorf("packet: destination cannot be reached: %w", syscall.EHOSTUNREACH)
)
