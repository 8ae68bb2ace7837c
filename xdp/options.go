package xdp

import (
	"cmp"
	"fmt"
	"math/bits"
	"net/netip"
	"time"
)

// BindMode says whether the driver and this process share frames without a copy.
type BindMode uint8

const (
	// BindAuto takes zero-copy where the driver can, and copies otherwise.
	BindAuto BindMode = iota
	// BindCopy always copies.
	BindCopy
	// BindZeroCopy fails with [ErrNoZeroCopy] where the driver cannot.
	BindZeroCopy
)

// String returns the mode in a word, or its number.
func (m BindMode) String() string {
	switch m {
	case BindAuto:
		return "auto"
	case BindCopy:
		return "copy"
	case BindZeroCopy:
		return "zerocopy"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Options of a socket. Zero values stand for the defaults.
type Options struct {
	// Entries of the rings, powers of two; 1024 each by default. The completion ring must not be
	// smaller than the transmit ring.
	RxEntries, TxEntries, FillEntries, CompEntries uint32
	// Frames is how many frames of the UMEM the socket takes; all that no socket has had, by default.
	Frames uint32
	// SendFrames of these are kept for sending, the others receive; a quarter by default. One kind
	// that runs dry never borrows from the other.
	SendFrames uint32
	Mode       BindMode
	// SendBufferBytes bounds what copy mode may have in flight in the kernel; 4 MiB by default.
	SendBufferBytes int
	// NoTxBudget leaves the number of packets that one system call sends at 32, so that no call takes
	// long. It is that of the transmit ring's entries otherwise, where the kernel can (6.17).
	NoTxBudget bool
	// BusyTimeout is how long to try while the queue is bound, by whomever; negative does not try
	// again. Zero tells the owners apart: the queue of a socket that was closed just now, or whose
	// process was killed, is waited for, up to ten seconds, and that of a process which lives, and
	// still has it after half a second, is a *[BusyError] then. A kernel that does not tell who
	// has a queue (without CONFIG_XDP_SOCKETS_DIAG) lets both look the same, and both are waited for.
	BusyTimeout time.Duration
	// NoNeedWakeup makes the driver poll rather than ask to be woken.
	NoNeedWakeup bool
	// MultiBuffer lets a packet lie in several frames, so that one longer than a chunk can be
	// received and sent (XDP_USE_SG). The program on the interface has to be one that takes such
	// packets (BPF_F_XDP_HAS_FRAGS). The receive ring needs room for MaxChain.
	MultiBuffer bool
	// SocketFD is an AF_XDP socket that a more privileged process made and handed over, or 0 to make
	// one. It may be in the map of a program already, and bound to an interface by SO_BINDTODEVICE.
	// Open takes it over, also when it fails, and needs no privilege then but memory to lock.
	SocketFD int
	// BusyPoll asks for the driver to be run by the system calls of this socket.
	BusyPoll BusyPoll
}

// BusyPoll is how a socket runs its driver itself, in place of interrupts; that needs a driver that
// can, and veth cannot: there the kernel takes the options and nothing changes. The zero value asks
// for nothing. The interface is to defer its interrupts too (napi_defer_hard_irqs and
// gro_flush_timeout in /sys/class/net).
type BusyPoll struct {
	Prefer      bool // rather than interrupts (SO_PREFER_BUSY_POLL)
	TimeoutUs   int  // microseconds of polling in a call (SO_BUSY_POLL)
	BudgetCount int  // packets in a call (SO_BUSY_POLL_BUDGET)
}

// SocketInfo is what a socket is bound to, and what the kernel made of its options.
type SocketInfo struct {
	Interface string
	Index     int    // of the interface
	Queue     uint32 // of the interface
	// Address is one that the interface had when the socket was opened, an IPv4 one if there was
	// one; the zero Addr if it had none.
	Address netip.Addr
	// NetNS names the network namespace of the socket, as long as the machine runs; 0 if the kernel
	// does not say (before 5.14), or there is none.
	NetNS   uint64
	Program *Program // that the socket was registered with last, nil if there is none
	// MTU is the longest packet that the interface takes, without the Ethernet header, when the socket
	// was opened or as SetMTU said since. PacketBytes is the longest one, with that header, that Post
	// takes, and ChainBytes the longest that PostChain does; without Options.MultiBuffer they are one.
	MTU, PacketBytes, ChainBytes int

	// Entries of the rings. Those of the fill and the completion ring are of all sockets on the
	// queue. After Close they mean nothing.
	RxEntries, TxEntries, FillEntries, CompEntries uint32

	Mode        BindMode // BindCopy or BindZeroCopy
	NeedWakeup  bool
	MultiBuffer bool
	// TxBudget is how many packets one system call sends in copy mode; 32 if the kernel cannot be
	// asked for more (before 6.17).
	TxBudget int
	// SendBufferBytes is what copy mode may have in flight in the kernel, which counts its own
	// bookkeeping too.
	SendBufferBytes int
	BusyPoll        BusyPoll // as read back, but for the budget, which no kernel tells
	BusyPollErr     error    // why busy polling is not as asked for; a privilege most often
}

const maxEntries = 1 << 20

// defaultTxBudget is how many packets one system call sends in copy mode if nobody asks for more,
// and the least that can be asked for.
const defaultTxBudget = 32

// resolve fills in defaults and checks what the kernel would refuse without saying why.
func (o Options) resolve(g Geometry) (Options, error) {
	for _, n := range []*uint32{&o.RxEntries, &o.TxEntries, &o.FillEntries, &o.CompEntries} {
		if *n == 0 {
			*n = 1024
		}
		if *n > maxEntries || bits.OnesCount32(*n) != 1 {
			return o, fmt.Errorf("%w: ring of %d entries, possible are powers of two to %d",
				ErrOptions, *n, maxEntries)
		}
	}
	if o.CompEntries < o.TxEntries {
		return o, fmt.Errorf("%w: completion ring of %d entries for a transmit ring of %d",
			ErrOptions, o.CompEntries, o.TxEntries)
	}
	if o.Frames > g.Frames {
		return o, fmt.Errorf("%w: %d frames of %d", ErrOptions, o.Frames, g.Frames)
	}
	if o.SendFrames > cmp.Or(o.Frames, g.Frames) {
		return o, fmt.Errorf("%w: %d frames for sending, of %d or fewer", ErrOptions, o.SendFrames,
			g.Frames)
	}
	if o.MultiBuffer && (o.RxEntries < MaxChain || o.TxEntries < MaxChain) {
		return o, fmt.Errorf("%w: rings of %d and %d entries for packets of %d frames",
			ErrOptions, o.RxEntries, o.TxEntries, MaxChain)
	}
	if o.Mode > BindZeroCopy {
		return o, fmt.Errorf("%w: bind %v", ErrOptions, o.Mode)
	}
	if o.SendBufferBytes == 0 {
		o.SendBufferBytes = 4 << 20
	}
	return o, nil
}

// given is the descriptor that was handed over, or -1.
func (o Options) given() int {
	if o.SocketFD > 0 {
		return o.SocketFD
	}
	return -1
}

// split divides the frames that a socket takes into those that receive and those that send.
func (o Options) split(frames uint32) (sendFrames uint32, err error) {
	if o.SendFrames == 0 {
		return frames / 4, nil
	}
	if o.SendFrames > frames {
		return 0, fmt.Errorf("%w: %d of %d frames for sending", ErrOptions, o.SendFrames, frames)
	}
	return o.SendFrames, nil
}

// KernelStats is what the kernel counts for a socket (XDP_STATISTICS), under the names that ss(8)
// prints. Counters that the kernel does not know are zero.
type KernelStats struct {
	RxDropped       uint64 // packets dropped for want of a frame that fits, or of memory
	RxInvalid       uint64 // bad entries in the fill ring
	RxQueueFull     uint64 // packets dropped because the receive ring was full
	RxFillRingEmpty uint64 // times that a packet found no frame in the fill ring
	TxInvalid       uint64 // bad entries in the transmit ring: a mistake of this package
	TxRingEmpty     uint64 // times that the kernel found nothing to send
}

// SyscallStats counts the system calls on the data path, and what they said.
type SyscallStats struct {
	Send       uint64 // sendto, to make the kernel send
	Receive    uint64 // recvfrom, to wake the driver or to look at the link
	Suppressed uint64 // kicks that were not necessary
	Again      uint64 // sends that stopped half way: budget, completion ring or socket buffer full
	// SendDropped counts packets that the device refused though they complete like all others:
	// its queue was full, or the packet had a length that it does not take.
	SendDropped uint64
}

// Hop is the way of packets to one destination: what is the same in the headers of all of them.
type Hop struct {
	LocalMAC [6]byte    // of the interface that they leave by
	NextMAC  [6]byte    // of the destination if it is on the link, of a gateway if not
	Source   netip.Addr // of the interface, as the route prefers it
	MTU      int        // bytes of the longest IP packet that the path takes; 0 if not known
	// Generation is another number as soon as anything above may have changed.
	Generation uint64
}

// Resolver finds the way to a destination; one of package netif asks the kernel. It must not block.
// Packages endpoint and device say when they call it, and what its errors mean.
type Resolver interface {
	Lookup(dst netip.Addr) (Hop, error)
}
