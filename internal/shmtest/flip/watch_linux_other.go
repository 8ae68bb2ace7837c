//go:build linux && !amd64

package flip

import "errors"

func (v *tracer) watch([]uint64) error   { return errors.ErrUnsupported }
func (v *tracer) stack() (uint64, error) { return 0, nil }
func (v *tracer) unwatch() error         { return nil }
func (v *tracer) accessed() bool         { return false }
