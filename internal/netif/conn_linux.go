package netif

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// errLost says that messages were dropped because the socket's buffer was full (ENOBUFS): what the
// receiver knows may be old, and only asking for everything again helps.
var errLost = errors.New("netif: messages were lost")

// errBusy says that the kernel has no memory for requests now.
var errBusy = errors.New("netif: no memory for requests")

var errClosed = fmt.Errorf("netif: %w", os.ErrClosed)

// bufferBytes is how long a buffer for Receive must be: the kernel makes no larger datagrams.
const bufferBytes = 64 << 10

// receiveBytes is what the socket holds for a receiver that does not keep up.
const receiveBytes = 1 << 20

// join returns a set of kinds of changes: the bit 1<<(g-1) for each RTNLGRP number g, 1 to 32.
func join(numbers ...int) (groups uint32) {
	for _, g := range numbers {
		groups |= 1 << (g - 1)
	}
	return groups
}

// conn is a socket in the network namespace of the thread that opened it. One goroutine receives;
// Send and Close may be called from anywhere.
type conn struct {
	file *os.File
	raw  syscall.RawConn
	port uint32
}

// openConn makes a socket that gets what changes in the groups. It needs no privilege.
func openConn(groups uint32) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK,
		unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netif: socket: %w", err)
	}
	c := &conn{file: os.NewFile(uintptr(fd), "rtnetlink")}
	if err := c.bind(fd, groups); err != nil {
		_ = c.file.Close()
		return nil, fmt.Errorf("netif: bind: %w", err)
	}
	return c, nil
}

func (c *conn) bind(fd int, groups uint32) (err error) {
	// Without the privilege to exceed the system's limit the socket gets as much as that allows.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes)
	}
	all := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}
	if err := unix.Bind(fd, all); err != nil {
		return err
	}
	self, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	c.port = self.(*unix.SockaddrNetlink).Pid
	c.raw, err = c.file.SyscallConn()
	return err
}

// Port is the number by which the kernel knows the socket: answers carry it, changes do not.
func (c *conn) Port() uint32 { return c.port }

// Receive waits for a datagram and returns its length, or 0 for none, and for one that the kernel
// did not send. Errors are errLost, after which it can be called again, and os.ErrClosed.
func (c *conn) Receive(buf []byte) (n int, err error) {
	var from unix.Sockaddr
	var failed error
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			n, from, failed = unix.Recvfrom(int(fd), buf, unix.MSG_TRUNC)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil: // of the file, which has no deadline
		return 0, errClosed
	case failed == unix.ENOBUFS || n > len(buf):
		return 0, errLost
	case failed == unix.EINVAL: // it came to go on with a dump, which Send's thread ended meanwhile
		return 0, nil
	case failed != nil:
		return 0, fmt.Errorf("netif: receive: %w", failed)
	}
	if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
		return 0, nil
	}
	return n, nil
}

// Send hands requests to the kernel, which carries them out before Send returns. It may wait for
// others who change the network's configuration. Errors are errBusy, after which none of them was
// carried out, and os.ErrClosed.
func (c *conn) Send(requests []byte) error {
	var failed error
	err := c.raw.Control(func(fd uintptr) {
		kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
		for failed = unix.EINTR; failed == unix.EINTR; {
			failed = unix.Sendto(int(fd), requests, 0, kernel)
		}
	})
	switch {
	case err != nil:
		return errClosed
	case failed == unix.ENOBUFS || failed == unix.ENOMEM || failed == unix.EAGAIN:
		return errBusy
	case failed != nil:
		return fmt.Errorf("netif: send: %w", failed)
	}
	return nil
}

// Close ends a Receive that waits.
func (c *conn) Close() error { return c.file.Close() }

// system is the kernel itself.
type system struct {
	*conn
	mu     sync.Mutex
	fd     int // a socket for ioctl, in the namespace; -1 once it is closed
	groups [2]*os.File
}

// groupFiles list the groups of a namespace: that of the thread that opens them, for as long as
// they are open.
var groupFiles = [2]string{"/proc/thread-self/net/igmp", "/proc/thread-self/net/igmp6"}

var watchGroups = join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)

func openSystem() (*system, error) {
	c, err := openConn(watchGroups)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s := &system{conn: c, fd: fd}
	for i, path := range groupFiles {
		f, err := os.Open(path)
		switch {
		case err == nil:
			s.groups[i] = f
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
			return nil, errors.Join(err, s.Close())
		} // without /proc, or a family, there are no groups
	}
	return s, nil
}

func (s *system) Groups(index int) (map[netip.Addr]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[netip.Addr]bool{}
	for i, add := range []func(map[netip.Addr]bool, []byte, int){addGroups4, addGroups6} {
		f := s.groups[i]
		if f == nil {
			continue
		}
		_, err := f.Seek(0, io.SeekStart) // a closed one fails
		text, err2 := io.ReadAll(f)
		if err = errors.Join(err, err2); err != nil {
			return nil, err
		}
		add(groups, text, index)
	}
	return groups, nil
}

func (s *system) Channels(name string) (rx, tx int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}
	if s.fd < 0 {
		return 0, 0, os.ErrClosed
	}
	err = channelsOf(s.fd, name, &c)
	return int(c.rx + c.combined), int(c.tx + c.combined), err
}

func (s *system) Close() error {
	err := s.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return err
	}
	err = errors.Join(err, unix.Close(s.fd))
	for _, f := range s.groups {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	s.fd = -1
	return err
}

// ErrNamespace: the thread could not go to the network namespace. It needs CAP_SYS_ADMIN.
var ErrNamespace = errors.New("cannot enter the network namespace of the interface")

const threadNamespace = "/proc/thread-self/ns/net"

// OpenNamespace returns the network namespace of the calling thread.
func OpenNamespace() (*os.File, error) { return os.Open(threadNamespace) }

// InNamespace calls f in a network namespace: on the calling thread if that is there already, or
// else on another one, which needs CAP_SYS_ADMIN. After ErrNamespace f was not called.
func InNamespace(ns int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var here, there unix.Stat_t
	err := errors.Join(unix.Stat(threadNamespace, &here), unix.Fstat(ns, &there))
	if err != nil || here.Ino == there.Ino && here.Dev == there.Dev {
		return f()
	}
	result := make(chan error, 1)
	go func() { result <- visit(ns, f) }()
	return <-result
}

// visit has the thread go back before anybody else can run on it. If it cannot, it ends with the
// goroutine.
func visit(ns int, f func() error) error {
	runtime.LockOSThread()
	home, err := OpenNamespace()
	if err == nil {
		defer home.Close()
		err = unix.Setns(ns, unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	err = f()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
