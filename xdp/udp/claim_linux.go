package udp

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// claim holds an address by a socket of the kernel that gets nothing: it is bound, and a filter
// drops what is not steered past it.
func claim(local netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	fd, bound = -1, local
	defer func() {
		if err != nil && fd >= 0 {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	family := unix.AF_INET
	if local.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, bound, os.NewSyscallError("socket", err)
	}
	if family == unix.AF_INET6 && !local.Addr().IsUnspecified() {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	} else if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
	if err != nil {
		return fd, bound, os.NewSyscallError("setsockopt", err)
	}
	if err = unix.Bind(fd, sockaddr(local)); err != nil {
		return fd, bound, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fd, bound, os.NewSyscallError("getsockname", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		bound = netip.AddrPortFrom(local.Addr(), uint16(sa.Port))
	case *unix.SockaddrInet6:
		bound = netip.AddrPortFrom(local.Addr(), uint16(sa.Port))
	}
	return fd, bound, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	sa := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	if i := zoneIndex(a.Addr().Zone()); i > 0 {
		sa.ZoneId = uint32(i)
	}
	return sa
}
