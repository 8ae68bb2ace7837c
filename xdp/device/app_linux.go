package device

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/shm/crash"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/packet"
)

// app is an application as the server knows it. Between admission and detachment the engine's
// goroutine alone uses what is not said otherwise.
type app struct {
	name    string
	peer    *shm.Peer
	allow   *shm.AllowList // the peer's user alone
	account *account       // guarded by Server.mu
	conn    *net.UnixConn
	ports   []uint16 // guarded by Server.mu

	umem    *xdp.UMEM
	geo     xdp.Geometry
	pool    *pool
	payload *shm.Region
	slot    uint64 // bytes of a send slot
	page    *statusPage
	rx, tx  *cq.Writer // lanes in the application's queue
	q       *cq.Queue  // commands
	owns    map[uint16]bool

	queue    *queue // that it sends by
	limit    int    // of sends under way
	underWay int    // parked, or with the kernel
	parked   []parkedSend
	// blockedWays is scratch of retry: destinations that some of parked wait for.
	blockedWays []netip.Addr
	retryAt     int64
	pending     []cq.Entry // taken from q, not released
	blocked     bool       // what is pending has to wait
	command     cq.Entry   // private copy of the command in work
	failure     cq.ErrorEntry
	silent      uint64 // sends that ended without a completion
	batch       []int32
	routes      map[target]*route
	last        target
	lastWay     *route
	dead        error // why it is to be detached
	expelled    bool
	work        func()
	worked      int

	received, noFrame, noRoom, sent, failed, bytesIn, bytesOut uint64
	dirty                                                      bool
	shown                                                      atomic.Pointer[AppStats]
}

// parkedSend waits for a hardware address.
type parkedSend struct {
	e     cq.Entry
	until int64
}

type route struct {
	template   *packet.Template
	generation uint64
	most       int // bytes of payload
}

// maxRoutes bounds what an application can make the server remember.
const maxRoutes = 1024

// commands does as much as one turn allows of what the application asked for. It runs guarded:
// the payload is memory that the application can do things to.
func (a *app) commands(en *engine) {
	a.worked = 0
	if len(a.pending) == 0 {
		es, err := a.q.Peek(en.s.c.TxBatch)
		switch {
		case err == nil:
			a.pending = es
			crash.At(crash.CommandsTaken)
		case err == cq.ErrAgain:
			return
		case err == cq.ErrAvail: // an error entry is no command
			a.failed++
			a.worked++
			a.dead = a.q.ReadErr(&a.failure)
			return
		default:
			a.dead = err
			return
		}
	}
	k := 0
	for k < len(a.pending) {
		a.command = a.pending[k] // once: the application could change it while we look
		if !a.do(en) {
			break
		}
		k++
	}
	a.worked += k
	a.pending = a.pending[k:]
	a.blocked = len(a.pending) > 0
	if k > 0 {
		crash.At(crash.CommandsDone)
		if err := a.q.Release(k); err != nil {
			a.dead = err
		}
	}
}

// do carries out one command. It reports false if the command has to wait.
func (a *app) do(en *engine) bool {
	e := &a.command
	switch e.Flags {
	case returnFlags:
		frame := uint64(1 << 32) // none
		if e.Buf.Region() == a.umem.Region().ID() {
			frame = e.Buf.Offset() / uint64(a.geo.ChunkBytes)
		}
		a.pool.giveBack(frame, e.Data)
		crash.At(crash.FrameTaken)
		a.dirty = true
		return true
	case sendFlags, injectFlags:
	default:
		return a.answer(e, cq.EBadFlags)
	}
	if a.underWay >= a.limit {
		return false
	}
	// The credit is for the completion, or for an error.
	if err := a.tx.Credit(1); err != nil {
		if err != cq.ErrFull {
			a.dead = err
		}
		return false
	}
	why, state := cq.Errno(0), sendParked
	if !a.overtakes(e) {
		why, state = a.send(en, e)
	}
	switch state {
	case sendWaits:
		a.tx.ReturnCredits(1)
		return false
	case sendParked:
		a.underWay++
		a.parked = append(a.parked, parkedSend{*e, en.now + parkedNs})
	case sendFailed:
		a.fail(e, why)
	default:
		a.underWay++
	}
	return true
}

