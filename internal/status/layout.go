package status

import (
	"strings"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Prefix begins the names of all such objects.
const Prefix = "endpoint-"

const (
	sectInfo     shm.SectionKind = 0x4f464e49 // "INFO"
	sectCounters shm.SectionKind = 0x544e4f43 // "CONT"
	sectWish     shm.SectionKind = 0x48534957 // "WISH"
	sectUpdate   shm.SectionKind = 0x54445055 // "UPDT"
)

// infoWords is what does not change, as it lies in memory.
type infoWords struct {
	NetNS, Index, Queue, Bind, Flags  uint64
	Frames, ChunkBytes, HeadroomBytes uint64
	Rx, Tx, Fill, Comp                uint64
	Port, HasAddr                     uint64
	Addr                              [16]uint8
	UMEM, ReceiveID, TransmitID       [16]uint8
	Interface                         [16]uint8 // NUL-terminated, as all texts
	Receive, Transmit                 [72]uint8
}

const infoLayout = "netns ifindex queue bind flags frames chunk headroom rx tx fill comp port " +
	"has-addr u64, addr umem receive-id transmit-id 16, interface 16, receive transmit 72"

// Bits of Flags.
const (
	flagNeedWakeup = 1 << iota
	flagMultiBuffer
	flagPosted
	flagShared
)

// Words of the update section, which the owner of the object writes. Both are the number of an
// update: the first is stored before its first counter, the second after its last. So counters that
// were loaded between loads of the second and of the first, which are equal, are of one moment; and
// an owner that died in an update left them different.
const (
	updateBegun = iota
	updateEnded
	updateWords
)

// Offsets of the page that tools write.
const (
	wishGeneration = 0
	wishID         = 8 // two words
	wishBytes      = 24
)

func spec(id shm.UUID) shm.Spec {
	return shm.Spec{Kind: shm.KindEndpoint, UUID: id, Sections: []shm.Section{
		{Kind: sectInfo, Length: infoBytes, ElemSize: infoBytes, Capacity: 1,
			LayoutHash: kind.LayoutHash(infoLayout)},
		{Kind: sectCounters, Length: uint64(8 * len(counterNames)), ElemSize: 8,
			Capacity:   uint64(len(counterNames)),
			LayoutHash: kind.LayoutHash("u64 " + strings.Join(counterNames, " "))},
		{Kind: sectUpdate, Length: 8 * updateWords, ElemSize: 8, Capacity: updateWords,
			LayoutHash: kind.LayoutHash("begun ended u64")},
		{Kind: sectWish, Length: wishBytes, LayoutHash: kind.LayoutHash("generation u64, id 16")},
	}}
}

// words lays atomic words over the start of a section.
func words(mem []byte, n int) ([]*ring.Index, error) {
	out := make([]*ring.Index, n)
	for i := range out {
		w, err := ring.IndexAt(mem, uint64(8*i))
		if err != nil {
			return nil, err
		}
		out[i] = w
	}
	return out, nil
}

func text(b []uint8) string {
	if i := strings.IndexByte(string(b), 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// Counters is what an endpoint counts, and the state of its program and frames. Those of Kernel
// have the names that ss(8) prints.
type Counters struct {
	UpdatedNs uint64 // CLOCK_MONOTONIC
	// Program is the number of the steering program that the socket is registered with, 0 if there
	// is none, and Attach how that is attached.
	Program uint64
	Attach  uint64 // an xdp.AttachMode

	Kernel   xdp.KernelStats
	Frames   xdp.FrameStats
	Rings    xdp.RingStats
	Syscalls xdp.SyscallStats
	Traffic  Traffic
}

// Traffic is what the endpoint itself counts.
type Traffic struct {
	Received, Malformed, BadChecksum, UnknownSource, Truncated uint64
	Overrun, Returned, RxBlocked, NoBuffer                     uint64
	Accepted, Completed, Refused, Unreachable, Cancelled       uint64
	NoFrame, Resolving, LinkDown, Starved, Polls               uint64
}

// counterNames are the words in their order in memory.
var counterNames = []string{
	"updated_ns", "program_id", "attach_mode",
	"rx_dropped", "rx_invalid", "rx_queue_full", "rx_fill_ring_empty", "tx_invalid", "tx_ring_empty",
	"frames", "frames_free", "frames_fill", "frames_received", "frames_loaned", "frames_build",
	"frames_send", "frames_quarantine", "frames_illegal", "frames_stale_return",
	"ring_filled", "ring_received", "ring_posted", "ring_sent", "ring_bad_descriptors",
	"ring_faults",
	"calls_send", "calls_receive", "calls_suppressed", "calls_again", "send_dropped",
	"received", "malformed", "bad_checksum", "unknown_source", "truncated", "overrun", "returned",
	"rx_blocked", "no_buffer", "accepted", "completed", "refused", "unreachable", "cancelled",
	"no_frame", "resolving", "link_down", "starved", "polls",
}

// words returns the counters in the order of counterNames.
func (c *Counters) words() [49]*uint64 {
	k, f, r, s, t := &c.Kernel, &c.Frames, &c.Rings, &c.Syscalls, &c.Traffic
	return [...]*uint64{
		&c.UpdatedNs, &c.Program, &c.Attach,
		&k.RxDropped, &k.RxInvalid, &k.RxQueueFull, &k.RxFillRingEmpty, &k.TxInvalid, &k.TxRingEmpty,
		&f.Frames, &f.Free, &f.Fill, &f.Received, &f.Loaned, &f.Build, &f.Send, &f.Quarantine,
		&f.Illegal, &f.StaleReturn,
		&r.Filled, &r.Received, &r.Posted, &r.Sent, &r.BadDescriptors, &r.RingFaults,
		&s.Send, &s.Receive, &s.Suppressed, &s.Again, &s.SendDropped,
		&t.Received, &t.Malformed, &t.BadChecksum, &t.UnknownSource, &t.Truncated, &t.Overrun,
		&t.Returned, &t.RxBlocked, &t.NoBuffer, &t.Accepted, &t.Completed, &t.Refused,
		&t.Unreachable, &t.Cancelled, &t.NoFrame, &t.Resolving, &t.LinkDown, &t.Starved, &t.Polls,
	}
}

// AttachMode is how the program is attached.
func (c *Counters) AttachMode() xdp.AttachMode { return xdp.AttachMode(min(c.Attach, 0xff)) }

// CounterNames returns the names of the counters of [Snapshot.Words], in their order.
func CounterNames() []string { return counterNames }
