package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
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
	maps       [][]byte   // the rings that are this socket's alone
	granted    SocketInfo // as far as that is the kernel's to say
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
	s := &Socket{fd: o.given(), ifname: ifname, queue: queue, umem: umem}
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
	s.SetMTU(mtu)
	s.chains = o.MultiBuffer
	s.rx, s.tx = deadConsumer[xskernel.Desc](), deadProducer[xskernel.Desc]()
}

// OpenShared makes another socket on the queue of one that is open, with which it shares the
// frames, the fill ring and the completion ring; its receive and transmit rings are its own. The
// program on the interface decides which of them gets a packet. Each receives what was sent to it,
// and reaps what it sent; either may call Fill for all. One goroutine uses all of them.
//
// Of the options, RxEntries, TxEntries, SendBufferBytes, NoTxBudget, BusyPoll and SocketFD count.
// The calling thread is to be in the network namespace of the interface, and the MTU is that of the
// first socket.
//
// Errors: [ErrOptions], [ErrNoCapability], [ErrLinkDown], [ErrDeviceGone], os.ErrClosed.
func OpenShared(first *Socket, o Options) (*Socket, error) {
	s := first.sibling(o)
	if err := s.openShared(first, o); err != nil {
		_ = s.release()
		if p := s.pool; p != nil { // it was the last member, and had nothing yet
			p.members, p.shared = p.members[:s.id], s.id > 1
		}
		return nil, err
	}
	return s, nil
}

// sibling is a socket on the queue of s, which is not in its pool yet.
func (s *Socket) sibling(o Options) *Socket {
	return &Socket{fd: o.given(), ifname: s.ifname, ifindex: s.ifindex, addr: s.addr,
		queue: s.queue, umem: s.umem}
}

// enter makes a sibling of first a member of its pool, with no rings yet.
func (s *Socket) enter(first *Socket, o Options) (Options, error) {
	o.Frames, o.SendFrames, o.FillEntries, o.CompEntries = 0, 0, 0, 0
	o.CompEntries = maxEntries // is as large as it is
	o.MultiBuffer = first.chains
	o, err := o.resolve(s.umem.geo)
	if err == nil && !first.pool.join(&s.core) {
		err = fmt.Errorf("%w: too many sockets on one queue", ErrOptions)
	}
	if err != nil {
		return o, err
	}
	s.umem.hold()
	s.holds = true
	s.initCore(int(first.mtu), o)
	return o, nil
}

func (s *Socket) openShared(first *Socket, o Options) (err error) {
	const op = "share queue of"
	if first.closed {
		return first.error(op, os.ErrClosed, "")
	}
	if first.sim != nil {
		return first.error(op, ErrOptions, "a simulated socket has its queue alone")
	}
	if o, err = s.enter(first, o); err != nil {
		return first.error(op, err, "")
	}
	if s.fd < 0 {
		if err := s.newSocket(); err != nil {
			return err
		}
	}
	if _, err := s.mapOwnRings(o); err != nil {
		return err
	}
	s.tune(o)
	if err := s.bindShared(first.fd); err != nil {
		if gone := first.Check(); errors.Is(gone, ErrDeviceGone) {
			return gone // bind has another number for it
		}
		return err
	}
	s.granted.NeedWakeup, s.granted.MultiBuffer = first.granted.NeedWakeup, first.chains
	return s.readGranted()
}

func (s *Socket) error(op string, err error, hint string) error {
	return &shm.Error{Pkg: pkg, Op: op, Name: s.ifname, Err: err, Hint: hint}
}

