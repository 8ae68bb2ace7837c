//go:build !linux

package shm

import "syscall"

const errNoData = syscall.EIO
