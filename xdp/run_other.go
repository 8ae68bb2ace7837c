//go:build !linux

package xdp

import "context"

// Run needs Linux.
func (*Port) Run(context.Context) error { return &Error{Pkg: pkg, Op: "run port", Err: errSystem} }

func sealShrink(int) error { return errSystem }
