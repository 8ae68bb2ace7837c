package endpoint

import (
	"errors"
	"io"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/netif"
)

// Rest implements drive.Device.
func (r run) Rest(now int64, s *drive.Sleep) {
	r.lock()
	defer r.unlock()
	s.AtMost(r.checkAt - now)
	if !r.rxBlocked { // else it is readable, and that is no news
		s.On(r.socket.FD())
	}
	if r.rxBlocked || r.sending > 0 {
		s.Briefly()
	}
	r.asleep = r.sending == 0
	if r.dirty {
		r.publish(now)
	}
	r.stats.Polls++
}

// joinGroup returns a socket that is a member of the group on an interface, in the network
// namespace of the socket like.
func joinGroup(like, ifindex int, group netip.Addr) (io.Closer, error) {
	fd := -1
	err := inNamespaceOf(like, func() error {
		family := unix.AF_INET
		if group.Is6() {
			family = unix.AF_INET6
		}
		var err error
		fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	member := os.NewFile(uintptr(fd), "group")
	if group.Is4() {
		err = unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP,
			&unix.IPMreqn{Multiaddr: group.As4(), Ifindex: int32(ifindex)})
	} else {
		err = unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP,
			&unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(ifindex)})
	}
	if err != nil {
		_ = member.Close()
		return nil, err
	}
	return member, nil
}

// inNamespaceOf calls f in the network namespace that a socket was made in; without the privilege
// to go there, in that of the caller, which most often is the same.
func inNamespaceOf(socket int, f func() error) error {
	const siocgskns = 0x894c
	ns, err := unix.IoctlRetInt(socket, siocgskns)
	if err != nil {
		return f()
	}
	defer unix.Close(ns)
	if err := netif.InNamespace(ns, f); !errors.Is(err, netif.ErrNamespace) {
		return err
	}
	return f()
}
