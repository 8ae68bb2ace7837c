//go:build !linux

package hostile

import (
	"context"
	"errors"

	"github.com/shmring/shmring/internal/stage"
)

// Tool has no processes here.
var Tool = stage.Tool{Name: toolName, Play: func(*stage.Child) error {
	return errors.ErrUnsupported
}}

// Run is errors.ErrUnsupported here.
func Run(context.Context, Options) (*Report, error) { return nil, errors.ErrUnsupported }

// Names returns nothing here.
func Names() []string { return nil }