// answer refuses what is no command, if there is room for an answer.
func (a *app) answer(e *cq.Entry, why cq.Errno) bool {
	if err := a.tx.Credit(1); err != nil {
		return false
	}
	a.fail(e, why)
	return true
}

type sendState int

const (
	sendUnderWay sendState = iota
	sendParked             // its destination is being resolved
	sendWaits              // no frame or row is free
	sendFailed
)

// send builds a packet from a command.
func (a *app) send(en *engine, e *cq.Entry) (why cq.Errno, state sendState) {
	t := targetOf(e)
	if !a.owns[t.from] {
		return cq.Errno(syscall.EACCES), sendFailed
	}
	slot := e.Buf.Offset() / a.slot
	if slot >= uint64(len(a.page.done)) {
		return cq.Errno(syscall.EINVAL), sendFailed
	}
	way, err := a.way(en, t)
	switch {
	case errors.Is(err, packet.ErrResolving):
		return 0, sendParked
	case err != nil:
		return errnoOf(err, syscall.EHOSTUNREACH), sendFailed
	case e.Len > uint64(way.most):
		return cq.Errno(syscall.EMSGSIZE), sendFailed
	}
	loan, err := a.payload.View(e.Buf, int(e.Len))
	if errors.Is(err, shm.ErrStale) {
		return cq.ENoKey, sendFailed
	}
	if err != nil {
		return cq.Errno(syscall.EINVAL), sendFailed
	}
	defer loan.Release() // also when reading it faults
	row, ok := en.sends.take(sendRow{app: a, context: e.Context, slot: uint32(slot),
		inject: e.Flags == injectFlags})
	if !ok {
		return 0, sendWaits
	}
	sock := a.queue.sock
	frame, buf, ok := sock.Acquire()
	if !ok {
		en.sends.end(uint64(row))
		return 0, sendWaits
	}
	n, err := way.template.Build(buf, loan.Bytes())
	if err == nil {
		err = sock.Post(frame, n, uint64(row))
	}
	if err != nil {
		sock.Abandon(frame)
		en.sends.end(uint64(row))
		return cq.Errno(syscall.EMSGSIZE), sendFailed
	}
	a.bytesOut += e.Len
	crash.At(crash.SendQueued)
	return 0, sendUnderWay
}

// way finds the headers for a destination.
func (a *app) way(en *engine, t target) (*route, error) {
	if !usable(t.to) {
		return nil, syscall.EINVAL
	}
	hop, err := en.s.c.Resolver.Lookup(t.to.Addr())
	if err != nil {
		return nil, err
	}
	if a.lastWay != nil && a.last == t && a.lastWay.generation == hop.Generation {
		return a.lastWay, nil
	}
	r := a.routes[t]
	if r == nil || r.generation != hop.Generation {
		if !hop.Source.IsValid() {
			return nil, syscall.EADDRNOTAVAIL
		}
		template, err := packet.NewTemplate(hop.LocalMAC, hop.NextMAC,
			netip.AddrPortFrom(hop.Source, t.from), t.to)
		if err != nil {
			return nil, syscall.EAFNOSUPPORT
		}
		mtu := en.s.mtu
		if hop.MTU > 0 {
			mtu = min(mtu, hop.MTU)
		}
		r = &route{template: template, generation: hop.Generation, most: template.MaxPayload(mtu)}
		if len(a.routes) >= maxRoutes {
			clear(a.routes)
		}
		a.routes[t] = r
	}
	a.last, a.lastWay = t, r
	return r, nil
}

func usable(to netip.AddrPort) bool {
	return to.Port() != 0 && to.Addr().IsValid() && !to.Addr().IsUnspecified()
}

// overtakes reports whether a send that waits for a hardware address has the same destination.
func (a *app) overtakes(e *cq.Entry) bool {
	if len(a.parked) == 0 {
		return false
	}
	to := targetOf(e).to.Addr()
	return slices.ContainsFunc(a.parked, func(p parkedSend) bool {
		return targetOf(&p.e).to.Addr() == to
	})
}

