package xdp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket on one queue of an interface. One goroutine uses it, Close and the
// counters included, and together with it all sockets that [OpenShared] made from it.
type Socket struct {
	core
	fd      int
	ifname  string
	ifindex int
	addr    netip.Addr
	queue   uint32
	netns   uint64 // cookie of its namespace
	umem    *UMEM
	holds   bool // the UMEM is not to be unmapped
	// registered: the memory is, by this socket.
	registered bool
	maps       [][]byte // the rings that are this socket's alone
	granted    Granted
	slots      []programSlot
	program    atomic.Pointer[Program] // of the last slot
	sys        SyscallStats
	sim        *xskernel.Kernel // plays the kernel; nil for a real socket
	closed     bool
}

type programSlot struct {
	program *Program
	slot    uint32
}

// Open makes a socket on a queue of an interface of the calling thread's network namespace, with
// frames in the fill ring. Nothing arrives before Register. ctx bounds how long a busy queue is
// waited for, beside Options.BusyTimeout.
//
// The UMEM may have sockets on other queues, or other interfaces, if they left frames to this one
// (Options.Frames). These sockets have nothing in common but the memory, so each may have a
// goroutine of its own; modes, NoNeedWakeup and MultiBuffer are those of the first. A second socket
// on the same queue is made by [OpenShared].
//
// Errors: [ErrNoDevice], [ErrLinkDown], [ErrNoQueue], [ErrQueueBusy], [ErrNoCapability],
// [ErrMemlock], [ErrNoZeroCopy], [ErrOptions], [ErrUMEMUsed]. Nothing is left after an error; only
// the frames may have been used up.
func Open(ctx context.Context, ifname string, queue uint32, umem *UMEM, o Options) (*Socket,
	error) {
	s := &Socket{fd: -1, ifname: ifname, queue: queue, umem: umem}
	if o.SocketFD > 0 {
		s.fd = o.SocketFD
	}
	if err := s.openOn(ctx, o); err != nil {
		_ = s.release()
		return nil, err
	}
	return s, nil
}

func (s *Socket) openOn(ctx context.Context, o Options) error {
	const op = "open socket"
	// The interface is looked up and the socket made in the network namespace of one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o, err := o.resolve(s.umem.geo)
	if err != nil {
		return &shm.Error{Pkg: pkg, Op: op, Name: s.ifname, Err: err}
	}
	ifi, err := findInterface(op, s.ifname)
	if err != nil {
		return err
	}
	if ifi.Flags&net.FlagUp == 0 {
		return &shm.Error{Pkg: pkg, Op: op, Name: s.ifname, Err: ErrLinkDown,
			Hint: fmt.Sprintf("try \"ip link set %s up\"", s.ifname)}
	}
	s.ifindex, s.addr = ifi.Index, firstAddress(ifi)
	if s.fd < 0 {
		if err := s.newSocket(); err != nil {
			return err
		}
	}
	return s.open(ctx, ifi.MTU, o)
}

// newSocket makes the socket itself, in the network namespace of the thread.
func (s *Socket) newSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return s.socketError(err)
	}
	s.fd = fd
	return nil
}

func (s *Socket) open(ctx context.Context, mtu int, o Options) error {
	if err := s.newPool(o); err != nil {
		return err
	}
	s.initCore(mtu, o)
	if err := s.mapRings(o); err != nil {
		return err
	}
	s.tune(o)
	// Drivers want frames at hand when the pool is made, so before bind.
	s.Fill(int(o.FillEntries))
	if err := s.bindUMEM(ctx, o); err != nil {
		return err
	}
	return s.readGranted()
}

// newPool takes frames of the UMEM, with no rings yet.
func (s *Socket) newPool(o Options) error {
	first, frames, err := s.umem.take(o.Frames)
	if err != nil {
		return s.error("open socket", err, "make a new UMEM, or leave frames with Options.Frames")
	}
	s.holds = true
	send, err := o.split(frames)
	if err != nil {
		return s.error("open socket", err, "")
	}
	newPool(s.umem.region.Bytes(), s.umem.geo, first, frames, send).join(&s.core)
	return nil
}

// initCore sets what does not depend on rings.
func (s *Socket) initCore(mtu int, o Options) {
	s.maxPacket = min(s.umem.geo.PacketBytes(), uint32(max(0, mtu))+frameOverhead)
	s.mtu = uint32(max(0, mtu))
	s.chains = o.MultiBuffer
	s.rx, s.tx = deadConsumer[xskernel.Desc](), deadProducer[xskernel.Desc]()
}

