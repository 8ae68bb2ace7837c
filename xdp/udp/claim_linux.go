package udp

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace that an interface was found in. Sockets are made in that of
// the calling thread, and connections are opened from anywhere.
type namespace struct {
	f    *os.File
	self unix.Stat_t
}

const threadNetns = "/proc/thread-self/ns/net"

func openNamespace() (*namespace, error) {
	f, err := os.Open(threadNetns)
	if err != nil {
		return nil, err
	}
	n := &namespace{f: f}
	if err := unix.Fstat(int(f.Fd()), &n.self); err != nil {
		_ = f.Close()
		return nil, err
	}
	return n, nil
}

// do runs f in the namespace. It needs CAP_SYS_ADMIN if the caller is in another one.
func (n *namespace) do(f func() error) (err error) {
	runtime.LockOSThread()
	var here unix.Stat_t
	if err := unix.Stat(threadNetns, &here); err != nil || here.Ino == n.self.Ino &&
		here.Dev == n.self.Dev {
		defer runtime.UnlockOSThread()
		return f()
	}
	back, err := os.Open(threadNetns)
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer back.Close()
	if err := unix.Setns(int(n.f.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the network namespace of the interface: %w", err)
	}
	err = f()
	if e := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); e != nil {
		// The thread stays locked, and ends with the goroutine.
		return fmt.Errorf("leave the network namespace of the interface: %w", e)
	}
	runtime.UnlockOSThread()
	return err
}

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
