//go:build !linux

package command

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/shmring/shmring/internal/stage"
)

// Nothing that starts processes or serves a device is there on this system.
var tools []stage.Tool

func linuxVerbs() []*cobra.Command { return nil }

// windowSize says "no terminal": queues do not exist on this system.
func windowSize(*os.File) (columns, rows int, ok bool) { return 0, 0, false }
