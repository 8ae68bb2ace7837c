package xdp

import (
	"errors"
	"sync"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// errDriven: one goroutine at a time.
var errDriven = shm.Sentinel("another goroutine drives this port", syscall.EBUSY)

// PortStats counts what a port did since it was made.
type PortStats struct {
	Received  uint64 // receive completions posted
	Malformed uint64 // packets dropped because they are no whole UDP datagram
	Returned  uint64 // frames that applications gave back
	Reclaimed uint64 // frames that a successor gave back for a dead application
	Accepted  uint64 // sends taken
	Completed uint64 // sends completed: the kernel is done with the packet
	Cancelled uint64 // sends answered with ECANCELED when the socket was closed
	Refused   uint64 // commands that made no sense, answered with an error where one can be
	Abandoned uint64 // sends that could not be answered: their queue is closed, or was full at the end
	LanesLost uint64 // lanes of the command queue given up because their writer broke them
	RxBlocked uint64 // rounds that left packets for want of room for completions
	TxBlocked uint64 // rounds that left commands for want of room for completions, or of frames
	LinkDown  uint64 // rounds that found the link down
	Polls     uint64 // system calls to sleep

	Frames   FrameStats
	Rings    RingStats
	Syscalls SyscallStats
	Kernel   KernelStats // up to a tenth of a second old
}

// publish makes the counters visible to other goroutines.
func (p *Port) publish(now int64) {
	p.stats.Frames, p.stats.Rings = p.core.FrameStats(), p.core.RingStats()
	p.stats.Syscalls = p.dev.SyscallStats()
	if now-p.kernAt >= kernelEveryNs || p.kernAt == 0 {
		p.askKernel()
		p.kernAt = now
	}
	p.statsAt, p.dirty = now, false
	p.statsMu.Lock()
	p.shown = p.stats
	p.statsMu.Unlock()
}

func (p *Port) askKernel() {
	if k, err := p.dev.KernelStats(); err == nil {
		p.stats.Kernel = k
	}
}

// Stats returns counters as of the last round that had nothing to do, or a millisecond old. It may
// be called from anywhere, and after Close.
func (p *Port) Stats() PortStats {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	return p.shown
}

// end closes the socket and answers what was promised an answer. The frames of sends under way are
// not used again: the kernel may still be reading them.
func (p *Port) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	for {
		n, err := p.reap()
		if n == 0 || err != nil {
			break
		}
	}
	p.askKernel()
	err := p.dev.Close()
	p.core.Forfeit(p.cancel)
	if e := p.endCommands(); err == nil {
		err = e
	}
	p.publish(doorbell.Now())
	return err
}

// endCommands answers the commands that were taken and not done, and hands them back to the queue
// as read.
func (p *Port) endCommands() error {
	for i := range p.pending {
		switch e := p.pending[i]; {
		case e.Flags == returnFlags || e.Flags == reclaimFlags:
			p.takeBack(&e)
		case p.tx.Credit(1) != nil:
			p.stats.Abandoned++
		default:
			p.cancel(e.Context)
		}
	}
	n := len(p.pending)
	p.pending = nil
	if err := p.q.Release(n); err != nil && !errors.Is(err, cq.ErrClosed) {
		return err
	}
	return nil
}

// cancel answers one send for which a credit is held.
func (p *Port) cancel(context uint64) {
	if p.fail(context, cq.Errno(syscall.ECANCELED)) != nil {
		p.stats.Abandoned++
		return
	}
	p.stats.Cancelled++
}

// waker ends the sleep of Run from another goroutine. The descriptor is -1 while nobody runs.
type waker struct {
	mu sync.Mutex
	fd int
}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		_ = doorbell.WriteEvent(w.fd) // fails only if it is set many times already
	}
}

// set changes the descriptor; the old one may be closed then.
func (w *waker) set(fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fd = fd
}
