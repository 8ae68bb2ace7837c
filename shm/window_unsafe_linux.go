package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sysBlank replaces a mapping by zero pages at the same addresses. The kernel does both under one
// lock, which an access that faults meanwhile waits for.
func sysBlank(mem []byte) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, flags)
	return err
}
