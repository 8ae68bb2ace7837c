//go:build !linux

package torture

import (
	"context"
	"errors"

	"github.com/shmring/shmring/internal/crash"
)

// Child runs no child here.
func Child([]string) (handled bool, code int) { return false, 0 }

// Run is errors.ErrUnsupported here.
func Run(context.Context, Options) (*Report, error) { return nil, errors.ErrUnsupported }

// Steps is empty here.
func Steps([]string) []crash.Label { return nil }

// Roles is empty here.
func Roles() []string { return nil }

// Lacks is errors.ErrUnsupported here.
func Lacks(string) error { return errors.ErrUnsupported }
