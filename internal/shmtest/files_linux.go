package shmtest

import (
	"errors"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// LimitFiles has this process get no descriptors from that number on, until restore. Called again
// before that it can take more away, and give nothing back. Descriptor 0 stays: with a limit of 0
// poll(2) refuses whatever it is asked, and the death of a peer is not seen.
func LimitFiles(most uint64) (restore func()) {
	var had unix.Rlimit
	Need(unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	set := func(most uint64) {
		Need(unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: had.Max}, nil))
	}
	set(max(1, min(most, had.Cur)))
	return func() { set(had.Cur) }
}

// OpenFiles lists this process's descriptors, without asking for one while there are none.
func OpenFiles() (fds []int) {
	for fd := range 1024 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// FillGaps opens files until the next one would have a higher number than all that are open. So a
// limit counts how many more there can be.
func FillGaps() {
	for top := slices.Max(OpenFiles()); ; {
		if fd := Needs(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)); fd > top {
			Need(unix.Close(fd))
			return
		}
	}
}

// Sockets returns a connected pair of sockets of a type.
func Sockets(kind int) (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if a, err = Socket(fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if b, err = Socket(fds[1]); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// Connected returns a connected pair of sockets of a type, which end with the test.
func Connected(t testing.TB, kind int) (a, b *net.UnixConn) {
	t.Helper()
	a, b, err := Sockets(kind)
	return Have(a, err).In(t), Have(b, err).In(t)
}

// Socket takes a descriptor over.
func Socket(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
