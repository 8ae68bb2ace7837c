//go:build !linux

package doorbell

import "errors"

// Register reports that this system has no membarrier: producers pay for order themselves.
func Register() error { return errors.ErrUnsupported }

// Barrier is never called where Register fails.
func Barrier() error { return errors.ErrUnsupported }

// RegisterPrivate reports that this system has no membarrier.
func RegisterPrivate() error { return errors.ErrUnsupported }

// BarrierPrivate is never called where RegisterPrivate fails.
func BarrierPrivate() error { return errors.ErrUnsupported }
