package xdp

import "net/netip"

// Hop is the way of packets to one destination: what is the same in the headers of all of them.
type Hop struct {
	LocalMAC [6]byte    // of the interface that they leave by
	NextMAC  [6]byte    // of the destination if it is on the link, of a gateway if not
	Source   netip.Addr // of the interface, as the route prefers it
	MTU      int        // bytes of the longest IP packet that the path takes; 0 if not known
	// Generation is another number as soon as anything above may have changed.
	Generation uint64
}

// Resolver finds the way to a destination; one of package netif asks the kernel. It must not block.
// Packages endpoint and device say when they call it, and what its errors mean.
type Resolver interface {
	Lookup(dst netip.Addr) (Hop, error)
}
