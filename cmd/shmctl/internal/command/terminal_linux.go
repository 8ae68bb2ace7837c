package command

import (
	"os"

	"golang.org/x/sys/unix"
)

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