// OpenShared makes another socket on the queue of one that is open, with which it shares the
// frames, the fill ring and the completion ring; its receive and transmit rings are its own. The
// program on the interface decides which of them gets a packet. Each receives what was sent to it,
// and reaps what it sent; either may call Fill for all. One goroutine uses all of them.
//
// Of the options, RxEntries, TxEntries, SendBufferBytes, NoTxBudget, BusyPoll and SocketFD count.
// The calling thread is to be in
// the network namespace of the interface, and the MTU is that of the first socket.
//
// Errors: [ErrOptions], [ErrNoCapability], os.ErrClosed.
func OpenShared(first *Socket, o Options) (*Socket, error) {
	const op = "share queue of"
	if first.closed {
		return nil, first.error(op, os.ErrClosed, "")
	}
	if first.sim != nil {
		return nil, first.error(op, ErrOptions, "a simulated socket has its queue alone")
	}
	s, o, err := first.sibling(o)
	if err != nil {
		return nil, first.error(op, err, "")
	}
	if err := s.openShared(first, o); err != nil {
		_ = s.release()
		return nil, err
	}
	return s, nil
}

// sibling makes a member of the pool of s, with no rings yet.
func (s *Socket) sibling(o Options) (*Socket, Options, error) {
	o.Frames, o.SendFrames, o.FillEntries, o.CompEntries = 0, 0, 0, 0
	o.CompEntries = maxEntries // is as large as it is
	o.MultiBuffer = s.chains
	o, err := o.resolve(s.umem.geo)
	if err != nil {
		return nil, o, err
	}
	n := &Socket{fd: -1, ifname: s.ifname, ifindex: s.ifindex, addr: s.addr, queue: s.queue,
		umem: s.umem}
	if !s.pool.join(&n.core) {
		return nil, o, fmt.Errorf("%w: too many sockets on one queue", ErrOptions)
	}
	s.umem.hold()
	n.holds = true
	n.initCore(int(s.mtu), o)
	return n, o, nil
}

func (s *Socket) openShared(first *Socket, o Options) error {
	if o.SocketFD > 0 {
		s.fd = o.SocketFD
	} else if err := s.newSocket(); err != nil {
		return err
	}
	if err := s.mapOwnRings(o); err != nil {
		return err
	}
	s.tune(o)
	if err := s.bindShared(first.fd); err != nil {
		return err
	}
	s.granted.NeedWakeup, s.granted.MultiBuffer = first.granted.NeedWakeup, first.chains
	return s.readGranted()
}

func (s *Socket) error(op string, err error, hint string) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: s.ifname, Err: err, Hint: hint}
}

// Register tells the steering program to send what it redirects on this queue, for the group of
// ports that begins at slot base, to this socket. Close undoes it.
func (s *Socket) Register(p *Program, base uint32) error {
	if s.closed {
		return s.error("register socket", os.ErrClosed, "")
	}
	if s.sim != nil {
		return s.error("register socket", ErrOptions, "a simulated socket has no interface")
	}
	if p.ifindex != s.ifindex {
		// The kernel would drop every packet and say so in a trace point only.
		return s.error("register socket", fmt.Errorf("%w: program is attached to %q", ErrOptions,
			p.ifname), "attach it to the interface of the socket")
	}
	if err := p.put(base+s.queue, s); err != nil {
		return err
	}
	s.slots = append(s.slots, programSlot{p, base + s.queue})
	s.program.Store(p)
	return nil
}

// FD returns the descriptor, for poll. Beware that in copy mode polling runs the kernel's transmit
// path: leave nothing unsent.
func (s *Socket) FD() int { return s.fd }

// UMEM returns the memory of the frames.
func (s *Socket) UMEM() *UMEM { return s.umem }

// Info says what the socket is bound to and what became of the options. It makes no system call,
// and may be called from anywhere, also after Close.
func (s *Socket) Info() SocketInfo {
	return SocketInfo{Interface: s.ifname, Index: s.ifindex, Queue: s.queue, Address: s.addr,
		NetNS: s.netns, Granted: s.granted, Program: s.program.Load()}
}

// noteRings is called when the rings are there: they go with Close.
func (s *Socket) noteRings() {
	g := &s.granted
	g.RxEntries, g.TxEntries = uint32(len(s.rx.slots)), uint32(len(s.tx.slots))
	g.FillEntries, g.CompEntries = uint32(len(s.fill.slots)), uint32(len(s.comp.slots))
}

// SyscallStats counts the system calls made for this socket since Open.
func (s *Socket) SyscallStats() SyscallStats { return s.sys }

// KernelStats asks the kernel for its counters.
func (s *Socket) KernelStats() (KernelStats, error) {
	if s.closed {
		return KernelStats{}, s.error("read statistics", os.ErrClosed, "")
	}
	if s.sim != nil {
		return KernelStats(s.sim.Stats()), nil
	}
	var k unix.XDPStatistics
	if _, err := getXDPOption(s.fd, unix.XDP_STATISTICS, &k); err != nil {
		return KernelStats{}, s.error("read statistics", err, "")
	}
	return KernelStats{
		RxDropped: k.Rx_dropped, RxInvalid: k.Rx_invalid_descs, RxQueueFull: k.Rx_ring_full,
		RxFillRingEmpty: k.Rx_fill_ring_empty_descs, TxInvalid: k.Tx_invalid_descs,
		TxRingEmpty: k.Tx_ring_empty_descs,
	}, nil
}
