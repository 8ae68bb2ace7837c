// Package veth joins two unnamed network namespaces by a pair of virtual Ethernet interfaces. It is
// for tests and demonstrations of the device path: nothing of it has a name in the system, so the
// kernel removes all of it when the last process that holds a descriptor ends, however it ends.
package veth

import (
	"cmp"
	"net"
	"net/netip"
	"os"
)

// Config describes a pair. Zero values stand for the defaults. The ends have 192.0.2.1/24 and
// 192.0.2.2/24, of TEST-NET-1, which is routed nowhere.
type Config struct {
	NameA, NameB string // "shmring0" and "shmring1" by default
	Queues       int    // receive and send queues of each end; 1 by default
	MTU          int    // 1500 by default
}

func (c Config) resolve() Config {
	return Config{cmp.Or(c.NameA, "shmring0"), cmp.Or(c.NameB, "shmring1"), cmp.Or(c.Queues, 1),
		cmp.Or(c.MTU, 1500)}
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
