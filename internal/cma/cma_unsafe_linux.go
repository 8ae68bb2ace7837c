package cma

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Address returns where b lies in this process.
func Address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Read fills b from an address of a process. What has been read after an error is not known.
// Errors: EPERM and ENOSYS, where it is not allowed; ESRCH; EFAULT, if not all of it is there.
func Read(pid int, at uint64, b []byte) error {
	if at > uint64(^uintptr(0)) {
		return unix.EFAULT
	}
	for len(b) > 0 {
		local := []unix.Iovec{{Base: &b[0]}}
		local[0].SetLen(len(b))
		n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n <= 0:
			return unix.EFAULT
		}
		b, at = b[n:], at+uint64(n)
	}
	return nil
}
