package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/posted"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/xdp"
)

// Endpoint sends and receives datagrams on one socket (fid_ep of type FI_EP_DGRAM). One goroutine
// uses it, unless Config.Shared; Stats and Close may be called from anywhere, though Close
// waits for nobody but a Run.
type Endpoint struct {
	cfg    Config
	socket *xdp.Socket
	limits xdp.SocketInfo // of the MTU that the socket was told last
	rx     *feed.Binding  // nil if it does not receive
	tx     *feed.Binding  // nil if sends report nowhere
	queue  uint16
	umem   uint16 // the region that received frames are references into

	mu      sync.Mutex // with Config.Shared
	drive   sync.Mutex // held by Run
	closed  atomic.Bool
	over    bool  // the socket is closed
	dead    error // why nothing works any more
	loop    drive.Loop
	monitor monitor
	stop    func() // what Config.Progress began

	peers  []*peer // by address
	direct map[directKey]*peer
	groups map[groupKey]*membership

	lastKey  directKey // as found in direct
	lastPeer *peer
	// generation is the resolver's own, if it has one: it need not be asked while that stands.
	generation interface{ Generation() uint64 }
	round      uint64 // grows; the way to a peer is asked for at most once in each
	raw        [32]byte

	ops      []sendOp // by frame, of what is being sent
	sending  int      // frames under way
	unkicked int      // sends that were posted since the last kick
	lastSent uint32   // the frame posted last
	left     uint32   // sends that the last kick left, and that nobody sends by himself
	done     []xdp.Sent

	packets  []xdp.Received
	frames   []byte // of the UMEM
	geometry xdp.Geometry
	touched  byte // nobody reads it
	back     []xdp.Returned
	flow     packet.Flow
	span     span       // of the packet that was read last
	record   xdp.Record // of its frame
	source   sourceCache
	entry    cq.Entry              // completions of the flow, as far as these are alike
	image    [xdp.RecordBytes]byte // and records
	tagged   uint16                // of the flags of these
	stranger [1]cq.Entry           // of an unknown source
	posted   posted.Receives
	held     []xdp.Received // packets that were taken and have no buffer yet
	jumbo    jumbo
	chains   bool // packets may lie in several frames
	failure  cq.ErrorEntry

	asleep    bool // Run is about to sleep, or does, and nothing was being sent then
	rxBlocked bool // the last round left packets for want of room or of a buffer
	stats     Stats
	statsAt   int64
	starvedAt int64
	checkAt   int64             // when the device is to be asked whether it is there
	dirty     bool              // stats have changed since they were published
	accepted  uint64            // sends, at the end of the last round
	object    *capture.Follower // what tools see
	statsMu   sync.Mutex
	shown     Stats
}

// sendOp is an operation whose frame is with the kernel.
type sendOp struct {
	context uint64
	flags   cq.Flags
	bytes   uint32
	silent  bool // it was completed when it was posted, or has nothing to report
	refused bool // the device did not take the packet
	lent    bool // the frame is the caller's, who writes a payload to it
}

// Open joins what c says (fi_endpoint, fi_ep_bind, fi_enable). Errors: [xdp.ErrOptions], and those
// of binding queues, counters and addresses. After an error everything stays the caller's.
func Open(c Config) (*Endpoint, error) {
	if err := c.resolve(); err != nil {
		return nil, err
	}
	s := c.Socket
	e := &Endpoint{cfg: c, socket: s, limits: s.Info(), queue: uint16(s.Info().Queue),
		umem: s.UMEM().Region().ID(), direct: map[directKey]*peer{}, groups: map[groupKey]*membership{},
		ops: make([]sendOp, s.UMEM().Geometry().Frames), done: make([]xdp.Sent, 64),
		packets: make([]xdp.Received, c.RxBatch), back: make([]xdp.Returned, 0, 64), round: 1,
		frames: s.UMEM().Region().Bytes(), geometry: s.UMEM().Geometry(),
		object: capture.Observe(true, nil, s, status.Info{})} // until it is open
	e.cfg.Spin = spin.Budget(c.Spin)
	if e.chains = s.Info().MultiBuffer; e.chains && c.RxBatch < xdp.MaxChain {
		e.packets = make([]xdp.Received, xdp.MaxChain)
	}
	e.generation, _ = c.Resolver.(interface{ Generation() uint64 })
	if err := e.bind(); err != nil {
		e.unbind()
		return nil, err
	}
	if err := e.watch(); err != nil {
		e.unbind()
		return nil, err
	}
	e.openObject()
	e.publish(spin.Now())
	return e, nil
}

