package xdp

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/packet"
)

// Peer is an entry of a port's address table: whom to send to, and as whom. Its index in the table
// is the [cq.Addr] of send commands and of the source of receive completions.
type Peer struct {
	LocalMAC, PeerMAC net.HardwareAddr
	Local, Peer       netip.AddrPort // IPv4
}

// PortConfig joins a socket and queues. Zero values of the lower half stand for the defaults.
type PortConfig struct {
	Socket *Socket
	// RX and TX get the receive and the send completions, for the same queue or for two. They are
	// two lanes, and the port's alone, so that a flood of received packets cannot take the room
	// that was promised to the completion of a send.
	RX, TX *cq.Writer
	// Commands are read here: what [SendCommand] and [ReturnCommand] make. It is to be created
	// with cq.WaitFD. Each application attaches lanes of its own to it.
	Commands *cq.Queue
	Peers    []Peer

	RxBatch, TxBatch int           // how many packets and commands one round takes; 64 and 32
	Spin             time.Duration // how long Run looks before it sleeps; as in cq.Options
}

// device is what a port needs of a socket beside its core. A test plays it without a kernel.
type device interface {
	FD() int
	Queue() uint32
	Kick() (unsent int, err error)
	WakeFill() error
	Check() error
	SyscallStats() SyscallStats
	KernelStats() (KernelStats, error)
	Close() error
}

// Port moves frames between a socket and queues: packets become completions that refer to the
// UMEM, commands become packets or give frames back. One goroutine drives it, by Progress or Run.
// AddRegion, RemoveRegion, Stats and Close may be called from anywhere.
//
// Room is never assumed. A packet for whose completion there is no room stays in the receive ring,
// and once that is full the kernel drops and counts. A command for whose completion there is no
// room, or no frame to send from, stays in its queue, and so does all that the same application
// posted after it, returns included: have no more sends under way than the lane of TX holds.
type Port struct {
	core     *core
	dev      device
	umem     uint16 // the region that received frames are references into
	rx, tx   *cq.Writer
	q        *cq.Queue
	peers    []*packet.Template
	known    map[netip.AddrPort]cq.Addr
	lastSrc  netip.AddrPort // as found in known, or not
	lastAddr cq.Addr
	queue    uint16 // of the interface
	regions  atomic.Pointer[map[uint16]*shm.Region]
	regionMu sync.Mutex

	drive  sync.Mutex // held by whoever drives the port
	closed atomic.Bool
	waker  waker
	spin   time.Duration

	maxPayload  uint64
	packets     []Received
	done        []Sent
	pending     []cq.Entry // taken from q, not released: commands that could not be done yet
	redelivered bool       // what is pending may have been seen by a process before this one
	txBatch     int
	room        int      // free places in tx, at least; may be more
	command     cq.Entry // private copy of the command in work
	failure     cq.ErrorEntry
	datagram    packet.Datagram
	rxBlocked   bool // the last round left packets for want of room
	txBlocked   bool // the last round left commands for want of room or frames
	ended       bool // the socket is closed

	stats   PortStats
	statsAt int64 // when they were published
	kernAt  int64 // when the kernel was asked
	dirty   bool
	statsMu sync.Mutex
	shown   PortStats
}

// NewPort checks and joins. It owns nothing of c but the use of it: Close closes the socket, and
// leaves writers and queue to the caller. Errors are those of [ErrOptions].
func NewPort(c PortConfig) (*Port, error) {
	if c.Socket == nil {
		return nil, portError("Socket is missing", "")
	}
	return newPort(c, &c.Socket.core, c.Socket, c.Socket.UMEM().Region().ID())
}

func portError(what, hint string) error {
	return &Error{Pkg: pkg, Op: "make port", Err: fmt.Errorf("%w: %s", ErrOptions, what), Hint: hint}
}

