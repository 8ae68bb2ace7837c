//go:build !linux

package drive

import (
	"context"
	"errors"
	"time"
)

// Sleep is how long a loop may sleep.
type Sleep struct{}

// Run needs Linux.
func (*Loop) Run(context.Context, time.Duration, Device) error { return errors.ErrUnsupported }
