package xdp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is an AF_XDP socket on one queue of an interface. One goroutine uses it; that includes
// Close and the counters.
type Socket struct {
	core
	fd       int
	ifname   string
	ifindex  int
	queue    uint32
	umem     *UMEM
	holds    bool     // the UMEM is not to be unmapped
	maps     [][]byte // the four rings
	zeroCopy bool
	wakeup   bool // the kernel tells when it wants a kick
	slots    []programSlot
	sys      SyscallStats
	sim      *Kernel // plays the kernel; nil for a real socket
	closed   bool
}

type programSlot struct {
	program *Program
	slot    uint32
}

// Open makes a socket on a queue of an interface of the calling thread's network namespace, with
// frames in the fill ring. Nothing arrives before Register.
//
// Errors: [ErrNoDevice], [ErrLinkDown], [ErrNoQueue], [ErrQueueBusy], [ErrNoCapability],
// [ErrMemlock], [ErrNoZeroCopy], [ErrOptions], [ErrUMEMUsed]. Nothing is left after an error; only
// the UMEM may have been used up.
func Open(ifname string, queue uint32, umem *UMEM, o Options) (*Socket, error) {
	const op = "open socket"
	// The interface is looked up and the socket made in the network namespace of one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	o, err := o.resolve(umem.geo)
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
	}
	ifi, err := findInterface(op, ifname)
	if err != nil {
		return nil, err
	}
	if ifi.Flags&net.FlagUp == 0 {
		return nil, &Error{Pkg: pkg, Op: op, Name: ifname, Err: ErrLinkDown,
			Hint: fmt.Sprintf("try \"ip link set %s up\"", ifname)}
	}
	s := &Socket{fd: -1, ifname: ifname, ifindex: ifi.Index, queue: queue, umem: umem}
	if err := s.open(ifi.MTU, o); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func (s *Socket) open(mtu int, o Options) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return s.socketError(err)
	}
	s.fd = fd
	if !s.umem.used.CompareAndSwap(false, true) {
		return s.error("open socket", ErrUMEMUsed, "make a new UMEM for each socket")
	}
	s.holds = true
	s.umem.open.Store(true)
	if err := s.register(); err != nil {
		return err
	}
	if err := s.mapRings(o); err != nil {
		return err
	}
	s.initCore(mtu, o)
	s.tune(o)
	// Drivers want frames at hand when the pool is made, so before bind.
	s.Fill(int(o.FillEntries))
	if err := s.bind(o); err != nil {
		return err
	}
	var flags uint32
	if _, err := getXDPOption(s.fd, unix.XDP_OPTIONS, &flags); err != nil {
		return s.error("read granted mode", err, "")
	}
	s.zeroCopy = flags&unix.XDP_OPTIONS_ZEROCOPY != 0
	s.wakeup = !o.NoNeedWakeup
	return nil
}

func (s *Socket) socketError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return s.error("open socket", refine(ErrNoCapability, err),
			"run as root, or with CAP_NET_RAW")
	case errors.Is(err, unix.EAFNOSUPPORT):
		return s.error("open socket", refine(errors.ErrUnsupported, err),
			"the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
	}
	return s.error("open socket", err, "")
}

func (s *Socket) register() error {
	g := s.umem.geo
	err := registerUMEM(s.fd, s.umem.region.Bytes(), g.ChunkBytes, g.HeadroomBytes)
	if errors.Is(err, unix.ENOBUFS) {
		return s.error("register UMEM", refine(ErrMemlock, err), fmt.Sprintf(
			"%d KiB are to be locked beside what the user has locked already: raise \"ulimit -l\","+
				" take fewer frames, or run with CAP_IPC_LOCK", g.Bytes()>>10))
	}
	if err != nil {
		return s.error("register UMEM", err, "")
	}
	return nil
}

// initCore builds the core over rings that mapRings has laid out.
func (s *Socket) initCore(mtu int, o Options) {
	g := s.umem.geo
	s.mem, s.chunk, s.headroom = s.umem.region.Bytes(), uint64(g.ChunkBytes), uint64(g.HeadroomBytes)
	s.maxPacket = min(g.PacketBytes(), uint32(max(0, mtu))+minPacketBytes+tagBytes)
	s.mtu = uint32(max(0, mtu))
	s.frames = newFrameTable(g.Frames, g.Frames-o.SendFrames)
	s.context = make([]uint64, g.Frames)
}

