//go:build !linux

package wake

import (
	"errors"
	"sync/atomic"
)

// Face is the descriptor side of a bell; this system has none.
type Face struct{}

// NewFace reports that the system has no eventfd.
func NewFace(int) (*Face, error) { return nil, errors.ErrUnsupported }

// FD returns -1.
func (*Face) FD() int { return -1 }

// EventFD returns -1.
func (*Face) EventFD() int { return -1 }

func (*Face) resets() uint64 { return 0 }

// Listen does nothing.
func (*Face) Listen(int, int) {}

func (*Face) tailBy(func(int) uint64) {}

func (*Face) Set()         {}
func (*Face) Reset() error { return errors.ErrUnsupported }

// Close does nothing.
func (*Face) Close() {}

// writeByte reports that the system is not supported.
func writeByte(int) error { return errors.ErrUnsupported }

func passAll() {}

// Forward passes nothing on: this system has no producers of other users.
func (*Bell) Forward(int, *atomic.Uint32, func() uint64) (stop func()) { return func() {} }
