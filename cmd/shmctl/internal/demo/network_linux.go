package demo

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/veth"
)

// network is the wire: two namespaces and the pair between them.
type network struct{ pair *veth.Pair }

// Ports of the two ends. They are private to the namespaces.
const (
	devicePort = 7000
	peerPort   = 7001
)

func openNetwork() (*network, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root: network namespaces and AF_XDP need it")
	}
	p, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, fmt.Errorf("no network namespaces: %w", err)
	}
	// Root of a container may have namespaces and still no raw sockets.
	if err := p.A.Do(tryRawSocket); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("no AF_XDP socket (CAP_NET_RAW is needed): %w", err)
	}
	return &network{p}, nil
}

func tryRawSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	return unix.Close(fd)
}

func (n *network) configure(c *config) {
	a, b := n.pair.A, n.pair.B
	c.Interface = a.Name
	c.Local = fmt.Sprintf("%v:%d", a.Addr, devicePort)
	c.Remote = fmt.Sprintf("%v:%d", b.Addr, peerPort)
	c.LocalMAC, c.RemoteMAC = a.MAC.String(), b.MAC.String()
}

func (n *network) device(f func() error) error { return n.pair.A.Do(f) }
func (n *network) peer(f func() error) error   { return n.pair.B.Do(f) }
func (n *network) close()                      { _ = n.pair.Close() }

// socketPair returns two connected sockets that the runtime can wait on.
func socketPair() (pair [2]*os.File, err error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		pair[i] = os.NewFile(uintptr(fd), "socketpair")
	}
	return pair, nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
