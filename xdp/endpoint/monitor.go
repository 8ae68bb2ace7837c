package endpoint

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// WatchOptions say what of an interface an endpoint looks after. The zero value will do.
type WatchOptions struct {
	// Program is the one that steers packets to the endpoint's socket: EventProgram says that
	// another one took its place, or that it is gone, also if that happened before Open. nil:
	// any change is told.
	Program *xdp.Program
	// Poll is how often that is looked at which the kernel does not tell of, programs and queue
	// counts; 1 s by default.
	Poll time.Duration
}

// monitor is what the watcher of the interface passes on to whoever drives the endpoint.
type monitor struct {
	watcher *netif.Watcher
	mtu     atomic.Int64 // of the interface; 0: nothing is known but what the socket says
	gone    atomic.Bool  // the interface is; set before the sleeper is woken

	// mu makes one writer of two: the watcher's goroutine, and whoever drives the endpoint.
	mu   sync.Mutex
	told bool // that the device is gone
}

// watch begins to follow the interface, in the network namespace of the socket.
func (e *Endpoint) watch() error {
	if e.cfg.Watch == nil {
		return nil
	}
	info := e.socket.Info()
	o := netif.WatchOptions{Poll: e.cfg.Watch.Poll, OnEvent: e.linkEvent}
	if p := e.cfg.Watch.Program; p != nil {
		o.ProgramID = p.Info().ID
	}
	var w *netif.Watcher
	err := inNamespaceOf(e.socket.FD(), func() (err error) {
		w, err = netif.Watch(info.Index, o)
		return err
	})
	if err != nil {
		return fault("open", err, elsewhere)
	}
	s := w.State()
	if s.Name != info.Interface {
		err := fmt.Errorf("%w: interface %d is called %s here", xdp.ErrOptions, info.Index, s.Name)
		return fault("open", errors.Join(err, w.Close()), elsewhere)
	}
	e.monitor.watcher = w
	e.monitor.mtu.CompareAndSwap(0, int64(s.MTU)) // it may have changed since the socket was opened
	return nil
}

const elsewhere = "call Open on a thread in the interface's network namespace"

// linkEvent takes what the watcher tells. It runs in the watcher's goroutine, and returns false if
// the event queue is full: the watcher comes again then, if things are still so.
func (e *Endpoint) linkEvent(l netif.Event) bool {
	if e.closed.Load() {
		return true
	}
	ev := cq.Event{FID: e.FID(), Context: e.cfg.Context}
	switch l.Kind {
	case netif.Removed:
		// Nothing else wakes who sleeps on the socket.
		e.monitor.gone.Store(true)
		e.loop.Wake()
		return e.tellGone()
	case netif.Up:
		e.loop.Wake() // packets wait in the ring
		ev.Event = cq.EventLinkUp
	case netif.Down:
		ev.Event = cq.EventLinkDown
	case netif.MTUChanged:
		e.monitor.mtu.Store(int64(l.MTU))
		ev.Event, ev.Data = cq.EventMTU, uint64(l.MTU)
	case netif.MACChanged:
		ev.Event, ev.Payload = cq.EventMAC, l.MAC[:]
	case netif.AddressAdded, netif.AddressRemoved:
		ev.Event = cq.EventAddressAdded
		if l.Kind == netif.AddressRemoved {
			ev.Event = cq.EventAddressRemoved
		}
		ev.Data, ev.Payload = uint64(l.Prefix.Bits()), l.Prefix.Addr().AsSlice()
	case netif.ProgramChanged:
		ev.Event, ev.Data = cq.EventProgram, uint64(l.ProgramID)
	case netif.QueuesChanged:
		ev.Event, ev.Data = cq.EventQueues, uint64(l.RxQueues)<<32|uint64(uint32(l.TxQueues))
	}
	return e.tell(&ev)
}

// tell writes an event and reports whether it need not come again.
func (e *Endpoint) tell(ev *cq.Event) bool {
	if e.cfg.Events == nil {
		return true
	}
	e.monitor.mu.Lock()
	defer e.monitor.mu.Unlock()
	if e.monitor.told {
		return true // that was the last there is to tell
	}
	_, err := e.cfg.Events.Write(ev)
	return !errors.Is(err, cq.ErrFull)
}

