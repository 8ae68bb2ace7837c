package xdp

import (
	"fmt"
	"math/bits"
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
	// SendFrames of the UMEM are kept for sending, the others receive; a quarter by default. A pool
	// that runs dry never borrows from the other.
	SendFrames uint32
	Mode       BindMode
	// SendBufferBytes bounds what copy mode may have in flight in the kernel; 4 MiB by default.
	SendBufferBytes int
	// BusyTimeout is how long to try while the queue is bound by a socket that was closed just
	// now, which the kernel takes tens of milliseconds to clean up. Half a second by default;
	// negative does not try again.
	BusyTimeout time.Duration
	// NoNeedWakeup makes the driver poll rather than ask to be woken.
	NoNeedWakeup bool
}

const maxEntries = 1 << 20

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
	if o.SendFrames == 0 {
		o.SendFrames = g.Frames / 4
	}
	if o.SendFrames > g.Frames {
		return o, fmt.Errorf("%w: %d of %d frames for sending", ErrOptions, o.SendFrames, g.Frames)
	}
	if o.Mode > BindZeroCopy {
		return o, fmt.Errorf("%w: bind %v", ErrOptions, o.Mode)
	}
	if o.SendBufferBytes == 0 {
		o.SendBufferBytes = 4 << 20
	}
	if o.BusyTimeout == 0 {
		o.BusyTimeout = 500 * time.Millisecond
	}
	return o, nil
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

// Total is the number of system calls.
func (s SyscallStats) Total() uint64 { return s.Send + s.Receive }
