//go:build !linux

package torture

import (
	"context"
	"errors"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/stage"
)

// Tool has no processes here.
var Tool = stage.Tool{Name: toolName, Play: func(*stage.Child) error {
	return errors.ErrUnsupported
}}

// Run is errors.ErrUnsupported here.
func Run(context.Context, Options) (*Report, error) { return nil, errors.ErrUnsupported }

// Steps is empty here.
func Steps([]string) []crash.Label { return nil }

// Roles is empty here.
func Roles() []string { return nil }

// Lacks is errors.ErrUnsupported here.
func Lacks(string) error { return errors.ErrUnsupported }
