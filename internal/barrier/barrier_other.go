//go:build !linux

package barrier

import "errors"

// Register reports that this system has no membarrier: producers pay for order themselves.
func Register() error { return errors.ErrUnsupported }

// All is never called where Register fails.
func All() error { return errors.ErrUnsupported }

// RegisterPrivate reports that this system has no membarrier.
func RegisterPrivate() error { return errors.ErrUnsupported }

// Private is never called where RegisterPrivate fails.
func Private() error { return errors.ErrUnsupported }
