package port

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// ErrDriven: another goroutine drives the port (EBUSY).
var ErrDriven = shm.Sentinel("another goroutine drives this port", syscall.EBUSY)

// Config joins an endpoint and a queue of commands.
type Config struct {
	// Endpoint is what the port opens. It needs both Receive and Transmit, lends frames, and is
	// the port's alone. [SendCommand] names whom to send to by an index of Addresses.
	Endpoint endpoint.Config
	// Commands are read here: what [SendCommand] and [ReturnCommand] make. It is to be created
	// with cq.WaitFD. Each application attaches lanes of its own to it.
	Commands *cq.Queue
	Batch    int // how many commands one round takes; 32 by default
}

// Port is an endpoint that other processes use by commands. One goroutine drives it, by Progress or
// Run. AddRegion, RemoveRegion, Stats and Close may be called from anywhere.
//
// Room is never assumed. A command for whose completion there is no room, or no frame to send from,
// stays in its queue, and so does all that was posted after it, returns included: have no more
// sends under way than the lane of Transmit holds.
type Port struct {
	endpoint *endpoint.Endpoint
	rx, tx   *cq.Writer
	q        *cq.Queue
	regions  atomic.Pointer[map[uint16]*shm.Region]
	regionMu sync.Mutex

	drive  sync.Mutex // held by whoever drives the port
	closed atomic.Bool
	ended  bool // what was taken is answered

	pending     []cq.Entry // taken from q, not released: commands that could not be done yet
	redelivered bool       // what is pending may have been seen by a process before this one
	batch       int
	room        int      // free places in tx, at least; may be more
	command     cq.Entry // private copy of the command in work
	message     endpoint.Msg
	flags       cq.Flags // of all sends
	failure     cq.ErrorEntry
	blocked     bool // the last round left commands for want of room or frames

	stats   Stats
	statsAt int64 // when they were published
	dirty   bool
	statsMu sync.Mutex
	shown   Stats
}

// Stats counts what a port did since it was made.
type Stats struct {
	endpoint.Stats
	BadCommands uint64 // commands that made no sense, answered with an error where one can be
	Unsent      uint64 // commands answered with ECANCELED when the port was closed
	Unanswered  uint64 // commands that could not even be, since the queue was closed or full
	LanesLost   uint64 // lanes of the command queue given up because their writer broke them
	TxBlocked   uint64 // rounds that left commands for want of room for completions, or of frames
}

func fault(op, name string, err error, hint string) error {
	return &xdp.Error{Pkg: "port", Op: op, Name: name, Err: err, Hint: hint}
}

// Open opens the endpoint and joins it to the commands. Errors are [xdp.ErrOptions] and those of
// [endpoint.Open]; after one everything stays the caller's.
func Open(c Config) (*Port, error) {
	bad := func(what, hint string) error {
		return fault("open", "", fmt.Errorf("%w: %s", xdp.ErrOptions, what), hint)
	}
	switch o := &c.Endpoint; {
	case o.Receive == nil || o.Transmit == nil || c.Commands == nil:
		return nil, bad("Receive, Transmit or Commands is missing", "")
	case o.Posted || o.Shared || len(o.Progress) > 0:
		return nil, bad("the endpoint has Posted, Shared or Progress", "a port lends its frames")
	case c.Commands.Options().Wait != cq.WaitFD:
		return nil, bad("Commands has no descriptor to wait on", "create it with cq.WaitFD")
	case c.Batch < 0:
		return nil, bad("Batch is negative", "")
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	e, err := endpoint.Open(c.Endpoint)
	if err != nil {
		return nil, err
	}
	p := &Port{endpoint: e, rx: c.Endpoint.Receive, tx: c.Endpoint.Transmit, q: c.Commands,
		batch: c.Batch, flags: cq.FlagMore}
	if c.Endpoint.Selective&cq.FlagTransmit != 0 {
		p.flags |= cq.FlagCompletion
	}
	p.regions.Store(&map[uint16]*shm.Region{})
	return p, nil
}

// AddRegion makes memory known that send commands may refer to. It must be a memfd, and is sealed
// against getting smaller if its maker has not done that, since reading what is not there any more
// would kill this process. The region stays the caller's.
func (p *Port) AddRegion(r *shm.Region) error {
	bad := func(err error, hint string) error {
		return fault("add region", r.Object().Name(), err, hint)
	}
	if err := sealShrink(r.Object().FD()); err != nil {
		return bad(fmt.Errorf("%w: memory may get smaller: %w", xdp.ErrOptions, err),
			"use shm.CreateMemfd, and seal it with SealShrink")
	}
	p.regionMu.Lock()
	defer p.regionMu.Unlock()
	if (*p.regions.Load())[r.ID()] != nil {
		return bad(fmt.Errorf("%w: region %d is known already", xdp.ErrOptions, r.ID()),
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

// Progress does one round and never blocks: commands, and what [endpoint.Endpoint.Progress] does.
// work is 0 if there was nothing to do.
//
// Errors: [xdp.ErrDeviceGone], after which everything that was taken has been answered;
// cq.ErrClosed and others of package cq once a queue is of no more use; os.ErrClosed; [ErrDriven].
// A link that is down is none.
func (p *Port) Progress() (work int, err error) {
	if !p.drive.TryLock() {
		return 0, fault("drive", "", ErrDriven, "")
	}
	defer p.drive.Unlock()
	work, err = p.round(doorbell.Now())
	if err == nil {
		var n int
		n, err = p.endpoint.Progress()
		work += n
	}
	return work, p.over(err)
}

// over answers what was taken if the device is gone.
func (p *Port) over(err error) error {
	if errors.Is(err, xdp.ErrDeviceGone) {
		if e := p.end(); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Close ends Run, closes endpoint and socket, and answers every send that was accepted and is not
// completed with ECANCELED. Writers and queue stay the caller's, to be closed after the port.
func (p *Port) Close() error {
	if !p.closed.CompareAndSwap(false, true) {
		return nil
	}
	p.endpoint.Wake()
	p.drive.Lock()
	defer p.drive.Unlock()
	return errors.Join(p.endpoint.Close(), p.end())
}

// end answers the commands that were taken and not done, and hands them back to the queue as read.
func (p *Port) end() error {
	if p.ended {
		return nil
	}
	p.ended = true
	for _, e := range p.pending {
		if e.Flags == returnFlags || e.Flags == reclaimFlags {
			p.takeBack(&e)
			continue
		}
		if p.fail(e.Context, cq.Errno(syscall.ECANCELED)) != nil {
			p.stats.Unanswered++
			continue
		}
		p.stats.Unsent++
	}
	n := len(p.pending)
	p.pending = nil
	p.publish(doorbell.Now())
	if err := p.q.Release(n); err != nil && !errors.Is(err, cq.ErrClosed) {
		return err
	}
	return nil
}

// usable says why nothing is done any more.
func (p *Port) usable() error {
	if p.ended || p.closed.Load() {
		return fault("drive", "", os.ErrClosed, "")
	}
	return nil
}

// Stats returns counters as of the last round that had nothing to do, or a millisecond old. It may
// be called from anywhere, and after Close.
func (p *Port) Stats() Stats {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	s := p.shown
	s.Stats = p.endpoint.Stats()
	return s
}

// publish makes the counters visible to other goroutines.
func (p *Port) publish(now int64) {
	p.statsAt, p.dirty = now, false
	p.statsMu.Lock()
	p.shown = p.stats
	p.statsMu.Unlock()
}
