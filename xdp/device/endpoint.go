package device

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Endpoint is an application's end of a device process. It sends and receives UDP datagrams without
// any privilege. All methods may be called from anywhere; the queue is one goroutine's, as package
// cq says.
type Endpoint struct {
	path string
	req  Request
	q    *cq.Queue
	own  *cq.Writer // on the queue's own lane; of the keeper, for what the server cannot say any more

	ctx    context.Context
	cancel context.CancelCauseFunc
	kept   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	sess    *session   // nil while there is no server
	why     error      // then: why not
	leaving *session   // that is not given back yet
	closed  bool
	ports   []uint16
	slots   []sendSlot
	next    int
	payload *shm.Region
	former  []frames // of servers that are gone
	stats   EndpointStats
	base    EndpointStats // the servers' part of stats, up to the last session
}

// frames are the UMEM of one server.
type frames struct {
	*shm.Region
	geo xdp.Geometry
}

// sendSlot is a place in the payload memory.
type sendSlot struct {
	context uint64
	before  uint64 // the slot's done word when it was taken
	busy    bool
	inject  bool
}

// EndpointStats counts what an endpoint did, with all the servers it had.
type EndpointStats struct {
	Sends      uint64 // accepted
	Again      uint64 // sends refused for want of a slot
	Released   uint64 // frames given back
	Former     uint64 // frames given back that a former server had loaned
	Cancelled  uint64 // sends answered with ECANCELED
	Reconnects uint64

	Publishes uint64 // batches of commands that were published
	Wakes     uint64 // of a server that slept

	// As the servers count.
	Received, NoFrame, NoRoom, Returned, Stale, Sent, SendFailed, BadChecksum uint64
}

// keptFormer is how many UMEMs of former servers stay mapped for frames that are still being read.
const keptFormer = 4

// Dial asks the device process at path for an endpoint. The context ends the attempt; it has no
// meaning afterwards.
//
// Errors: those of connecting (ECONNREFUSED and fs.ErrNotExist when nobody serves the path);
// what the device process says no with, [ErrRefused], [ErrBudget] and [ErrPortTaken] among them;
// [ErrProtocol]; the context's.
func Dial(ctx context.Context, path string, r Request) (*Endpoint, error) {
	const op = "dial"
	e := &Endpoint{path: path, req: r, ports: append([]uint16(nil), r.Ports...)}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	if len(r.Ports) > maxPorts || r.Frames < 0 || r.Sends < 0 ||
		r.Frames > maxGrantedFrames || r.Sends > maxGrantedSends {
		return nil, failed(op, path, fmt.Errorf("%w: %d ports, %d frames, %d sends", ErrOptions,
			len(r.Ports), r.Frames, r.Sends), fmt.Sprintf("%d ports are possible", maxPorts))
	}
	if kind.NilPointer(r.Events) {
		return nil, failed(op, path, fmt.Errorf("%w: Events is a nil pointer", ErrOptions), "")
	}
	var err error
	if e.q, err = newCompletions(e.queueOptions(), e.servers()); err != nil {
		return nil, failed(op, path, err, "")
	}
	s, err := e.first(ctx)
	if err != nil {
		_ = e.discard()
		return nil, failed(op, path, err, hintOf(err))
	}
	e.kept.Go(func() { e.keep(s) })
	return e, nil
}

// queueOptions are those of a queue that has room for a completion of all that can be under way.
func (e *Endpoint) queueOptions() cq.Options {
	o := e.req.QueueOptions
	if o.Size == 0 {
		o.Size = max(e.req.Frames, e.req.Sends, 1024)
	}
	if o.MaxLanes == 0 {
		o.MaxLanes = 8
	}
	return o
}

// servers are the users who may serve.
func (e *Endpoint) servers() *shm.AllowList {
	if len(e.req.Servers) > 0 {
		return &shm.AllowList{UIDs: e.req.Servers}
	}
	return &shm.AllowList{UIDs: []int{0, os.Geteuid()}}
}

func (e *Endpoint) takenPorts() []uint16 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]uint16(nil), e.ports...)
}

// Queue is where completions come. Received datagrams are entries with cq.FlagRecv, whose frame
// View shows and Release gives back; ends of sends are entries with cq.FlagSend, or error entries.
func (e *Endpoint) Queue() *cq.Queue { return e.q }

// EndpointInfo is what the server granted. All of it is zero while there is no server.
type EndpointInfo struct {
	ServerPID     int    // process of the server, as this process's PID namespace numbers it
	Generation    uint64 // of the server's UMEM
	Frames, Sends int    // that the endpoint may have at a time
	MaxPayload    int    // bytes of the longest datagram that can be sent over IPv4 just now
}