// Register tells the steering program to send what it redirects on this queue, for the group of
// ports that begins at slot base, to this socket, also if another one had the slot: no frame misses
// the rules meanwhile. Close undoes it.
func (s *Socket) Register(p *Program, base uint32) error {
	if s.closed {
		return s.error("register socket", os.ErrClosed, "")
	}
	if s.sim != nil {
		return s.error("register socket", ErrOptions, "a simulated socket has no interface")
	}
	known := p.netns != 0 && s.netns != 0
	if p.ifindex != s.ifindex || known && p.netns != s.netns {
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
	i := s.granted
	i.Interface, i.Index, i.Queue, i.Address = s.ifname, s.ifindex, s.queue, s.addr
	i.NetNS, i.Program = s.netns, s.program.Load()
	limits := s.limits.Load()
	mtu, maxPacket := uint32(limits>>32), uint32(limits)
	i.MTU, i.PacketBytes, i.ChainBytes = int(mtu), int(maxPacket), s.longestChain(mtu, maxPacket)
	return i
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

// Kick makes the kernel send what was flushed, if it needs to be told, and returns how many packets
// it has not begun with. That is not zero while the completion ring, the socket's buffer or the
// device is full, or the kernel has no memory: Reap and kick again.
//
// Errors: [ErrLinkDown], after which the packets wait for the link; [ErrDeviceGone].
func (s *Socket) Kick() (unsent int, err error) {
	if s.closed {
		return 0, s.error("kick", os.ErrClosed, "")
	}
	left := s.tx.pending()
	if left == 0 {
		return 0, nil
	}
	if s.granted.NeedWakeup && !s.tx.wantsWakeup() {
		s.sys.Suppressed++ // the driver is at it
		return int(left), nil
	}
	// Every round sends or drops at least one packet, or is the last one. The number of rounds is
	// bounded all the same, in case a kernel says otherwise for ever.
	for rounds := left; left > 0 && rounds > 0; rounds-- {
		e := s.sendto(left)
		now := s.tx.pending()
		progress := now < left
		left = now
		switch e {
		case 0:
			if s.granted.Mode == BindZeroCopy {
				return int(left), nil // the driver was woken and goes on by itself
			}
		case unix.EAGAIN:
			s.sys.Again++
		case unix.EBUSY:
			// One packet was dropped by the device and completes all the same; the kernel stopped
			// there. It counts as progress even if the index is not published yet.
			s.sys.SendDropped++
			progress = true
		case unix.EINTR:
			progress = true
		case unix.ENOBUFS, unix.ENOMEM:
			return int(left), nil // no memory just now
		default:
			return int(left), s.deviceError(e)
		}
		if !progress {
			break
		}
	}
	return int(left), nil
}

// rawKick is up to how many packets a kick is not announced to the Go scheduler, which takes a
// tenth of the time of sending one packet in copy mode, some microsecond. Nothing else of this
// thread can run meanwhile, a garbage collection that is to stop it included, so it must not last:
// with MSG_DONTWAIT the kernel waits for nothing there but the socket's mutex, which a poll of the
// same socket holds for as long as it sends. Larger kicks do not gain: 64 measured as 8.
const rawKick = 8

func (s *Socket) sendto(unsent uint32) unix.Errno {
	s.sys.Send++
	if s.sim != nil {
		return s.sim.SendTo()
	}
	if unsent <= rawKick {
		_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		return e
	}
	_, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// WakeFill wakes the driver if it sleeps for want of frames to receive into. Call it after Fill. In
// copy mode the kernel never asks for it.
func (s *Socket) WakeFill() error {
	if s.closed || !s.granted.NeedWakeup || !s.fill.wantsWakeup() {
		return nil
	}
	return s.Check()
}

// Check asks the kernel whether the link is up and the device still there, which poll never tells:
// a socket whose interface is removed just stays silent. The cost is a system call.
//
// Errors: [ErrLinkDown], [ErrDeviceGone].
func (s *Socket) Check() error {
	if s.closed {
		return s.error("check", os.ErrClosed, "")
	}
	s.sys.Receive++
	switch e := s.recvfrom(); e {
	case 0, unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOBUFS:
		return nil
	default:
		return s.deviceError(e)
	}
}

func (s *Socket) recvfrom() unix.Errno {
	if s.sim != nil {
		return s.sim.State()
	}
	_, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

func (s *Socket) deviceError(e error) error {
	switch {
	case errors.Is(e, unix.ENETDOWN):
		return s.error("use socket on", refine(ErrLinkDown, e), "packets wait until it is up again")
	case errors.Is(e, unix.ENXIO):
		return s.error("use socket on", refine(ErrDeviceGone, e), "close the socket")
	}
	return s.error("use socket on", e, "")
}

// membarrierGlobal waits until every thread, and every softirq, has been through a barrier
// (MEMBARRIER_CMD_GLOBAL).
const membarrierGlobal = 1

// sectionGrace is far longer than a driver is in one section that reads the program.
const sectionGrace = 20 * time.Millisecond

// Close takes the socket out of the steering program and gives the queue back, unless other sockets
// share it. The frames that the kernel had stay with this UMEM; nothing is received or sent any
// more, and calls do nothing, except that Reap may return what other sockets came upon, and Forfeit
// the rest.
func (s *Socket) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	var first error
	for _, e := range s.slots {
		if err := e.program.remove(e.slot, s); err != nil && first == nil {
			first = err
		}
	}
	s.slots = nil
	s.program.Store(nil)
	if err := s.release(); err != nil && first == nil {
		first = s.error("close socket", err, "")
	}
	return first
}

// release unmaps the rings first: each mapping holds the socket, and with it the queue, for ever.
func (s *Socket) release() error {
	last := s.pool == nil || s.pool.leave()
	if !last {
		s.takeBack()
	}
	s.rx, s.tx = deadConsumer[xskernel.Desc](), deadProducer[xskernel.Desc]()
	maps := s.maps
	s.maps = nil
	if last && s.pool != nil {
		s.fill, s.comp = deadProducer[uint64](), deadConsumer[uint64]()
		maps = append(maps, s.pool.maps...)
		s.pool.maps = nil
	}
	var first error
	for _, m := range maps {
		if err := unix.Munmap(m); err != nil && first == nil {
			first = err
		}
	}
	if s.sim != nil {
		s.sim.Unplug()
	}
	if s.holds {
		s.holds = false
		s.umem.drop(s)
	}
	if s.fd >= 0 {
		if err := unix.Close(s.fd); err != nil && first == nil {
			first = err
		}
		s.fd = -1
	}
	return first
}

// takeBack gives the others of the pool the frames that lie in the rings of this socket, which are
// never looked at again. It is out of the steering program by now.
func (s *Socket) takeBack() {
	if s.sim == nil {
		// A driver that saw the socket in the program may be about to write to its ring. It does so
		// within one section of what this call waits for (synchronize_rcu).
		_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
		if errno != 0 { // a filter of system calls refuses it: let the section end
			time.Sleep(sectionGrace)
		}
	}
	s.discard(int(s.rx.available(s.rx.mask + 1)))
	s.rx.release()
	s.abandonAll()
	if s.granted.Mode != BindZeroCopy {
		s.withdraw() // a driver takes what was flushed, and completes it
	}
}