func newPort(c PortConfig, k *core, dev device, umem uint16) (*Port, error) {
	switch {
	case c.RX == nil || c.TX == nil || c.Commands == nil:
		return nil, portError("RX, TX or Commands is missing", "")
	case c.RX == c.TX:
		return nil, portError("RX and TX are one writer", "attach a second lane")
	case c.Commands.FD() < 0:
		return nil, portError("Commands has no descriptor to wait on", "create it with cq.WaitFD")
	case c.RxBatch < 0 || c.TxBatch < 0:
		return nil, portError("a batch is negative", "")
	}
	if c.RxBatch == 0 {
		c.RxBatch = 64
	}
	if c.TxBatch == 0 {
		c.TxBatch = 32
	}
	p := &Port{core: k, dev: dev, umem: umem, rx: c.RX, tx: c.TX, q: c.Commands,
		queue: uint16(dev.Queue()), lastAddr: cq.AddrNotAvail,
		known: map[netip.AddrPort]cq.Addr{}, spin: doorbell.SpinBudget(c.Spin),
		packets: make([]Received, c.RxBatch), done: make([]Sent, max(c.TxBatch, 64)),
		txBatch: c.TxBatch, maxPayload: k.maxPayload()}
	p.waker.fd = -1
	p.regions.Store(&map[uint16]*shm.Region{})
	for i, e := range c.Peers {
		t, err := e.template()
		if err != nil {
			return nil, &Error{Pkg: pkg, Op: "make port",
				Err: fmt.Errorf("%w: peer %d: %w", ErrOptions, i, err)}
		}
		p.peers = append(p.peers, t)
		if _, twice := p.known[e.Peer]; !twice {
			p.known[e.Peer] = cq.Addr(i)
		}
	}
	p.publish(doorbell.Now())
	return p, nil
}

func (e Peer) template() (*packet.Template, error) {
	if len(e.LocalMAC) != 6 || len(e.PeerMAC) != 6 {
		return nil, errors.New("hardware addresses of 6 bytes are needed")
	}
	return packet.NewTemplate([6]byte(e.LocalMAC), [6]byte(e.PeerMAC), e.Local, e.Peer)
}

// AddRegion makes memory known that send commands may refer to. It must be a memfd, and is sealed
// against getting smaller if its maker has not done that, since reading what is not there any more
// would kill this process. The region stays the caller's.
func (p *Port) AddRegion(r *shm.Region) error {
	bad := func(err error, hint string) error {
		return &Error{Pkg: pkg, Op: "add region", Name: r.Object().Name(), Err: err, Hint: hint}
	}
	if err := sealShrink(r.Object().FD()); err != nil {
		return bad(fmt.Errorf("%w: memory may get smaller: %w", ErrOptions, err),
			"use shm.CreateMemfd, and seal it with SealShrink")
	}
	p.regionMu.Lock()
	defer p.regionMu.Unlock()
	if (*p.regions.Load())[r.ID()] != nil {
		return bad(fmt.Errorf("%w: region %d is known already", ErrOptions, r.ID()),
			"have another one made: its number is drawn at random")
	}
	m := maps.Clone(*p.regions.Load())
	m[r.ID()] = r
	p.regions.Store(&m)
	return nil
}

// RemoveRegion forgets memory. A command in work may still be reading it, so close the region with
// [shm.Region.Close], which waits for that.
func (p *Port) RemoveRegion(r *shm.Region) {
	p.regionMu.Lock()
	defer p.regionMu.Unlock()
	m := maps.Clone(*p.regions.Load())
	if m[r.ID()] == r {
		delete(m, r.ID())
	}
	p.regions.Store(&m)
}

// Progress does one round and never blocks: completions of what was sent, commands, frames for the
// kernel, packets, and a kick if there is something to send. work is 0 if there was nothing to do.
//
// Errors: [ErrDeviceGone]; cq.ErrClosed and others of package cq once a queue is of no more use;
// os.ErrClosed; EBUSY while somebody else drives the port. A link that is down is none.
func (p *Port) Progress() (work int, err error) {
	if !p.drive.TryLock() {
		return 0, &Error{Pkg: pkg, Op: "drive port", Err: errDriven}
	}
	defer p.drive.Unlock()
	if p.ended || p.closed.Load() {
		return 0, &Error{Pkg: pkg, Op: "drive port", Err: os.ErrClosed}
	}
	return p.round(doorbell.Now())
}

// Close ends Run, closes the socket, and answers every send that was accepted and is not completed
// with ECANCELED. Writers and queue stay the caller's, to be closed after the port.
func (p *Port) Close() error {
	if !p.closed.CompareAndSwap(false, true) {
		return nil
	}
	p.waker.wake()
	p.drive.Lock()
	defer p.drive.Unlock()
	return p.end()
}
