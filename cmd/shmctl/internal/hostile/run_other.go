//go:build !linux

package hostile

import (
	"context"
	"errors"
)

// Child runs no child here.
func Child([]string) (handled bool, code int) { return false, 0 }

// Run is errors.ErrUnsupported here.
func Run(context.Context, Options) (*Report, error) { return nil, errors.ErrUnsupported }

// Names returns nothing here.
func Names() []string { return nil }