// tune sets what makes copy mode faster and what an old kernel may not know, so errors are left.
func (s *Socket) tune(o Options) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, o.SendBufferBytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBufferBytes)
	}
	// How many packets one kick may send; 32 if this is not known. 32 is also the smallest value.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, int(o.TxEntries))
}

// bind retries while the queue is busy: a socket closed a moment ago holds it for a grace period.
func (s *Socket) bind(o Options) error {
	const pause = 2 * time.Millisecond
	sa := &unix.SockaddrXDP{Ifindex: uint32(s.ifindex), QueueID: s.queue}
	switch o.Mode {
	case BindCopy:
		sa.Flags |= unix.XDP_COPY
	case BindZeroCopy:
		sa.Flags |= unix.XDP_ZEROCOPY
	}
	if !o.NoNeedWakeup {
		sa.Flags |= unix.XDP_USE_NEED_WAKEUP
	}
	deadline := time.Now().Add(o.BusyTimeout)
	for {
		err := unix.Bind(s.fd, sa)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return s.bindError(err)
		}
		time.Sleep(pause)
	}
}

func (s *Socket) bindError(err error) error {
	op := fmt.Sprintf("bind queue %d of", s.queue)
	switch {
	case errors.Is(err, unix.EBUSY):
		return s.error(op, refine(ErrQueueBusy, err), "see \"ss --xdp -p\"; "+
			"stop the process that has it, or use another queue")
	case errors.Is(err, unix.EINVAL):
		return s.error(op, refine(ErrNoQueue, err),
			fmt.Sprintf("see \"ethtool -l %s\" for how many there are", s.ifname))
	case errors.Is(err, unix.ENODEV):
		return s.error(op, refine(ErrNoDevice, err), "")
	case errors.Is(err, unix.ENETDOWN):
		return s.error(op, refine(ErrLinkDown, err),
			fmt.Sprintf("try \"ip link set %s up\"", s.ifname))
	case errors.Is(err, unix.EOPNOTSUPP):
		return s.error(op, refine(ErrNoZeroCopy, err), "ask for copy mode")
	}
	return s.error(op, err, "")
}

func (s *Socket) error(op string, err error, hint string) error {
	return &Error{Pkg: pkg, Op: op, Name: s.ifname, Err: err, Hint: hint}
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
	return nil
}

// FD returns the descriptor, for poll. Beware that in copy mode polling runs the kernel's transmit
// path: leave nothing unsent.
func (s *Socket) FD() int { return s.fd }

// Queue returns the number of the queue.
func (s *Socket) Queue() uint32 { return s.queue }

// Interface returns name and index of the interface.
func (s *Socket) Interface() (name string, index int) { return s.ifname, s.ifindex }

// UMEM returns the memory of the frames.
func (s *Socket) UMEM() *UMEM { return s.umem }

// Mode is the mode that was granted: BindCopy or BindZeroCopy.
func (s *Socket) Mode() BindMode {
	if s.zeroCopy {
		return BindZeroCopy
	}
	return BindCopy
}

// SyscallStats counts the system calls made for this socket since Open.
func (s *Socket) SyscallStats() SyscallStats { return s.sys }

// KernelStats asks the kernel for its counters.
func (s *Socket) KernelStats() (KernelStats, error) {
	if s.closed {
		return KernelStats{}, s.error("read statistics", os.ErrClosed, "")
	}
	if s.sim != nil {
		return s.sim.Stats(), nil
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

// Close takes the socket out of the steering program and gives the queue back. The frames that the
// kernel had stay with this UMEM; nothing is received or sent any more, and calls do nothing.
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
	if err := s.release(); err != nil && first == nil {
		first = s.error("close socket", err, "")
	}
	return first
}

// release unmaps the rings first: each mapping holds the socket, and with it the queue, for ever.
func (s *Socket) release() error {
	s.fill, s.tx = deadProducer[uint64](), deadProducer[Desc]()
	s.rx, s.comp = deadConsumer[Desc](), deadConsumer[uint64]()
	var first error
	for _, m := range s.maps {
		if err := unix.Munmap(m); err != nil && first == nil {
			first = err
		}
	}
	s.maps = nil
	if s.holds {
		s.holds = false
		s.umem.open.Store(false)
	}
	if s.sim != nil {
		s.sim.unplug()
	}
	if s.fd >= 0 {
		if err := unix.Close(s.fd); err != nil && first == nil {
			first = err
		}
		s.fd = -1
	}
	return first
}
