// Package file opens files by a directory and locks them by their open file descriptions. The
// kernel drops such a lock with the description, however its process ended.
package file

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Again repeats a call that a signal interrupted.
func Again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

// Open opens a file, close-on-exec. A mode is for one that is made.
func Open(dirfd int, name string, flags int, mode uint32) (fd int, err error) {
	err = Again(func() error {
		fd, err = unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// MoveNew moves a name to where no other name is lost by it.
func MoveNew(fromDir int, from string, toDir int, to string) error {
	return Again(func() error {
		return unix.Renameat2(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	})
}

func span(kind int16, at int64) unix.Flock_t {
	l := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET} // length 0: the whole file
	if at != Whole {
		l.Start, l.Len = at, 1
	}
	return l
}

// Lock locks one byte for the description behind fd, or the file; the error is [Busy] when others
// have it. Any number may share a lock.
func Lock(fd int, at int64, exclusive bool) error {
	l := span(unix.F_RDLCK, at)
	if exclusive {
		l.Type = unix.F_WRLCK
	}
	return Again(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l) })
}

// Unlock gives a lock up.
func Unlock(fd int, at int64) {
	l := span(unix.F_UNLCK, at)
	_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l)
}

// Locked reports whether another description has an exclusive lock. It asks for a read lock, with
// which only a write lock conflicts: who reads the file must not fake life. With shared it asks for
// a write lock, and shared ones are found too.
func Locked(fd int, at int64, shared bool) (bool, error) {
	l := span(unix.F_RDLCK, at)
	if shared {
		l.Type = unix.F_WRLCK
	}
	err := Again(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) })
	return err == nil && l.Type != unix.F_UNLCK, err
}

// GiveUp closes a private description with its locks. A process that is forked, but has not called
// exec yet, has the description too: with close alone the locks would stay until it does.
func GiveUp(fd int) {
	Unlock(fd, Whole)
	_ = unix.Close(fd)
}

// Busy tells that others have a lock from other errors.
func Busy(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }
