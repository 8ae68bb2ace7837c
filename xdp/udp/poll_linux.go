package udp

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// pollable gives a descriptor to the runtime's poller, as a duplicate that is closed with the file.
func pollable(fd int) (*os.File, syscall.RawConn, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // else the runtime would not poll it
		_ = unix.Close(fd)
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fd), "packets")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, raw, nil
}

// wait calls look at once, and again each time that the descriptor has become readable, until look
// returns true or the file is closed.
func wait(raw syscall.RawConn, look func() bool) error {
	err := raw.Read(func(uintptr) bool { return look() })
	if errors.Is(err, os.ErrClosed) {
		return os.ErrClosed
	}
	return err
}
