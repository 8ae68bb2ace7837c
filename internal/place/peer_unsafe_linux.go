package place

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups returns the supplementary groups of the process that connected the other end of a
// socket.
func peerGroups(socket int) ([]int, error) {
	for n := 32; ; n *= 4 {
		groups := make([]uint32, n)
		size := uint32(4 * n)
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(socket), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS, uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == syscall.ERANGE && n < 1<<17: // the kernel allows 65536
			continue
		case errno == syscall.ENODATA: // of a connection without credentials
			return nil, nil
		case errno != 0:
			return nil, errno
		}
		list := make([]int, 0, size/4)
		for _, g := range groups[:min(int(size/4), n)] {
			list = append(list, int(g))
		}
		return list, nil
	}
}
