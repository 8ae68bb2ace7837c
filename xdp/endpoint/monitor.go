package endpoint

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
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
	if m := int(e.monitor.mtu.Load()); m != 0 && m != e.socket.MTU() {
		e.socket.SetMTU(m)
	}
	return e.socket.MTU()
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
