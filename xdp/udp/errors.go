package udp

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/shmring/shmring/shm"
)

// What the errors of this package wrap beside what package net has. errors.Is finds the OS error
// number in brackets too.
var (
	// ErrResolving: the hardware address of the next hop is being asked for (EAGAIN). A Backend
	// returns it; a program never sees it.
	ErrResolving = shm.Sentinel("next hop not known yet", syscall.EAGAIN)
	// ErrNoAnswer: nobody answers for the hardware address of the next hop (EHOSTUNREACH). As with
	// the kernel only a connected socket returns it; others have sent the datagram in vain.
	ErrNoAnswer = shm.Sentinel("next hop does not answer", syscall.EHOSTUNREACH)
	// ErrNoControl: control data goes with a socket of the kernel only (EOPNOTSUPP).
	ErrNoControl = shm.Sentinel("no control data without a kernel socket", syscall.EOPNOTSUPP)
	// ErrOptions: options that contradict each other (EINVAL).
	ErrOptions = shm.Sentinel("bad options", syscall.EINVAL)
)

const pkg = "udp" // of errors

// errMissingAddress has the text of package net's.
var errMissingAddress = errors.New("missing address")

// readError is what a read failed with, as package net has it for the system call.
func (c *Conn) readError(call string, err error) error {
	if err == nil {
		return nil
	}
	return &net.OpError{Op: "read", Net: "udp", Source: c.laddr, Addr: c.RemoteAddr(),
		Err: sysError(call, err)}
}

// writeError is what a write failed with. It takes the address apart, so that one which did not
// fail does not allocate.
func (c *Conn) writeError(call string, to netip.AddrPort, err error) error {
	if err == nil {
		return nil
	}
	e := &net.OpError{Op: "write", Net: "udp", Source: c.laddr, Err: sysError(call, err)}
	if to.IsValid() {
		e.Addr = net.UDPAddrFromAddrPort(to)
	}
	return e
}

// sysError wraps an error that a system call would have returned. Those that package net has by
// itself it leaves alone.
func sysError(call string, err error) error {
	var addr *net.AddrError
	switch {
	case err == net.ErrClosed, err == os.ErrDeadlineExceeded, err == net.ErrWriteToConnected,
		err == errMissingAddress, errors.As(err, &addr):
		return err
	}
	return os.NewSyscallError(call, err)
}