func (e *Endpoint) bind() (err error) {
	c := &e.cfg
	count := func(side cq.Flags) map[*cq.Counter]cq.Flags {
		out := map[*cq.Counter]cq.Flags{}
		for counter, flags := range c.Counters {
			if flags&side != 0 {
				out[counter] = flags & side
			}
		}
		return out
	}
	join := func(w *cq.Writer, side cq.Flags) (*feed.Binding, error) {
		o := feed.Options{Queue: w, Flags: side, Counters: count(side)}
		if w == nil && len(o.Counters) == 0 {
			return nil, nil
		}
		if c.Selective&side != 0 {
			o.Flags |= cq.FlagSelectiveCompletion
		}
		if side == cq.FlagRecv {
			o.Addresses = c.Addresses
		}
		return feed.Bind(o)
	}
	if e.tx, err = join(c.Transmit, cq.FlagTransmit); err != nil {
		return fault("open", err, "")
	}
	if e.rx, err = join(c.Receive, cq.FlagRecv); err != nil {
		return fault("open", err, "")
	}
	if c.Posted {
		s := &e.stats
		e.posted = posted.New(posted.Options{Binding: e.rx, Queue: c.Receive, Most: maxPosted,
			MinMulti: c.MinMultiRecv, Alone: c.ReleaseAlone, Count: posted.Counts{
				Received: &s.Received, Truncated: &s.Truncated, Cancelled: &s.Cancelled,
				Unknown: &s.UnknownSource, Abandoned: &s.Abandoned}})
	}
	if e.stop, err = feed.Drive(feeder{e}, c.Progress); err != nil {
		return fault("open", err, "")
	}
	return nil
}

func (e *Endpoint) unbind() {
	feed.Close(e.stop, e.tx, e.rx)
}

// lock is for one goroutine at a time; it costs nothing unless the endpoint is shared.
func (e *Endpoint) lock() {
	if e.cfg.Shared {
		e.mu.Lock()
	}
}

func (e *Endpoint) unlock() {
	if e.cfg.Shared {
		e.mu.Unlock()
	}
}

// usable says why nothing can be posted any more.
func (e *Endpoint) usable() error {
	if e.over || e.closed.Load() {
		if e.dead != nil {
			return e.dead
		}
		return errClosed
	}
	return nil
}

var errClosed = fault("use", os.ErrClosed, "")

// Socket returns the endpoint's socket, to be looked at: its mode, its interface, its descriptor,
// which is readable when a packet arrived. In copy mode polling that runs the kernel's transmit
// path too, which has nothing to do: posts are sent at once. What moves frames is the endpoint's.
func (e *Endpoint) Socket() *xdp.Socket { return e.socket }

// MaxPayload is the longest payload to a neighbour over IPv4, in bytes (max_msg_size). One for an
// IPv6 peer has 20 bytes less, and a path may have less still.
func (e *Endpoint) MaxPayload() int {
	mtu := int(e.monitor.mtu.Load())
	if mtu == 0 {
		mtu = e.limits.MTU
	}
	n := mtu - packet.IPv4Bytes - packet.UDPBytes
	if e.cfg.RemoteData {
		n -= ShimBytes
	}
	return max(0, n)
}

// Progress does one round and never blocks: completions of what was sent, frames for the kernel,
// packets, and a kick if there is something to send. work is 0 if there was nothing to do.
//
// Errors: [xdp.ErrDeviceGone], after which the endpoint is closed and all operations have been
// answered; cq.ErrClosed and others of package cq once a queue is of no more use; os.ErrClosed.
// A link that is down is none.
func (e *Endpoint) Progress() (work int, err error) {
	e.lock()
	defer e.unlock()
	if err := e.usable(); err != nil {
		return 0, err
	}
	return e.turn(spin.Now())
}

