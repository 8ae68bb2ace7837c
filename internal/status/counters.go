package status

import "github.com/shmring/shmring/xdp"

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
	k, r, s, t := &c.Kernel, &c.Rings, &c.Syscalls, &c.Traffic
	return [...]*uint64{
		&c.UpdatedNs, &c.Program, &c.Attach,
		&k.RxDropped, &k.RxInvalid, &k.RxQueueFull, &k.RxFillRingEmpty, &k.TxInvalid, &k.TxRingEmpty,
		&c.Frames.Frames, &c.Frames.States[0], &c.Frames.States[1], &c.Frames.States[2],
		&c.Frames.States[3], &c.Frames.States[4], &c.Frames.States[5], &c.Frames.States[6],
		&c.Frames.Illegal, &c.Frames.StaleReturn,
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
