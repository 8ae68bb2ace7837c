package rtnetlink

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrLost says that messages were dropped because the socket's buffer was full (ENOBUFS): what the
// receiver knows may be old, and only asking for everything again helps.
var ErrLost = errors.New("rtnetlink: messages were lost")

// ErrBusy says that the kernel has no memory for requests now.
var ErrBusy = errors.New("rtnetlink: no memory for requests")

var errClosed = fmt.Errorf("rtnetlink: %w", os.ErrClosed)

// BufferBytes is how long a buffer for Receive must be: the kernel makes no larger datagrams.
const BufferBytes = 64 << 10

// receiveBytes is what the socket holds for a receiver that does not keep up.
const receiveBytes = 1 << 20

// Groups is a set of kinds of changes: the bit 1<<(g-1) for each RTNLGRP number g.
type Groups uint32

// Join returns the set of groups of these RTNLGRP numbers, 1 to 32.
func Join(numbers ...int) Groups {
	var g Groups
	for _, n := range numbers {
		g |= 1 << (n - 1)
	}
	return g
}

// Conn is a socket in the network namespace of the thread that opened it. One goroutine receives;
// Send and Close may be called from anywhere.
type Conn struct {
	file *os.File
	raw  syscall.RawConn
	port uint32
}

// Open makes a socket that gets what changes in the groups. It needs no privilege.
func Open(g Groups) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK,
		unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: socket: %w", err)
	}
	c := &Conn{file: os.NewFile(uintptr(fd), "rtnetlink")}
	if err := c.bind(fd, g); err != nil {
		_ = c.file.Close()
		return nil, fmt.Errorf("rtnetlink: bind: %w", err)
	}
	return c, nil
}

func (c *Conn) bind(fd int, g Groups) (err error) {
	// Without the privilege to exceed the system's limit the socket gets as much as that allows.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes)
	}
	all := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: uint32(g)}
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
func (c *Conn) Port() uint32 { return c.port }

// Receive waits for a datagram and returns its length, or 0 for one that the kernel did not send.
// Errors are ErrLost, after which it can be called again, and os.ErrClosed.
func (c *Conn) Receive(buf []byte) (n int, err error) {
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
		return 0, ErrLost
	case failed != nil:
		return 0, fmt.Errorf("rtnetlink: receive: %w", failed)
	}
	if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != 0 {
		return 0, nil
	}
	return n, nil
}

// Send hands requests to the kernel, which carries them out before Send returns. It may wait for
// others who change the network's configuration. Errors are ErrBusy, after which none of them was
// carried out, and os.ErrClosed.
func (c *Conn) Send(requests []byte) error {
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
		return ErrBusy
	case failed != nil:
		return fmt.Errorf("rtnetlink: send: %w", failed)
	}
	return nil
}

// Close ends a Receive that waits.
func (c *Conn) Close() error { return c.file.Close() }
