//go:build !linux

package doorbell

import (
	"errors"
	"sync/atomic"
)

// writeByte reports that the system is not supported.
func writeByte(int) error { return errors.ErrUnsupported }

func passAll() {}

// Forward passes nothing on: this system has no producers of other users.
func (*Bell) Forward(int, *atomic.Uint32, func() uint64) (stop func()) { return func() {} }
