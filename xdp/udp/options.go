package udp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/xdp"
)

// Options of [Open], [Listen] and [Dial]. The zero value is useful.
type Options struct {
	StackOptions // Zone is set by Open
	// Queues of the interface to use; all by default. Datagrams that arrive on others go to the
	// kernel, where the socket that holds the port of the connection drops them; if Unclaimed, they
	// are for whoever has the port there. The program counts them (xdp.Counters.NoSocket). So have
	// the device bring what is for connections to these queues ("ethtool -X", "ethtool -N").
	Queues []uint32
	// Program steers. By default Open attaches one of its own, as Attach says, and Close detaches
	// it. An interface has one program only: to have several stacks on it, or a stack beside other
	// sockets, share one. Unless Any, stacks tell it what is local (Program.SetLocal).
	Program *xdp.Program
	Attach  xdp.ProgramOptions
	// Slot is the first of the slots in Program that are the stack's: queue n has Slot+n.
	Slot uint32
	// UMEM and Socket size what each queue has. Chunks are chosen by the MTU.
	UMEM   xdp.UMEMOptions
	Socket xdp.Options
	// Resolver finds next hops. By default the kernel's routes and neighbours of the interface are
	// followed.
	Resolver xdp.Resolver
	// HopLimit and TrafficClass of what is sent; 64 and 0 by default.
	HopLimit, TrafficClass uint8
	// WrongChecksums hands out datagrams whose UDP checksum is wrong too. By default they are
	// dropped, as the kernel does; see endpoint.Config.
	WrongChecksums bool
	// Any gives connections on no address what comes for their port whatever its destination: for
	// other hosts' addresses, broadcast, of any VLAN, and such as the kernel would have forwarded.
	// Without it they get what is untagged and for an address of the interface and its hardware
	// address, or for a group that somebody has joined on it. Connections on an address get what is
	// untagged and for that, with Any of any VLAN.
	Any bool
	// Unclaimed leaves out the socket of the kernel that holds the port of each connection, so that
	// nobody else there gets it, EADDRINUSE is found, and no "port unreachable" is sent for what
	// reaches the kernel's stack.
	Unclaimed bool
}

// Listen opens a stack on an interface for one connection, which closes it. See [Open] for
// privileges and errors, and [Stack.Listen] for addresses.
func Listen(ctx context.Context, ifname string, local netip.AddrPort, o Options) (*Conn, error) {
	return only(ctx, ifname, o, func(s *Stack) (*Conn, error) { return s.Listen(local) })
}

// Dial is Listen for a connection that sends to and receives from one peer only.
func Dial(ctx context.Context, ifname string, local, remote netip.AddrPort, o Options) (*Conn,
	error) {
	return only(ctx, ifname, o, func(s *Stack) (*Conn, error) { return s.Dial(local, remote) })
}

func only(ctx context.Context, ifname string, o Options,
	open func(*Stack) (*Conn, error)) (*Conn, error) {
	s, err := Open(ctx, ifname, o)
	if err != nil {
		return nil, err
	}
	c, err := open(s)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	c.ownsStack.Store(true)
	return c, nil
}

// What the errors of this package wrap beside what package net has. errors.Is finds the OS error
// number in brackets too.
var (
	// ErrNoAnswer: nobody answers for the hardware address of the next hop (EHOSTUNREACH). As with
	// the kernel only a connected socket returns it; others have sent the datagram in vain.
	ErrNoAnswer = oserror.New("next hop does not answer", syscall.EHOSTUNREACH)
	// ErrNoControl: control data goes with a socket of the kernel only (EOPNOTSUPP).
	ErrNoControl = oserror.New("no control data without a kernel socket", syscall.EOPNOTSUPP)
	// ErrOptions: options that contradict each other (EINVAL).
	ErrOptions = oserror.New("bad options", syscall.EINVAL)
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
