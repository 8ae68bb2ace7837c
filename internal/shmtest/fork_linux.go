package shmtest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Fork makes a copy of this process that has all its descriptors and does nothing until it is
// killed, as C code makes one that forks and does not exec. It is for children of tests only: the
// copy does not end by itself.
//
//go:norace
func Fork() (pid int, err error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	for n == 0 { // one thread without a runtime: nothing but system calls can be done here
		_, _, _ = syscall.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	return int(n), nil
}
