package endpoint

import "github.com/shmring/shmring/xdp"

// Stats counts what an endpoint did since it was opened.
type Stats struct {
	Received      uint64 // receive completions posted, and messages that asked for none
	Malformed     uint64 // packets dropped because they are no whole UDP datagram over sound headers
	BadChecksum   uint64 // packets dropped because their UDP checksum is wrong
	NoShim        uint64 // packets dropped for want of the header of RemoteData
	UnknownSource uint64 // error entries for want of a known source
	Truncated     uint64 // messages that did not fit their buffer
	Overrun       uint64 // packets dropped because the queue was overrun
	Returned      uint64 // frames given back
	Forwarded     uint64 // frames that were sent on with what they held
	Reclaimed     uint64 // frames taken back from a dead reader
	RxBlocked     uint64 // rounds that left packets for want of room for completions
	NoBuffer      uint64 // rounds that left packets for want of a posted buffer

	Accepted    uint64 // sends taken
	Completed   uint64 // send completions posted
	Refused     uint64 // packets that the device did not take, answered with EIO
	Unreachable uint64 // sends answered with EHOSTUNREACH
	Cancelled   uint64 // operations answered with ECANCELED
	Abandoned   uint64 // operations that could not be answered: their queue is closed or overrun
	NoFrame     uint64 // posts refused for want of a frame
	Resolving   uint64 // posts refused for want of a hardware address
	LinkDown    uint64 // rounds that found the link down
	Starved     uint64 // times that the kernel had no frame left to receive into
	Polls       uint64 // system calls to sleep

	Frames   xdp.FrameStats
	Rings    xdp.RingStats
	Syscalls xdp.SyscallStats
	Kernel   xdp.KernelStats // up to a tenth of a second old
}

// kernelEveryNs is how often the kernel's counters are asked for: that is a system call.
const kernelEveryNs = 100e6

// publish makes the counters visible to other goroutines.
func (e *Endpoint) publish(now int64) {
	e.stats.Frames, e.stats.Rings = e.socket.FrameStats(), e.socket.RingStats()
	e.stats.Syscalls = e.socket.SyscallStats()
	if now-e.kernAt >= kernelEveryNs || e.kernAt == 0 {
		e.askKernel()
		e.kernAt = now
	}
	e.statsAt, e.dirty, e.unseen = now, false, true
	e.statsMu.Lock()
	e.shown = e.stats
	e.statsMu.Unlock()
}

// showEveryNs is how old what tools see may be while the endpoint is in use. It is the price of
// every send otherwise, since each ends in a round that finds nothing to do.
const showEveryNs = 100e3

// show makes what was published visible to tools.
func (e *Endpoint) show(now int64) {
	e.shownAt, e.unseen = now, false
	if e.object != nil {
		traffic := e.stats.traffic()
		e.object.Update(now, &e.stats.Kernel, &traffic)
	}
}

func (e *Endpoint) askKernel() {
	if k, err := e.socket.KernelStats(); err == nil {
		e.stats.Kernel = k
	}
}

// Stats returns counters as of the last round that had nothing to do, or a millisecond old; those
// of a shared endpoint as of now. It may be called from anywhere, and after Close.
func (e *Endpoint) Stats() Stats {
	if e.cfg.Shared {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.stats.Frames, e.stats.Rings = e.socket.FrameStats(), e.socket.RingStats()
		e.stats.Syscalls = e.socket.SyscallStats()
		return e.stats
	}
	e.statsMu.Lock()
	defer e.statsMu.Unlock()
	return e.shown
}
