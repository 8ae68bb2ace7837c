package shmtest

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Fenced reports whether membarrier(2) of another process orders what this one publishes: whether
// this process has registered for that. Linux says so since 6.3.
func Fenced() (bool, error) {
	const getRegistrations, registerGlobalExpedited = 1 << 9, 1 << 2
	have, _, errno := syscall.Syscall(unix.SYS_MEMBARRIER, getRegistrations, 0, 0)
	if errno != 0 {
		return false, errno
	}
	return have&registerGlobalExpedited != 0, nil
}
