//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
)

func measure(context.Context, Options, []benchCase) ([]Row, error) {
	return nil, fmt.Errorf("bench: pinning processes needs Linux: %w", errors.ErrUnsupported)
}

// Child runs the bench child that args ask for, if they do: ChildCommand and what follows it.
func Child(args []string) (handled bool, code int) { return false, 0 }
