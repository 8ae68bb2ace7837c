// Package veth joins two unnamed network namespaces by a pair of virtual Ethernet interfaces. It is
// for tests and demonstrations of the device path: nothing of it has a name in the system, so the
// kernel removes all of it when the last process that holds a descriptor ends, however it ends.
package veth

import (
	"net"
	"net/netip"
	"os"
)

// Config describes a pair. Zero values stand for the defaults.
type Config struct {
	NameA, NameB string       // "shmring0" and "shmring1" by default
	AddrA, AddrB netip.Prefix // IPv4; 192.0.2.1/24 and 192.0.2.2/24 by default
	Queues       int          // receive and send queues of each end; 1 by default
	MTU          int          // 1500 by default
}

func (c Config) resolve() Config {
	if c.NameA == "" {
		c.NameA = "shmring0"
	}
	if c.NameB == "" {
		c.NameB = "shmring1"
	}
	// TEST-NET-1, which is routed nowhere.
	if !c.AddrA.IsValid() {
		c.AddrA = netip.MustParsePrefix("192.0.2.1/24")
	}
	if !c.AddrB.IsValid() {
		c.AddrB = netip.MustParsePrefix("192.0.2.2/24")
	}
	if c.Queues == 0 {
		c.Queues = 1
	}
	if c.MTU == 0 {
		c.MTU = 1500
	}
	return c
}

// End is one end of a pair, in a namespace of its own.
type End struct {
	Name  string
	Index int
	MAC   net.HardwareAddr
	Addr  netip.Addr
	ns    *os.File
}

// NetNS returns the namespace, to be handed to a child process as one of its ExtraFiles; there,
// [Enter] takes it. It stays the End's.
func (e *End) NetNS() *os.File { return e.ns }

// Pair is two ends joined. Its methods are safe from any goroutine.
type Pair struct {
	A, B *End
}

// Close gives both namespaces up. They go away with the last socket and process in them.
func (p *Pair) Close() error {
	var first error
	for _, e := range []*End{p.A, p.B} {
		if e == nil || e.ns == nil {
			continue
		}
		if err := e.ns.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
