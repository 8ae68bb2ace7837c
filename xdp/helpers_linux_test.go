package xdp_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/veth"
)

func addrOf(e *veth.End, port int) *net.UDPAddr {
	return &net.UDPAddr{IP: e.Addr.AsSlice(), Port: port}
}

// dup returns a descriptor that is the caller's.
func dup(t testing.TB, fd int) uintptr {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	return uintptr(n)
}
