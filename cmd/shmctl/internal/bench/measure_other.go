//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/shmring/shmring/internal/stage"
)

func measure(context.Context, Options, []benchCase) ([]Row, error) {
	return nil, fmt.Errorf("bench: it needs Linux, to pin processes: %w", errors.ErrUnsupported)
}

// Tool has no processes here.
var Tool = stage.Tool{Name: toolName, Play: func(*stage.Child) error {
	return errors.ErrUnsupported
}}
