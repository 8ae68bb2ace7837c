package device

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// app is an application as the server knows it. Between admission and detachment the engine's
// goroutine alone uses what is not said otherwise.
type app struct {
	name    string
	peer    *place.Peer
	allow   *shm.AllowList // the peer's user alone
	account *account       // guarded by Server.mu
	conn    *net.UnixConn
	ports   []uint16 // guarded by Server.mu
	lanes   uint64   // bytes of rx and tx, booked; of the goroutine that admits

	umem       *xdp.UMEM
	geo        xdp.Geometry
	generation uint64 // of what was granted
	pool       *pool
	payload    *shm.Region
	slot       uint64 // bytes of a send slot
	page       *statusPage
	rx, tx     *cq.Writer // lanes in the application's queue
	q          *cq.Queue  // commands
	owns       map[uint16]bool
	// wrongSums: datagrams with wrong checksums are wanted.
	wrongSums bool
	inPlace   bool // umem is the server's own, of the one queue that there is

	queue    *queue // that it sends by
	limit    int    // of sends under way
	underWay int    // parked, or with the kernel
	parked   parked
	pending  []cq.Entry // taken from q, not released
	blocked  bool       // what is pending has to wait
	command  cq.Entry   // private copy of the command in work
	failure  cq.ErrorEntry
	silent   uint64    // sends that ended without a completion
	ended    []sendRow // sends without a completion yet, during a reap
	batch    []int32
	routes   map[target]*route
	last     target
	lastWay  *route
	asked    uint64 // the round in which that was asked for
	dead     error  // why it is to be detached
	expelled bool
	work     func()
	worked   int
	touched  byte // nobody reads it

	received, noFrame, noRoom, sent, failed, bytesIn, bytesOut uint64
	badChecksum                                                uint64
	dirty                                                      bool
	shown                                                      atomic.Pointer[AppStats]
}

type route struct {
	template   *packet.Template
	generation uint64
	most       int // bytes of payload
}

// maxRoutes bounds what an application can make the server remember.
const maxRoutes = 1024

// commands does as much as one turn allows of what the application asked for. It runs guarded:
// the payload is memory that the application can do things to. Frames that come back are not
// counted against the turn: were fewer of them taken in a round than packets are handed out, an
// application that gives each back at once would still run out. They are bounded all the same, by
// the frames that the application has.
func (a *app) commands(en *engine) {
	for left := en.s.c.TxBatch; left > 0 && a.dead == nil; {
		asked := left
		if len(a.pending) == 0 && !a.ask(asked) {
			return
		}
		n := len(a.pending)
		left -= a.obey(en)
		if a.blocked || n < asked {
			return
		}
	}
}

// ask takes up to n commands from the queue. It reports false if there are none.
func (a *app) ask(n int) bool {
	es, err := a.q.Peek(n)
	switch {
	case err == nil:
		a.pending = es
		return true
	case err == cq.ErrWouldBlock:
	case err == cq.ErrAvail: // an error entry is no command
		a.failed++
		a.worked++
		a.dead = a.q.ReadErr(&a.failure)
	default:
		a.dead = err
	}
	return false
}

// obey does what is pending as far as it can be done. It returns how many of these commands were
// not frames that came back.
func (a *app) obey(en *engine) (counted int) {
	a.touch()
	k, returned := 0, a.pool.returned
	for k < len(a.pending) {
		a.command = a.pending[k] // once: the application could change it while we look
		crash.At(crash.DevTaken)
		if !a.do(en) {
			break
		}
		k++
	}
	a.worked += k
	a.pending = a.pending[k:]
	a.blocked = len(a.pending) > 0
	if k > 0 {
		crash.At(crash.DevDone)
		if err := a.q.Release(k); err != nil {
			a.dead = err
		}
		crash.At(crash.DevReleased)
	}
	return k - int(a.pool.returned-returned)
}

// touch loads a byte of each payload that is to be sent. What is not in the cache comes for all of
// them at once then, and not for one after the other. Nothing that it reads is believed.
func (a *app) touch() {
	mem, t := a.payload.Bytes(), byte(0)
	for i := range a.pending {
		if at := a.pending[i].Buf.Offset(); at < uint64(len(mem)) {
			t += mem[at]
		}
	}
	a.touched = t
}

