//go:build !linux

package route

import (
	"context"
	"errors"
	"net/netip"

	"github.com/shmring/shmring/internal/packet"
)

// Table knows the ways from one interface. There is none on this system.
type Table struct{}

// Open makes the table of an interface.
func Open(ifname string, _ Options) (*Table, error) {
	return nil, &Error{Pkg: pkg, Op: "open", Name: ifname, Err: errors.ErrUnsupported}
}

// OpenIndex is Open by the number of the interface.
func OpenIndex(index int, _ Options) (*Table, error) {
	return nil, &Error{Pkg: pkg, Op: "open", Got: index, Err: errors.ErrUnsupported}
}

// Generation is another number after anything that a Lookup returned may have changed.
func (t *Table) Generation() uint64 { return 0 }

// Lookup returns the way to dst.
func (t *Table) Lookup(netip.Addr) (packet.Hop, error) {
	return packet.Hop{}, errors.ErrUnsupported
}

// Resolve is Lookup that waits.
func (t *Table) Resolve(context.Context, netip.Addr) (packet.Hop, error) {
	return packet.Hop{}, errors.ErrUnsupported
}

// Add makes mac the hardware address of dst.
func (t *Table) Add(netip.Addr, [6]byte) {}

// Remove undoes Add.
func (t *Table) Remove(netip.Addr) {}

// Learn notes that a packet from src came with this source hardware address.
func (t *Table) Learn(netip.Addr, [6]byte) {}

// Stats returns the counters.
func (t *Table) Stats() Stats { return Stats{} }

// Close ends the table.
func (t *Table) Close() error { return nil }

// Forget gives up what is known of dst.
func (t *Table) Forget(netip.Addr) {}