// tellGone reports once that the device is gone, as an error event with ENXIO.
func (e *Endpoint) tellGone() bool {
	e.monitor.mu.Lock()
	defer e.monitor.mu.Unlock()
	if e.cfg.Events == nil || e.monitor.told {
		return true
	}
	_, err := e.cfg.Events.WriteErr(&cq.EventError{FID: e.FID(), Context: e.cfg.Context,
		Err: cq.Errno(syscall.ENXIO)})
	e.monitor.told = !errors.Is(err, cq.ErrFull)
	return e.monitor.told
}

// mtu is the MTU of the interface as it is now. It is for whoever holds the lock.
func (e *Endpoint) mtu() int {
	if m := int(e.monitor.mtu.Load()); m != 0 && m != e.limits.MTU {
		e.socket.SetMTU(m)
		e.limits = e.socket.Info()
	}
	return e.limits.MTU
}

// checkGone ends the endpoint if the watcher found that its device is gone.
func (e *Endpoint) checkGone() error {
	if !e.monitor.gone.Load() {
		return nil
	}
	name := e.socket.Info().Interface
	err := &shm.Error{Pkg: pkg, Op: "use", Name: name, Err: xdp.ErrDeviceGone,
		Hint: "close the endpoint"}
	e.broke(err)
	return err
}

// starvedEveryNs bounds how often a lack of frames is looked for and told.
const starvedEveryNs = 1e9

// checkStarved tells of a kernel that could be given nothing. The frames were counted just now.
func (e *Endpoint) checkStarved(now int64) {
	s := &e.stats.Frames
	if s.Fill > 0 || s.Loaned == 0 || e.over || now-e.starvedAt < starvedEveryNs {
		return
	}
	e.starvedAt = now
	e.stats.Starved++
	// An event queue that is full is told again in a second.
	_ = e.tell(&cq.Event{Event: cq.EventStarved, FID: e.FID(), Context: e.cfg.Context,
		Data: s.Loaned})
}

// FID is the endpoint's identifier in events: its id is that of the interface's index and queue.
func (e *Endpoint) FID() cq.FID {
	index := e.socket.Info().Index
	return cq.FID{Kind: cq.FIDEndpoint, ID: uint64(uint32(index))<<32 | uint64(e.queue)}
}

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

// publishEveryNs is how old what others see may be while the endpoint is in use. It is the price of
// every send otherwise, since each ends in a round that finds nothing to do.
const publishEveryNs = 100e3

// publish makes the counters visible to other goroutines and to tools.
func (e *Endpoint) publish(now int64) {
	e.stats.Frames, e.stats.Rings = e.socket.FrameStats(), e.socket.RingStats()
	e.stats.Syscalls = e.socket.SyscallStats()
	e.checkStarved(now)
	e.stats.Kernel = e.object.Kernel(now)
	e.statsAt, e.dirty = now, false
	e.statsMu.Lock()
	e.shown = e.stats
	e.statsMu.Unlock()
	traffic := e.stats.traffic()
	e.object.Update(now, &traffic)
}

// Stats returns counters as of the last round that found nothing to do and followed no post, or of
// 100 µs before the last round; those of a shared endpoint as of now. It may be called from
// anywhere, and after Close.
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

// openObject makes what tools see of the endpoint.
func (e *Endpoint) openObject() {
	i := status.Info{Posted: e.cfg.Posted, Shared: e.cfg.Shared, Local: e.cfg.Local}
	name := func(w *cq.Writer) (string, shm.UUID) {
		if w == nil {
			return "", shm.UUID{}
		}
		s := w.Stats()
		return s.Queue, s.QueueID
	}
	i.Receive, i.ReceiveID = name(e.cfg.Receive)
	i.Transmit, i.TransmitID = name(e.cfg.Transmit)
	e.object = capture.Observe(e.cfg.NoObject, e.cfg.Directory, e.socket, i)
}

// traffic is what tools see of the counters.
func (s *Stats) traffic() status.Traffic {
	return status.Traffic{Received: s.Received, Malformed: s.Malformed,
		BadChecksum: s.BadChecksum, UnknownSource: s.UnknownSource, Truncated: s.Truncated,
		Overrun: s.Overrun, Returned: s.Returned, RxBlocked: s.RxBlocked, NoBuffer: s.NoBuffer,
		Accepted: s.Accepted, Completed: s.Completed, Refused: s.Refused,
		Unreachable: s.Unreachable, Cancelled: s.Cancelled, NoFrame: s.NoFrame,
		Resolving: s.Resolving, LinkDown: s.LinkDown, Starved: s.Starved, Polls: s.Polls}
}
