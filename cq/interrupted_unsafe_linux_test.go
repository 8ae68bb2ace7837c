package cq_test

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's of amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const saRestart = 0x10000000

// interrupts has the handler of a signal, which package signal installed, interrupt system calls
// for good. The runtime asks the kernel to begin most of them anew.
func interrupts(s syscall.Signal) error {
	var a sigaction
	if err := sigactionOf(s, nil, &a); err != nil {
		return err
	}
	a.flags &^= saRestart
	return sigactionOf(s, &a, nil)
}

func sigactionOf(s syscall.Signal, set, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(old)), unsafe.Sizeof(set.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