// Info says what the server granted. It makes no system call.
func (e *Endpoint) Info() EndpointInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sess
	if s == nil {
		return EndpointInfo{}
	}
	return EndpointInfo{ServerPID: s.peer.PID, Generation: s.grant.generation,
		Frames: int(s.grant.frames), Sends: int(s.grant.sends), MaxPayload: s.maxPayload()}
}

// maxPayload is what was granted, or less while the MTU is less than it was then.
func (s *session) maxPayload() int {
	most := uint64(s.grant.maxPayload)
	if now := s.page.counts[kind.PageMaxPayload].Load(); now != 0 {
		most = min(most, now)
	}
	return int(most)
}

// SendTo sends payload to an address, from one of the endpoint's ports or, if from is 0, from the
// first one (fi_sendto). The payload is copied, so it can be used again at once. A completion with
// the context follows when the kernel is done with the packet.
//
// Errors: [ErrNoSlot], which is EAGAIN: read completions and try again; EMSGSIZE; [ErrServerGone];
// os.ErrClosed. What the server finds out comes as an error completion: EHOSTUNREACH, EACCES for a
// port that is not taken.
func (e *Endpoint) SendTo(payload []byte, from uint16, to netip.AddrPort, context uint64) error {
	return e.send(payload, from, to, context, sendFlags)
}

// InjectTo is SendTo without a completion if all goes well (fi_inject). Errors are those of SendTo.
func (e *Endpoint) InjectTo(payload []byte, from uint16, to netip.AddrPort) error {
	return e.send(payload, from, to, 0, injectFlags)
}

func (e *Endpoint) send(payload []byte, from uint16, to netip.AddrPort, context uint64,
	flags cq.Flags) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sess
	if s == nil {
		return e.absent("send")
	}
	if from == 0 && len(e.ports) > 0 {
		from = e.ports[0]
	}
	if most := s.maxPayload(); len(payload) > most {
		return &shm.Error{Pkg: pkg, Op: "send", Field: "bytes", Got: len(payload), Want: most,
			Err: xdp.ErrTooBig}
	}
	i := e.freeSlot(s)
	if i < 0 {
		e.stats.Again++
		return ErrNoSlot
	}
	off := uint64(i) * uint64(s.grant.slotBytes)
	copy(e.payload.Bytes()[off:], payload)
	slot := &e.slots[i]
	slot.before = s.page.done[i].Load()
	c := sendCommand(context, flags, e.payload.Ref(off), len(payload), from, to)
	crash.At(crash.AppFilled)
	if err := s.sq.Post(&c); err != nil {
		return e.posted(err)
	}
	crash.At(crash.AppPosted)
	slot.context, slot.busy, slot.inject = context, true, flags == injectFlags
	e.next = i + 1
	e.stats.Sends++
	return nil
}

// freeSlot returns a slot whose last send has ended, or -1. They end in their order, more or less,
// so the first look is mostly the last.
func (e *Endpoint) freeSlot(s *session) int {
	n := len(e.slots)
	for k := range n {
		i := e.next + k
		if i >= n {
			i -= n
		}
		if slot := &e.slots[i]; !slot.busy || e.ended(s, i) {
			slot.busy = false
			return i
		}
	}
	return -1
}

// ended reports whether the last send from a slot has its completion. That the word has changed is
// not enough: a server that dies before it publishes has said so and not done it, and the slot
// still stands for the send then.
func (e *Endpoint) ended(s *session, i int) bool {
	// Pairs with the server's store, before which it is done with the payload.
	done := s.page.done[i].Load()
	if done == e.slots[i].before {
		return false
	}
	if done&doneSilent != 0 || done-1 < s.published {
		return true
	}
	if lane, err := e.q.Lane(s.txLane, s.txObject); err == nil {
		s.published = lane.Published
	}
	return done-1 < s.published
}

// absent is the error of a call that finds no server.
func (e *Endpoint) absent(op string) error {
	if e.closed {
		return failed(op, e.path, syscall.EBADF, "")
	}
	if e.why != nil {
		return failed(op, e.path, fmt.Errorf("%w: %w", ErrServerGone, e.why), "")
	}
	return ErrServerGone
}

// posted translates what posting a command failed with. A queue that is closed, or broken, says
// that the server is gone before the end of the connection does.
func (e *Endpoint) posted(err error) error {
	if err == cq.ErrFull {
		e.stats.Again++
		return ErrNoSlot
	}
	return ErrServerGone
}

// View shows the payload of a received datagram, whose completion is entry, in place. Release the
// loan before the frame. Errors: shm.ErrStale for a frame that is none of this endpoint's.
func (e *Endpoint) View(entry *cq.Entry) (shm.Loan, error) {
	f, err := e.framesOf(entry)
	if err != nil {
		return shm.Loan{}, err
	}
	return f.View(entry.Buf, int(entry.Len))
}

