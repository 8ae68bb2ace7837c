package route

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/rtnetlink"
	"github.com/shmring/shmring/xdp"
)

// kernel is who is asked and tells of changes. A test plays it.
type kernel interface {
	Port() uint32
	Send(requests []byte) error
	Receive(buf []byte) (int, error)
	Close() error
}

// Table knows the ways from one interface. All methods may be called from anywhere.
type Table struct {
	gen  atomic.Uint64 // moved by what holds mu, after everything that it tells of is in place
	tick atomic.Int64  // the time, in attempts, for lookups to note
	opt  Options
	k    kernel

	// mu is never held while anybody waits, so a lookup does not wait either.
	mu         sync.RWMutex
	index      int
	name       string
	link       rtnetlink.Link
	fault      error // why there are no answers any more
	upNs       int64 // when the interface came up, while routes may not all be back; else 0
	dests      map[netip.Addr]*destination
	neighbours map[netip.Addr]*neighbour // by next hop
	learnt     map[netip.Addr]*lesson
	static     map[netip.Addr][6]byte
	asks       asks
	changed    bool          // since gen moved
	change     chan struct{} // closed when gen moves
	stats      Stats

	refreshedNs int64
	kick        chan struct{}
	stop        chan struct{}
	end         sync.Once
	running     sync.WaitGroup
	closeErr    error
}

// destination is an address that was looked up.
type destination struct {
	addr netip.Addr
	hop  packet.Hop
	err  error
	used atomic.Int64 // the tick of the last lookup

	asked  bool // for the route: it is queued or sent
	known  bool // the rest is what the kernel said
	refuse error
	kind   uint8 // RTN_*
	next   netip.Addr
	source netip.Addr
	mtu    int
}

// neighbour is what the kernel has of a next hop, and who needs it.
type neighbour struct {
	rtnetlink.Neighbour
	users   map[*destination]struct{}
	askedNs int64  // when it was last solicited; 0 if never
	again   bool   // it is to be once more, when that is long enough ago
	refused bool   // the kernel would not
	dump    uint32 // the last dump that had it
}

// lesson is a hardware address learnt from a packet.
type lesson struct {
	mac  [6]byte
	tick atomic.Int64 // of the last packet
}

var groups = rtnetlink.Join(unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)

// Open makes the table of an interface in the network namespace of the calling thread, and follows
// it there until Close. It needs no privilege; see the package about CAP_NET_ADMIN. Errors are
// xdp.ErrNoDevice, and what the kernel has against a socket.
func Open(ifname string, o Options) (*Table, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "open", Name: ifname, Err: xdp.ErrNoDevice,
			Hint: "see \"ip link\" for the interfaces of this network namespace"}
	}
	return OpenIndex(i.Index, o)
}

// OpenIndex is Open by the number of the interface.
func OpenIndex(index int, o Options) (*Table, error) {
	k, err := rtnetlink.Open(groups)
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "open", Err: err}
	}
	return open(k, index, o)
}

func open(k kernel, index int, o Options) (*Table, error) {
	t := newTable(k, index, o)
	buf := make([]byte, rtnetlink.BufferBytes)
	t.resync()
	for t.starting() {
		if err := t.pump(doorbell.Now()); err != nil {
			return nil, t.failOpen(err)
		}
		if err := t.receive(buf); err != nil {
			return nil, t.failOpen(err)
		}
	}
	if t.fault != nil {
		return nil, t.failOpen(xdp.ErrNoDevice)
	}
	t.running.Go(func() { t.listen(buf) })
	t.running.Go(t.work)
	return t, nil
}

func newTable(k kernel, index int, o Options) *Table {
	t := &Table{opt: o.resolve(), k: k, index: index, change: make(chan struct{}),
		dests: map[netip.Addr]*destination{}, neighbours: map[netip.Addr]*neighbour{},
		learnt: map[netip.Addr]*lesson{}, static: map[netip.Addr][6]byte{},
		kick: make(chan struct{}, 1), stop: make(chan struct{}), refreshedNs: doorbell.Now()}
	t.asks.routes = map[uint32]question{}
	t.asks.uses = map[uint32]netip.Addr{}
	t.gen.Store(1)
	t.tick.Store(1)
	return t
}

func (t *Table) failOpen(err error) error {
	return &Error{Pkg: pkg, Op: "open", Name: t.name, Field: "interface", Got: t.index,
		Err: errors.Join(err, t.k.Close())}
}

// starting reports whether the first answers are not all there.
func (t *Table) starting() bool {
	return t.fault == nil && (t.name == "" || t.asks.dumpWanted || t.asks.dumpSeq != 0)
}

// listen takes what the kernel says, until the socket is closed.
func (t *Table) listen(buf []byte) {
	for {
		err := t.receive(buf)
		select {
		case <-t.stop:
			return
		default:
		}
		if err != nil {
			t.fail(err)
			return
		}
	}
}

// receive takes one datagram.
func (t *Table) receive(buf []byte) error {
	n, err := t.k.Receive(buf)
	if errors.Is(err, rtnetlink.ErrLost) {
		t.resync()
		return nil
	}
	if err != nil {
		return err
	}
	t.handle(buf[:n])
	return nil
}

// work asks the kernel what is to be asked, and keeps the time.
func (t *Table) work() {
	ticker := time.NewTicker(t.opt.Attempt)
	defer ticker.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-t.kick:
		case <-ticker.C:
			t.advance(doorbell.Now())
		}
		if err := t.pump(doorbell.Now()); err != nil && !t.again(err) {
			return
		}
		if !t.pause() {
			return
		}
	}
}

// again reports whether requests that were not taken can come again with the next tick.
func (t *Table) again(err error) bool {
	select {
	case <-t.stop:
		return false
	default:
	}
	if !errors.Is(err, rtnetlink.ErrBusy) {
		t.fail(err)
		return false
	}
	t.mu.Lock()
	t.asks.unsent = true
	t.mu.Unlock()
	return true
}

// pause lets changes that come in storms gather, so that one round of questions serves many. It
// reports whether to go on.
func (t *Table) pause() bool {
	t.mu.RLock()
	dirty := t.asks.dirty
	t.mu.RUnlock()
	if !dirty {
		return true
	}
	select {
	case <-t.stop:
		return false
	case <-time.After(calm):
		t.wake()
		return true
	}
}

// wake has the worker look for something to do.
func (t *Table) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// fail makes err the answer to everything.
func (t *Table) fail(err error) {
	t.mu.Lock()
	t.fault = &Error{Pkg: pkg, Op: "look up", Name: t.name, Err: err, Hint: "open the table again"}
	t.computeAll()
	t.unlock()
}

// unlock ends a change: if anything is different from before, users learn of it.
func (t *Table) unlock() {
	changed := t.changed
	if changed {
		t.changed = false
		t.gen.Add(1)
		close(t.change)
		t.change = make(chan struct{})
	}
	t.mu.Unlock()
	if changed && t.opt.OnChange != nil {
		t.opt.OnChange()
	}
}

// Close ends the table. Lookups return os.ErrClosed from then on. Closing twice is harmless.
func (t *Table) Close() error {
	t.end.Do(func() {
		close(t.stop)
		t.closeErr = t.k.Close()
		t.running.Wait()
		t.mu.Lock()
		t.fault = &Error{Pkg: pkg, Op: "look up", Name: t.name, Err: os.ErrClosed}
		t.computeAll()
		t.unlock()
	})
	return t.closeErr
}
