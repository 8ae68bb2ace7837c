package shm

import "syscall"

const errNoData = syscall.ENODATA
