//go:build !linux

package veth

import (
	"errors"
	"fmt"
	"runtime"
)

var errSystem = fmt.Errorf("veth: network namespaces on %s: %w", runtime.GOOS,
	errors.ErrUnsupported)

// Open needs Linux.
func Open(Config) (*Pair, error) { return nil, errSystem }

// Do needs Linux.
func (*End) Do(func() error) error { return errSystem }

// Enter needs Linux.
func Enter(int) error { return errSystem }

// SetUp needs Linux.
func (*End) SetUp(bool) error { return errSystem }

// Remove needs Linux.
func (*End) Remove() error { return errSystem }