// Close closes the socket and answers every operation that was accepted and has not completed with
// ECANCELED, posted buffers included. The frames of sends under way are not used again: the kernel
// may still be reading them. Loaned frames can be read until the UMEM is closed. Closing twice is
// harmless. Unless the endpoint is shared nobody may be using it, but for a Run, which returns.
func (e *Endpoint) Close() error {
	if !e.closed.CompareAndSwap(false, true) {
		return nil
	}
	e.loop.Wake()
	// Those who drive it have the drive lock or, for a shared one, the other.
	e.drive.Lock()
	defer e.drive.Unlock()
	e.lock()
	defer e.unlock()
	err := e.end(nil)
	for _, m := range e.groups {
		_ = m.Close()
	}
	e.groups = nil
	if e.monitor.watcher != nil { // it asks for no lock that is held here
		err = errors.Join(err, e.monitor.watcher.Close())
	}
	return err
}

// end closes the socket and answers what was promised an answer.
func (e *Endpoint) end(why error) error {
	if e.over {
		return nil
	}
	e.over, e.dead = true, why
	_, _ = e.reap()
	e.object.AskKernel()
	err := e.socket.Close()
	e.cancelSends()
	e.cancelBuffers()
	e.publish(spin.Now())
	e.object.Close()
	e.unbind()
	return err
}

// feeder is the endpoint as the queues of this process see it.
type feeder struct{ *Endpoint }

// manualPollEvery is how often a blocking read looks at the device.
const manualPollEvery = 50 * time.Microsecond

// Progress implements cq.Feeder.
func (f feeder) Progress() time.Duration {
	e := f.Endpoint
	if e.cfg.Shared && !e.mu.TryLock() {
		return manualPollEvery // somebody is at it
	}
	defer e.unlock()
	if e.usable() != nil {
		return -1
	}
	work, err := e.turn(spin.Now())
	switch {
	case err != nil:
		return -1
	case work > 0:
		return 0
	}
	return manualPollEvery
}

// Overrun implements cq.Feeder: posts notice by themselves.
func (f feeder) Overrun(*cq.Queue) {}

// turn does everything that can be done without waiting.
func (e *Endpoint) turn(now int64) (work int, err error) {
	if err := e.checkGone(); err != nil {
		return 0, err
	}
	e.round++
	e.rxBlocked = false
	if e.sending > 0 {
		work, err = e.reap()
	}
	filled := e.socket.Fill(2 * len(e.packets))
	if e.cfg.Receive != nil {
		n, e2 := e.receive(now)
		work += n
		if err == nil {
			err = e2
		}
	}
	var e2 error
	if e.sending > 0 {
		e2 = e.kick()
	}
	if filled > 0 && e2 == nil {
		e2 = e.linkState(e.socket.WakeFill())
	}
	if e2 != nil {
		e.broke(e2)
		return work, e2
	}
	if now >= e.checkAt {
		if err := e.check(now); err != nil {
			return work, err
		}
	}
	e.object.Turn(now)
	e.dirty = e.dirty || work > 0
	calm := work == 0 && e.stats.Accepted == e.accepted // nothing was posted since the last round
	e.accepted = e.stats.Accepted
	if age := now - e.statsAt; age >= 1e6 || e.dirty && (calm || age >= publishEveryNs) {
		e.publish(now)
	}
	return work, err
}

func (e *Endpoint) check(now int64) error {
	e.checkAt = now + drive.CheckEveryNs
	err := e.linkState(e.socket.Check())
	if err != nil {
		e.broke(err)
	}
	return err
}

// Run drives the endpoint until the context ends or the endpoint fails: it works while there is
// work, looks for Spin, and sleeps then. It holds an operating system thread while it sleeps, and
// wakes ten times a second when nothing happens. Others may use the endpoint meanwhile if it is
// Shared.
//
// It returns the context's error, wrapped, after which it can be called again; or an error of
// Progress. After Close it returns os.ErrClosed.
func (e *Endpoint) Run(ctx context.Context) error {
	if !e.drive.TryLock() {
		return fault("run", ErrDriven, "")
	}
	defer e.drive.Unlock()
	if e.closed.Load() {
		return fault("run", os.ErrClosed, "")
	}
	err := e.loop.Run(ctx, e.cfg.Spin, run{e})
	switch {
	case e.closed.Load():
		err = os.ErrClosed
	case err == nil:
		err = ctx.Err()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	e.lock()
	e.publish(spin.Now())
	e.unlock()
	return fault("run", err, "")
}

// run is the endpoint as its loop sees it.
type run struct{ *Endpoint }

// Round implements drive.Device.
func (r run) Round(now int64) (work int, err error) {
	r.lock()
	defer r.unlock()
	r.asleep = false
	if err := r.usable(); err != nil {
		return 0, err
	}
	return r.turn(now)
}
