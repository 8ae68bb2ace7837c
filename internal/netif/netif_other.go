//go:build !linux

package netif

import (
	"errors"
	"net/netip"

	"github.com/shmring/shmring/xdp"
)

// Watcher tells what happens to one interface. There is none on this system.
type Watcher struct{}

// Watch follows the interface of an index.
func Watch(index int, _ WatchOptions) (*Watcher, error) {
	return nil, &Error{Pkg: pkg, Op: "watch", Got: index, Err: errors.ErrUnsupported}
}

// State returns how the interface is.
func (w *Watcher) State() State { return State{} }

// Close ends the watcher.
func (w *Watcher) Close() error { return nil }

// Table knows the ways from one interface. There is none on this system.
type Table struct{}

// OpenTable makes the table of the interface of an index.
func OpenTable(index int, _ TableOptions) (*Table, error) {
	return nil, &Error{Pkg: pkg, Op: "open", Got: index, Err: errors.ErrUnsupported}
}

// Generation is another number after anything that a Lookup returned may have changed.
func (t *Table) Generation() uint64 { return 0 }

// Lookup returns the way to dst.
func (t *Table) Lookup(netip.Addr) (xdp.Hop, error) {
	return xdp.Hop{}, errors.ErrUnsupported
}

// Forget gives up what is known of dst.
func (t *Table) Forget(netip.Addr) {}

// Close ends the table.
func (t *Table) Close() error { return nil }