// do carries out one command. It reports false if the command has to wait.
func (a *app) do(en *engine) bool {
	e := &a.command
	switch e.Flags {
	case returnFlags:
		a.takeBack(e)
		crash.At(crash.DevReturned)
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
	if err := a.tx.Credits().Add(1); err != nil {
		if err != cq.ErrFull {
			a.dead = err
		}
		return false
	}
	why, state := cq.Errno(0), sendParked
	if t := targetOf(e); !a.parked.holds(t.to.Addr()) { // else it would overtake
		why, state = a.send(en, e, t)
	}
	switch state {
	case sendWaits:
		a.tx.Credits().Return(1)
		return false
	case sendParked:
		a.underWay++
		a.parked.add(e, en.now+en.s.parkedNs.Load())
	case sendFailed:
		a.fail(e, why)
	default:
		a.underWay++
	}
	return true
}

// answer refuses what is no command, if there is room for an answer.
func (a *app) answer(e *cq.Entry, why cq.Errno) bool {
	if err := a.tx.Credits().Add(1); err != nil {
		return false
	}
	a.fail(e, why)
	return true
}

type sendState int

const (
	sendUnderWay sendState = iota
	sendParked             // its destination is being resolved
	sendWaits              // no frame is free
	sendFailed
)

// send builds a packet from a command.
func (a *app) send(en *engine, e *cq.Entry, t target) (why cq.Errno, state sendState) {
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
	return a.build(en, way.template, loan, sendRow{app: a, context: e.Context, slot: uint32(slot),
		inject: e.Flags == injectFlags})
}

// build puts a packet with a payload into the transmit ring. It is apart from the checks since a
// function with many returns pays for what it defers.
func (a *app) build(en *engine, t *packet.Template, loan shm.Loan, r sendRow) (why cq.Errno,
	state sendState) {
	defer loan.Release() // also when reading it faults
	sock := a.queue.sock
	frame, buf, ok := sock.Acquire()
	if !ok {
		return 0, sendWaits
	}
	crash.At(crash.DevBuilding)
	posted := false
	defer func() {
		if !posted { // reading the payload may have faulted
			sock.Drop(frame)
		}
	}()
	payload := loan.Bytes()
	n, err := t.Build(buf, payload)
	if err == nil {
		err = sock.Post(frame, n, 0)
	}
	if err != nil {
		return cq.Errno(syscall.EMSGSIZE), sendFailed
	}
	posted = true
	a.queue.sends[frame] = r
	en.sending++
	crash.At(crash.DevPosted)
	a.bytesOut += uint64(len(payload))
	return 0, sendUnderWay
}

// way finds the headers for a destination. In runs to one it is asked for once in a round.
func (a *app) way(en *engine, t target) (*route, error) {
	if a.asked == en.stats.Rounds && a.last == t {
		return a.lastWay, nil
	}
	if !usable(t.to) {
		return nil, syscall.EINVAL
	}
	hop, err := a.account.ways.lookup(t.to.Addr())
	if err != nil {
		return nil, err
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
	a.last, a.lastWay, a.asked = t, r, en.stats.Rounds
	return r, nil
}

func usable(to netip.AddrPort) bool {
	return to.Port() != 0 && to.Addr().IsValid() && !to.Addr().IsUnspecified()
}

// fail answers a send with an error. A credit is held.
func (a *app) fail(e *cq.Entry, why cq.Errno) {
	a.failed++
	a.dirty = true
	a.markDone(e.Buf.Offset()/a.slot, a.tx.Next()+1)
	a.failure = cq.ErrorEntry{Context: e.Context, Flags: sendFlags, Err: why,
		ProvErrno: int32(why)}
	if e.Flags == injectFlags {
		a.failure.Flags |= cq.FlagNoContext
	}
	crash.At(crash.DevMarked)
	if err := a.tx.Credits().PostError(&a.failure); err != nil {
		a.dead = err
	}
	crash.At(crash.DevCompleted)
}

func (a *app) markDone(slot, how uint64) {
	if slot < uint64(len(a.page.done)) {
		ring.StoreRelease(&a.page.done[slot], how) // nothing that follows has to wait for it
	}
}

// completed ends a send that the kernel is done with. A credit is held. It reports whether the
// send is the first of those that complete together.
func (a *app) completed(r sendRow) (first bool) {
	a.underWay--
	a.sent++
	a.dirty = true
	if r.inject {
		a.silent++
		a.markDone(uint64(r.slot), doneSilent|a.silent)
		a.tx.Credits().Return(1)
		return false
	}
	a.ended = append(a.ended, r)
	return len(a.ended) == 1
}

// complete publishes the completions of sends that have ended, with one store: the application
// reads on another processor meanwhile.
func (a *app) complete() {
	left := a.ended
	a.ended = a.ended[:0]
	next := a.tx.Next()
	for i := range left {
		a.markDone(uint64(left[i].slot), next+uint64(i)+1)
	}
	crash.At(crash.DevMarked)
	a.tx.Credits().Return(len(left)) // their room is what is reserved now: nobody else posts here
	for len(left) > 0 {
		s, more, err := a.tx.Reserve(len(left))
		n := 0
		for err == nil && n < len(s)+len(more) {
			e := cq.Entry{Context: left[n].context, Flags: sendFlags}
			if n < len(s) {
				s[n] = e
			} else {
				more[n-len(s)] = e
			}
			n++
		}
		if err == nil {
			err = a.tx.Commit(n)
		}
		if err != nil {
			if a.dead == nil {
				a.dead = err
			}
			break
		}
		left = left[n:]
	}
	crash.At(crash.DevCompleted)
}

// publish shows counters to Stats, and to the application after that: who sees on the page what it
// did counted finds it in Stats of the server too.
func (a *app) publish() {
	if !a.dirty && a.shown.Load() != nil {
		return
	}
	a.dirty = false
	a.shown.Store(&AppStats{Name: a.name, PID: a.peer.PID, UID: a.peer.UID, GID: a.peer.GID,
		Frames: a.pool.limit, Loaned: a.pool.out, Sends: a.limit, UnderWay: a.underWay,
		Received: a.received, NoFrame: a.noFrame, NoRoom: a.noRoom, Returned: a.pool.returned,
		BadChecksum: a.badChecksum, Stale: a.pool.stale, Sent: a.sent, SendFailed: a.failed,
		BytesIn: a.bytesIn, BytesOut: a.bytesOut})
	c := a.page.counts
	update := c[kind.CountBegun].Add(1)
	c[kind.CountReceived].Store(a.received)
	c[kind.CountNoFrame].Store(a.noFrame)
	c[kind.CountNoRoom].Store(a.noRoom)
	c[kind.CountReturned].Store(a.pool.returned)
	c[kind.CountStale].Store(a.pool.stale)
	c[kind.CountSent].Store(a.sent)
	c[kind.CountFailed].Store(a.failed)
	c[kind.CountBadChecksum].Store(a.badChecksum)
	c[kind.CountEnded].Store(update)
}

// addQueues adds what the queues of an application cost.
func (s *Stats) addQueues(a *app) {
	for _, w := range []*cq.Writer{a.rx, a.tx} {
		c := w.Stats()
		s.Publishes += c.Publishes
		s.Wakes += c.Wakes
		s.QueueCalls += c.Wakes
	}
	c := a.q.Stats()
	s.QueueCalls += c.Sleeps + c.Barriers + c.Resets
}

// arm makes the descriptor of the commands tell of those that come from now on.
func (a *app) arm() (ready bool) {
	switch err := a.q.TryWait(); err {
	case nil:
		return false
	case cq.ErrWouldBlock, cq.ErrSignaled:
	default:
		a.dead = err
	}
	return true
}

// deliver hands the packets of one batch that are for this application to it, as copies in its own
// memory, or in place. What finds no frame or no room is dropped here and counted: it must not wait
// for the application, since other ones would wait with it.
func (a *app) deliver(en *engine, q *queue) {
	received := a.received
	defer func() {
		n := a.received - received
		en.stats.Delivered += n
		en.stats.Dropped += uint64(len(a.batch)) - n
		a.batch = a.batch[:0]
	}()
	a.dirty = true
	want := min(len(a.batch), a.pool.limit-a.pool.out)
	a.noFrame += uint64(len(a.batch) - want)
	if want == 0 {
		return
	}
	s1, s2, err := a.rx.Reserve(want)
	if err != nil {
		if err != cq.ErrFull {
			a.dead = err
		}
		a.noRoom += uint64(want)
		return
	}
	n := len(s1) + len(s2)
	a.noRoom += uint64(want - n)
	next := a.rx.Next()
	for i, at := range a.batch[:n] {
		slot := s1
		k := i
		if i >= len(s1) {
			slot, k = s2, i-len(s1)
		}
		a.put(q, at, next+uint64(i), uint64(en.now), &slot[k])
	}
	crash.At(crash.DevCopied)
	if err := a.rx.Commit(n); err != nil {
		a.dead = err
		return
	}
	crash.At(crash.DevPublished)
	a.received += uint64(n)
}

// put makes one packet of the batch the completion with that index.
func (a *app) put(q *queue, at int32, index, now uint64, slot *cq.Entry) {
	d := &q.parsed
	from := q.sock.Packet(q.packets[at])
	if packet.Parse(from, d) != nil {
		d.PayloadLen = 0 // was parsed a moment ago, and only the kernel writes there
	}
	mem := a.umem.Region().Bytes()
	var chunk, start uint64
	n := len(from)
	if a.inPlace {
		chunk, start = a.lend(&q.packets[at], uint32(index))
	} else {
		frame, _ := a.pool.loan(uint32(index)) // there are as many as were reserved
		chunk = uint64(frame) * uint64(a.geo.ChunkBytes)
		start = uint64(a.geo.HeadroomBytes) + frameGapBytes
		n = copy(mem[chunk+start:chunk+uint64(a.geo.ChunkBytes)], from)
	}
	payload := max(0, min(d.PayloadLen, n-d.PayloadOff))
	rec := xdp.Record{Sequence: index, RxNs: now, Src: d.Src, Dst: d.Dst, Queue: uint16(q.number),
		VLAN: d.VLAN, PayloadOff: uint16(start) + uint16(d.PayloadOff),
		PayloadLen: uint16(payload), FrameLen: uint16(n),
		Flags: q.sums[at].Flag(xdp.RecordChecksumOK, xdp.RecordChecksumWrong)}
	if d.Tags > 0 {
		rec.Flags |= xdp.RecordVLAN
	}
	rec.Put(mem[chunk:], false)
	a.bytesIn += uint64(payload)
	*slot = cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagFrame, Len: uint64(payload),
		Buf: a.umem.Region().Ref(chunk + start + uint64(d.PayloadOff)), Meta: cq.MetaNoContext}
}

// frameGapBytes keeps packets where the kernel would put them, so that both ways to read a frame
// find the same layout.
const frameGapBytes = 256
