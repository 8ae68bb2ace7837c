//go:build !linux

package command

import (
	"errors"

	"github.com/spf13/cobra"
)

func (s *serve) serve(*cobra.Command) error {
	return opFailed(s.dev, errors.ErrUnsupported)
}
