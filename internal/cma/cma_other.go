//go:build !linux

package cma

import "errors"

// Address is never of use where Read fails.
func Address([]byte) uint64 { return 0 }

// Read reports that this system has no such call.
func Read(int, uint64, []byte) error { return errors.ErrUnsupported }