// retry tries again what waits for a hardware address, in order for each destination.
func (a *app) retry(en *engine) {
	if len(a.parked) == 0 || en.now < a.retryAt {
		return
	}
	a.retryAt = en.now + 1e6
	kept := a.parked[:0]
	blocked := a.blockedWays[:0]
	for i := range a.parked {
		p := &a.parked[i]
		to := targetOf(&p.e).to.Addr()
		if en.now < p.until && slices.Contains(blocked, to) {
			kept = append(kept, *p)
			continue
		}
		why, state := a.send(en, &p.e)
		if state == sendWaits || state == sendParked {
			blocked = append(blocked, to)
		}
		switch {
		case state == sendWaits, state == sendParked && en.now < p.until:
			kept = append(kept, *p)
			continue
		case state == sendParked:
			why, state = cq.Errno(syscall.EHOSTUNREACH), sendFailed
		}
		if state == sendFailed {
			a.underWay--
			a.fail(&p.e, why)
		}
	}
	a.parked, a.blockedWays = kept, blocked
}

// fail answers a send with an error. A credit is held.
func (a *app) fail(e *cq.Entry, why cq.Errno) {
	a.failed++
	a.dirty = true
	a.markDone(e.Buf.Offset()/a.slot, a.tx.Next()+1)
	a.failure = cq.ErrorEntry{Context: e.Context, Flags: sendFlags, Src: cq.AddrNotAvail, Err: why,
		ProvErrno: int32(why)}
	if e.Flags == injectFlags {
		a.failure.Flags |= cq.FlagNoContext
	}
	if err := a.tx.PostErrorCredited(&a.failure); err != nil {
		a.dead = err
	}
}

func (a *app) markDone(slot, how uint64) {
	if slot < uint64(len(a.page.done)) {
		a.page.done[slot].Store(how)
	}
}

// completed ends a send that the kernel is done with. A credit is held.
func (a *app) completed(r sendRow) {
	a.underWay--
	a.sent++
	a.dirty = true
	if r.inject {
		a.silent++
		a.markDone(uint64(r.slot), doneSilent|a.silent)
		a.tx.ReturnCredits(1)
		return
	}
	a.markDone(uint64(r.slot), a.tx.Next()+1)
	e := cq.Entry{Context: r.context, Flags: sendFlags, Src: cq.AddrNotAvail}
	crash.At(crash.SendDone)
	if err := a.tx.PostCredited(&e); err != nil && a.dead == nil {
		a.dead = err
	}
	crash.At(crash.SendTold)
}

// publish shows counters to the application and to Stats.
func (a *app) publish() {
	if !a.dirty && a.shown.Load() != nil {
		return
	}
	a.dirty = false
	c := a.page.counts
	c[countReceived].Store(a.received)
	c[countNoFrame].Store(a.noFrame)
	c[countNoRoom].Store(a.noRoom)
	c[countReturned].Store(a.pool.returned)
	c[countStale].Store(a.pool.stale)
	c[countSent].Store(a.sent)
	c[countFailed].Store(a.failed)
	a.shown.Store(&AppStats{Name: a.name, PID: a.peer.PID, UID: a.peer.UID, GID: a.peer.GID,
		Frames: len(a.pool.loaned), Loaned: a.pool.out(), Sends: a.limit, UnderWay: a.underWay,
		Received: a.received, NoFrame: a.noFrame, NoRoom: a.noRoom, Returned: a.pool.returned,
		Stale: a.pool.stale, Sent: a.sent, SendFailed: a.failed, BytesIn: a.bytesIn,
		BytesOut: a.bytesOut})
}

// arm makes the descriptor of the commands tell of those that come from now on.
func (a *app) arm() (ready bool) {
	switch err := a.q.TryWait(); err {
	case nil:
		return false
	case cq.ErrAgain, cq.ErrSignaled:
	default:
		a.dead = err
	}
	return true
}
