package command

import (
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/bench"
	"github.com/shmring/shmring/cmd/shmctl/internal/demo"
	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/stage"
)

// tools are those whose processes this program may be, see [stage.Enter].
var tools = []stage.Tool{bench.Tool, demo.Tool, hostile.Tool, torture.Tool}

// linuxVerbs are about what only Linux has: they start processes that share memory, or a device.
func linuxVerbs() []*cobra.Command {
	return []*cobra.Command{newDemo(), newBench(), newTorture(), byDevice(newServe())}
}

func windowSize(f *os.File) (columns, rows int, ok bool) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	// File.Fd would make the descriptor blocking.
	err = conn.Control(func(p uintptr) {
		fd := int(p)
		if _, e := unix.IoctlGetTermios(fd, unix.TCGETS); e != nil {
			return
		}
		ok = true
		if size, e := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); e == nil {
			columns, rows = int(size.Col), int(size.Row)
		}
	})
	return columns, rows, ok && err == nil
}
