// Package eventfd is about the descriptors that a producer writes to, to wake a reader: an eventfd,
// or the writing end of a pipe or FIFO.
package eventfd

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Write adds one to an eventfd, or a byte to a FIFO. A full one is already readable.
func Write(fd int) error {
	one := [8]byte{1}
	_, err := unix.Write(fd, one[:])
	if err == unix.EAGAIN {
		return nil
	}
	return err
}

// Is reports whether fd is an eventfd. A number that another process wrote can mean anything
// by the time that it is used, and a ring must not be written into somebody's file.
func Is(fd int) bool {
	what, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err == nil && what == "anon_inode:[eventfd]"
}

// Dup returns a close-on-exec duplicate of a descriptor that a producer rings, or -1.
func Dup(fd int) int {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return dup
}

// Close closes a descriptor that a producer rings.
func Close(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// NewPipe makes the descriptors by which a producer of another user raises the reader's: it gets
// the writing end, which cannot be opened again for reading, and writes a byte where another
// producer would write to the reader's eventfd.
func NewPipe() (read, write int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, -1, os.NewSyscallError("pipe2", err)
	}
	return fds[0], fds[1], nil
}

// IsPipe reports whether fd is the writing end of a pipe.
func IsPipe(fd int) bool {
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_WRONLY && unix.Fstat(fd, &st) == nil &&
		st.Mode&unix.S_IFMT == unix.S_IFIFO
}