// Record returns what is known about a received datagram beside its bytes: addresses, time, VLAN.
func (e *Endpoint) Record(entry *cq.Entry) (xdp.Record, error) {
	f, err := e.framesOf(entry)
	if err != nil {
		return xdp.Record{}, err
	}
	return xdp.ReadFrame(f.Region, f.geo, entry.Buf)
}

// framesOf finds the UMEM that a completion refers to.
func (e *Endpoint) framesOf(entry *cq.Entry) (frames, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sess; s != nil && s.umem.ID() == entry.Buf.Region() {
		return s.umem, nil
	}
	for _, f := range e.former {
		if f.ID() == entry.Buf.Region() {
			return f, nil
		}
	}
	return frames{}, failed("view", e.path, shm.ErrStale, "")
}

// Stats returns counters.
func (e *Endpoint) Stats() EndpointStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.stats
	out.addServer(e.base)
	if s := cmp.Or(e.sess, e.leaving); s != nil {
		out.addServer(s.counts())
	}
	return out
}

// counts are what server and endpoint counted of a session.
func (s *session) counts() EndpointStats {
	out, c := countsOf(s.page), s.sq.Stats()
	out.Publishes, out.Wakes = c.Publishes, c.Wakes
	return out
}

func (s *EndpointStats) addServer(o EndpointStats) {
	s.Publishes += o.Publishes
	s.Wakes += o.Wakes
	s.Received += o.Received
	s.NoFrame += o.NoFrame
	s.NoRoom += o.NoRoom
	s.Returned += o.Returned
	s.Stale += o.Stale
	s.Sent += o.Sent
	s.SendFailed += o.SendFailed
	s.BadChecksum += o.BadChecksum
}

// Send is SendTo to an address of the request's address vector (fi_send).
func (e *Endpoint) Send(payload []byte, to cq.Addr, context uint64) error {
	dest, err := e.address(to)
	if err != nil {
		return err
	}
	return e.send(payload, 0, dest, context, sendFlags)
}

// Inject is InjectTo to an address of the request's address vector (fi_inject).
func (e *Endpoint) Inject(payload []byte, to cq.Addr) error {
	dest, err := e.address(to)
	if err != nil {
		return err
	}
	return e.send(payload, 0, dest, 0, injectFlags)
}

// address looks an index up at every send: the vector's owner may be another process.
func (e *Endpoint) address(to cq.Addr) (netip.AddrPort, error) {
	if v := e.req.Addresses; v != nil {
		var raw [28]byte // a sockaddr_in6
		if n, err := v.Lookup(to, raw[:]); err == nil && n <= len(raw) {
			if dest, ok := cq.ParseSockaddr(raw[:n]); ok {
				return dest, nil
			}
		}
	}
	return netip.AddrPort{}, failed("send", e.path, fmt.Errorf("%w: no address %d in the vector",
		ErrOptions, to), "insert it first, see cq.AddressVector")
}

// Release gives the frames of received datagrams back, and tells the server once. Those of a former
// server are only counted.
func (e *Endpoint) Release(entries ...cq.Entry) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sess
	if s == nil {
		e.stats.Former += uint64(len(entries))
		return nil
	}
	for len(entries) > 0 {
		a, b, err := s.sq.Reserve(len(entries))
		if err != nil {
			return e.posted(err)
		}
		now := entries[:len(a)+len(b)] // fewer than all if there is no room for more
		entries = entries[len(now):]
		k := s.returns(now, a, b)
		e.stats.Former += uint64(len(now) - k)
		crash.At(crash.AppGiving)
		if err := s.sq.Commit(k); err != nil {
			return e.posted(err)
		}
		crash.At(crash.AppReturned)
		e.stats.Released += uint64(k)
	}
	return nil
}

// returns writes the commands that give frames back to two spans, and says how many they are:
// frames of a former server need none.
func (s *session) returns(entries, a, b []cq.Entry) (k int) {
	for i := range entries {
		if entries[i].Buf.Region() != s.umem.ID() {
			continue
		}
		if k < len(a) {
			a[k] = returnCommand(&entries[i])
		} else {
			b[k-len(a)] = returnCommand(&entries[i])
		}
		k++
	}
	return k
}

// Settle waits until the device process is done with every send that was accepted, or is gone. A
// port that is dropped before, or an endpoint that is closed, takes with it what it had sent just
// now. The context's cause is returned when that ends first; a send waits for up to three seconds
// for the hardware address of its destination.
func (e *Endpoint) Settle(ctx context.Context) error {
	const first, last = 20 * time.Microsecond, time.Millisecond
	for pause := first; e.sending(); pause = min(2*pause, last) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// sending reports whether a send is under way.
func (e *Endpoint) sending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sess == nil {
		return false
	}
	for i := range e.slots {
		// Pairs with the server's store, before which it is done with the payload.
		if e.slots[i].busy && e.sess.page.done[i].Load() == e.slots[i].before {
			return true
		}
	}
	return false
}
