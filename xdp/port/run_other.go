//go:build !linux

package port

import (
	"context"
	"errors"
)

// Run needs Linux.
func (*Port) Run(context.Context) error { return fault("run", "", errors.ErrUnsupported, "") }

func sealShrink(int) error { return errors.ErrUnsupported }
