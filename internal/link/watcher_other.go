//go:build !linux

package link

import "errors"

// Watcher follows one interface. There is none on this system.
type Watcher struct{}

// Watch follows an interface.
func Watch(ifname string, _ Options) (*Watcher, error) {
	return nil, &Error{Pkg: pkg, Op: "watch", Name: ifname, Err: errors.ErrUnsupported}
}

// WatchIndex is Watch by the number of the interface.
func WatchIndex(index int, _ Options) (*Watcher, error) {
	return nil, &Error{Pkg: pkg, Op: "watch", Got: index, Err: errors.ErrUnsupported}
}

// Events returns the channel on which differences are told.
func (w *Watcher) Events() <-chan Event { return nil }

// State returns how the interface is.
func (w *Watcher) State() State { return State{} }

// Err returns why nothing is heard of the interface any more.
func (w *Watcher) Err() error { return nil }

// Close ends the watcher.
func (w *Watcher) Close() error { return nil }
