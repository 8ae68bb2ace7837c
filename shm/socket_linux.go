package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// sysBound reports whether some process has the socket that stands at a name. It asks as a socket
// of a kind that waits for nobody: the kernel looks for the owner of the file before anything else,
// so without one that is ECONNREFUSED, and with one of another kind EPROTOTYPE, whether it listens
// or not. A connection of its own kind would be ECONNREFUSED too before listen(2), and after it
// would trouble whoever accepts.
func sysBound(dirfd int, name string) (bool, error) {
	file, err := openFD(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer sysClose(file)
	info, err := sysStat(file)
	if err != nil {
		return false, err
	}
	if info.mode&unix.S_IFMT != unix.S_IFSOCK {
		return false, &Error{Field: "type", Got: fmt.Sprintf("%#o", info.mode&unix.S_IFMT),
			Want: "a socket", Err: ErrKind}
	}
	if uid := os.Geteuid(); int(info.uid) != uid {
		return false, &Error{Field: "owner", Got: info.uid, Want: uid, Err: ErrOwner}
	}
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false, err
	}
	defer sysClose(s)
	// By the descriptor: the name may mean another file by now, and may be longer than an address.
	at := &unix.SockaddrUnix{Name: "/proc/self/fd/" + strconv.Itoa(file)}
	err = again(func() error { return unix.Connect(s, at) })
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return false, nil
	case err == nil, errors.Is(err, unix.EPROTOTYPE), errors.Is(err, unix.EPERM):
		return true, nil // EPERM: a datagram socket that talks to another one only
	case errors.Is(err, unix.ENOENT): // which would say that the socket is gone
		return false, noProc()
	}
	return false, err
}

// sysLockDir opens a directory and locks that description, in a way of which nothing else in this
// package knows; EAGAIN when another one has it.
func sysLockDir(dirfd int) (int, error) {
	fd, err := sysOpenDir(dirfd, ".")
	if err != nil {
		return -1, err
	}
	err = again(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		sysClose(fd)
		return -1, err
	}
	return fd, nil
}

// giveUpDir is giveUp of such a lock.
func giveUpDir(fd int) {
	_ = unix.Flock(fd, unix.LOCK_UN)
	sysClose(fd)
}

// sysRenameNew renames what no other name is lost by.
func sysRenameNew(dirfd int, from, to string) error {
	return again(func() error {
		return unix.Renameat2(dirfd, from, dirfd, to, unix.RENAME_NOREPLACE)
	})
}

// sysMoveNew moves a name to another directory, where no other name is lost by it.
func sysMoveNew(from, to int, name string) error {
	return again(func() error {
		return unix.Renameat2(from, name, to, name, unix.RENAME_NOREPLACE)
	})
}
