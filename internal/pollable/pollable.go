// Package pollable has descriptors that the runtime's poller watches: who waits for one costs a
// goroutine, and no thread.
package pollable

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/oserror"
)

// ErrRefused: the kernel watches no more descriptors, for want of memory or for this user (ENOMEM).
// It may later.
var ErrRefused = oserror.New("the kernel watches no more descriptors for now: see "+
	"fs.epoll.max_user_watches", syscall.ENOMEM)

// File takes a descriptor over, also if it fails, of a kind that can be watched. What calls of raw
// wait for ends with a deadline of the file.
func File(fd int, name string) (f *os.File, raw syscall.RawConn, err error) {
	if err = unix.SetNonblock(fd, true); err != nil { // else the poller does not take it
		_ = unix.Close(fd)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	f = os.NewFile(uintptr(fd), name)
	if raw, err = f.SyscallConn(); err == nil && f.SetReadDeadline(time.Time{}) != nil {
		err = ErrRefused
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, raw, nil
}

// Ready returns what poll says of a descriptor at once: 0 if there is none of the events, if it
// fails, or if this process may have no descriptors at all.
func Ready(fd uintptr, events int16) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	if n, err := unix.Poll(p, 0); err != nil || n <= 0 {
		return 0
	}
	return p[0].Revents
}

// Readable reports whether a descriptor has something to read, or its process has ended.
func Readable(fd uintptr) bool { return Ready(fd, unix.POLLIN) != 0 }
