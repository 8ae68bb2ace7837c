package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// padding returns how many bytes lie before the first multiple of unit, a power of two.
func padding(mem []byte, unit uint64) uint64 {
	return -uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) & (unit - 1)
}

func firstByte(mem []byte) *byte { return unsafe.SliceData(mem) }

// mapOver maps a file over a part of a range that is ours.
func mapOver(mem []byte, fd int, offset int64, prot int) error {
	_, err := unix.MmapPtr(fd, offset, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		prot, unix.MAP_SHARED|unix.MAP_FIXED)
	return err
}

// sysBlank replaces a mapping by zero pages at the same addresses. The kernel does both under one
// lock, which an access that faults meanwhile waits for.
func sysBlank(mem []byte) error {
	const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)),
		unix.PROT_READ|unix.PROT_WRITE, flags)
	return err
}
