package netif

import (
	"errors"
	"fmt"
	"os"
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

// Receive waits for a datagram and returns its length, or 0 for one that the kernel did not send.
// Errors are errLost, after which it can be called again, and os.ErrClosed.
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
