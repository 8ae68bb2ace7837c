//go:build !linux

package torture

import (
	"context"
	"errors"
)

// Child runs no child here.
func Child([]string) (handled bool, code int) { return false, 0 }

// Run is errors.ErrUnsupported here.
func Run(context.Context, Options) (*Report, error) { return nil, errors.ErrUnsupported }

// Roles is empty here.
func Roles() []string { return nil }
