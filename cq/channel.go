package cq

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Notify says for which completions an armed queue makes an event.
type Notify int

const (
	// NotifySolicited: for those whose poster set MetaSolicited, and for every error.
	NotifySolicited Notify = iota + 1
	// NotifyAny: for every completion.
	NotifyAny
)

// They are the bell's numbers.
var _ = [1]struct{}{}[(NotifySolicited-wake.NotifySolicited)|(NotifyAny-wake.NotifyAny)]

// ChannelEvent says that a queue got a completion of the kind that it was armed for.
type ChannelEvent struct {
	Queue   *Queue
	Context any // the queue's UserContext
	// Solicited says that a solicited or failed completion is among those that made the event.
	Solicited bool
	// Dummy marks an event that Inject, or Drain with a budget, made.
	Dummy bool
}

// Channel delivers completion events of many queues (struct ibv_comp_channel). A queue makes one
// event per arming: see [Channel.RequestNotify]. The usual loop is
//
//	ev, err := ch.GetEvent(ctx, cq.WaitOptions{})   // wait
//	ch.Ack(ev.Queue, 1)                             // or later, several at once
//	ch.RequestNotify(ev.Queue, cq.NotifyAny)
//	for { n, err := cq.Read(ev.Queue, buf); … }   // until ErrWouldBlock, after arming
//
// All methods may be called from anywhere, by any number of goroutines; each event goes to exactly
// one of them. Queues that are read by another goroutine than the one that arms them, or of which
// several goroutines get events, must be Shared.
type Channel struct {
	bell *wake.Domain
	ch   *wake.Channel
	gate guard

	mu    sync.Mutex
	shut  bool // it closes: no queue comes any more
	byBit map[int]*attached
	byFID map[FID]*attached
	armed standIns // for the descriptor

	signal    atomic.Bool
	described atomic.Bool // somebody may wait on the descriptor
}

// attached is a queue's account with its channel.
type attached struct {
	q    *Queue
	bit  int
	got  uint64        // events delivered; under Channel.mu
	acks uint64        // of them acknowledged; under Channel.mu
	even chan struct{} // closed when got equals acks and somebody waits for it
}

// NewChannel makes a channel without queues (ibv_create_comp_channel). d is as for [NewWaitSet].
func NewChannel(d *shm.Dir) (*Channel, error) {
	bell, err := place.ProcessBell.Acquire(d)
	if err != nil {
		return nil, failed("open", "channel", err)
	}
	c := &Channel{bell: bell, ch: bell.NewChannel(), byBit: map[int]*attached{},
		byFID: map[FID]*attached{}}
	c.gate.shared = true
	return c, nil
}

// Attach makes the channel that of q, which stays unarmed (the channel argument of ibv_create_cq).
// fs.ErrExist if q is attached to it already, ErrBusy if to another one.
func (c *Channel) Attach(q *Queue) error {
	if q == nil {
		return errAbsent("attach to channel")
	}
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return ErrClosed
	}
	if c.byFID[q.fid] != nil {
		return fmt.Errorf("cq: attach %v to channel: it is attached: %w", q.fid, syscall.EEXIST)
	}
	if !q.channel.CompareAndSwap(nil, c) {
		return &Error{Pkg: kind.Pkg, Op: "attach to channel", Name: q.name, Err: ErrBusy,
			Hint: "detach it from its other channel first"}
	}
	bit, err := q.seat()
	if err != nil {
		q.channel.Store(nil)
		return err
	}
	a := &attached{q: q, bit: bit}
	c.byBit[bit], c.byFID[q.fid] = a, a
	q.feeders.came()
	c.ch.Add(bit, q.bell)
	c.bell.Kick() // who sleeps has what feeds the queue driven
	return nil
}

// Detach takes q off the channel (ibv_destroy_cq, without destroying it): events that nobody got
// are dropped, and Detach waits until all that were got are acknowledged. When the context ends
// first, its error is returned, q gets no more events, and Detach can be called again.
// fs.ErrNotExist if q is not attached.
func (c *Channel) Detach(ctx context.Context, q *Queue) error {
	if q == nil {
		return errAbsent("detach from channel")
	}
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.mu.Lock()
	a := c.byFID[q.fid]
	if a == nil {
		c.mu.Unlock()
		return notAttached("detach from channel", q)
	}
	if c.byBit[a.bit] == a {
		c.ch.Delete(a.bit)
		delete(c.byBit, a.bit)
	}
	for a.got != a.acks {
		if a.even == nil {
			a.even = make(chan struct{})
		}
		even := a.even
		open := a.got - a.acks
		c.mu.Unlock()
		select {
		case <-even:
		case <-ctx.Done():
			return &Error{Pkg: kind.Pkg, Op: "detach from channel", Name: q.name,
				Field: "unacknowledged events", Got: open, Want: 0, Err: kind.Ended(ctx),
				Hint: "acknowledge every event with Ack"}
		}
		c.mu.Lock()
	}
	gone := c.byFID[q.fid] == a
	if gone {
		delete(c.byFID, q.fid)
	}
	c.mu.Unlock()
	if gone { // else another goroutine waited too, and was faster
		q.channel.Store(nil)
		q.holders.unbind()
	}
	return nil
}

func notAttached(op string, q *Queue) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: q.name, Err: syscall.ENOENT,
		Hint: "attach it to this channel first"}
}

// RequestNotify asks for one event, for the next completion of the given kind that is added from
// now on (ibv_req_notify_cq). Completions that are there already make none, so read the queue after
// arming. Arming again before the event came changes nothing, but for NotifyAny winning over
// NotifySolicited. An event that was due and not yet got is not lost by arming again. Errors are
// ErrInvalid for another kind, fs.ErrNotExist if q is not attached, and ErrClosed.
func (c *Channel) RequestNotify(q *Queue, n Notify) error {
	if n != NotifySolicited && n != NotifyAny && q != nil {
		return kind.Refuse("arm", q.name, "notify", int(n), "NotifySolicited or NotifyAny", ErrInvalid)
	}
	return c.with(q, "arm", func(a *attached) error {
		err := c.ch.Arm(a.bit, int(n))
		c.arm()
		return err
	})
}

// Inject makes an event for q although nothing was completed: for a handler that stopped before the
// queue was empty and is to be called again after the others, or for news of the program's own.
// Errors are fs.ErrNotExist if q is not attached, and ErrClosed.
func (c *Channel) Inject(q *Queue) error {
	return c.with(q, "inject", func(a *attached) error { c.ch.Inject(a.bit); return nil })
}

// with finds q's account and uses it while neither q nor the channel can go.
func (c *Channel) with(q *Queue, op string, do func(*attached) error) error {
	if q == nil {
		return errAbsent(op)
	}
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.mu.Lock()
	a := c.byFID[q.fid]
	there := a != nil && c.byBit[a.bit] == a
	c.mu.Unlock()
	if !there {
		return notAttached(op, q)
	}
	return do(a)
}

// Ack acknowledges n events of q (ibv_ack_cq_events), before or after the queue was read. More than
// were got is ErrInvalid. It costs a lock, so acknowledge many at once.
func (c *Channel) Ack(q *Queue, n int) error {
	if q == nil {
		return errAbsent("ack")
	}
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.byFID[q.fid]
	if a == nil {
		return notAttached("ack", q)
	}
	if n < 0 || uint64(n) > a.got-a.acks {
		return kind.Refuse("ack", q.name, "n", n, a.got-a.acks, ErrInvalid)
	}
	a.acks += uint64(n)
	if a.got == a.acks && a.even != nil {
		close(a.even)
		a.even = nil
	}
	return nil
}

// Close closes the channel (ibv_destroy_comp_channel). ErrBusy while queues are attached. Calls of
// GetEvent that wait return ErrClosed; closing twice is harmless.
func (c *Channel) Close() error {
	c.mu.Lock()
	n := len(c.byFID)
	c.shut = c.shut || n == 0
	c.mu.Unlock()
	if n > 0 {
		return &Error{Pkg: kind.Pkg, Op: "close", Name: "channel", Field: "attached queues", Got: n,
			Want: 0, Err: ErrBusy, Hint: "detach them first"}
	}
	first, err := c.gate.close(c.bell.Kick)
	if !first || err != nil {
		return err
	}
	c.armed.replace(nil)
	c.ch.Close()
	return place.ProcessBell.Release()
}

// TryGetEvent takes an event if there is one, else it is ErrWouldBlock: ibv_get_cq_event on a
// descriptor with O_NONBLOCK. It leaves a signal for GetEvent, unless somebody asked for FD: then
// it is how a wait on the descriptor goes on, and takes it with ErrSignaled.
func (c *Channel) TryGetEvent() (ChannelEvent, error) {
	if !c.gate.enter() {
		return ChannelEvent{}, ErrClosed
	}
	defer c.gate.leave()
	defer c.arm()
	driveAll(c.driven())
	for {
		e, got, err := c.ch.Get(lookOnce)
		if err != nil {
			return ChannelEvent{}, failed("get event", "channel", err)
		}
		if !got && c.described.Load() && c.signal.Swap(false) {
			return ChannelEvent{}, ErrSignaled
		}
		if !got {
			return ChannelEvent{}, ErrWouldBlock
		}
		if ev, ok := c.deliver(e); ok {
			c.remind()
			return ev, nil
		}
	}
}

// kick has who sleeps look again. It is harmless on nil.
func (c *Channel) kick() {
	if c != nil && c.gate.enterAny() {
		c.bell.Kick()
		c.gate.leaveAny()
	}
}

// remind raises the descriptor again for a signal, which is no event that would keep it raised.
func (c *Channel) remind() {
	if c.signal.Load() && c.described.Load() {
		c.ch.Alert()
	}
}

// GetEvent waits for the next event and takes it (ibv_get_cq_event). It ends with the context's
// error, with ErrTimedOut (also EAGAIN), with ErrSignaled after Signal, or with ErrClosed.
func (c *Channel) GetEvent(ctx context.Context, o WaitOptions) (ChannelEvent, error) {
	if !c.gate.enter() {
		return ChannelEvent{}, ErrClosed
	}
	defer c.gate.leave()
	end := ending{ctx: ctx, gate: &c.gate, bell: c.bell, await: c.await}
	defer end.over()
	w := wake.Wait{DeadlineNs: deadline(o.Timeout), Asleep: end.asleep}
	w.Stop = func() bool {
		return c.signal.Load() || c.gate.isClosed() || end.fedAnew() || ctx.Err() != nil
	}
	for {
		end.fed = feederChanges.Load()
		e, got, err := c.ch.Get(sliced(w, c.driven()))
		if err != nil {
			return ChannelEvent{}, failed("get event", "channel", err)
		}
		if got {
			if ev, ok := c.deliver(e); ok {
				return ev, nil
			}
			continue // its queue was detached meanwhile
		}
		switch {
		case c.gate.isClosed():
			return ChannelEvent{}, ErrClosed
		case ctx.Err() != nil:
			return ChannelEvent{}, kind.Ended(ctx)
		case w.DeadlineNs != 0 && spin.Now() >= w.DeadlineNs:
			return ChannelEvent{}, errReadTimedOut
		case c.signal.Swap(false):
			return ChannelEvent{}, ErrSignaled
		}
	}
}

// deliver books an event to its queue's account.
func (c *Channel) deliver(e wake.ChannelEvent) (ChannelEvent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.byBit[e.Bit]
	if a == nil {
		return ChannelEvent{}, false
	}
	a.got++
	return ChannelEvent{Queue: a.q, Context: a.q.opt.UserContext, Solicited: e.Solicited,
		Dummy: e.Dummy}, true
}

// FD returns a descriptor for the caller's own poll or epoll, level- or edge-triggered: readable
// while an event may be there, never writable. Take events with TryGetEvent until ErrWouldBlock.
// The first call makes it; see [WaitSet.GetWait] for what a wake through it costs.
func (c *Channel) FD() (int, error) {
	if !c.gate.enter() {
		return -1, ErrClosed
	}
	defer c.gate.leave()
	face, err := c.ch.Face()
	if err != nil {
		return -1, failed("open descriptor of", "channel", err)
	}
	c.described.Store(true)
	c.remind()
	c.arm() // for queues that were armed before
	return face.FD(), nil
}

// Drain handles one event of a queue as its manual says: it acknowledges the event, arms the queue
// again and then reads it until it is empty, so that no completion stays behind unseen. handle gets
// what each read returned, in buf; an error of it ends the call and is returned.
//
// A queue that is filled as fast as it is read would keep its handler for ever. After budget
// completions (0: no limit) Drain stops, and has the channel make a dummy event, so that the queue
// is visited again after the others: nothing is lost and nobody starves. Other errors are those of
// Read; the queue is armed even so.
func Drain[T Readable](c *Channel, ev ChannelEvent, n Notify, buf []T, budget int,
	handle func([]T) error) error {
	q := ev.Queue
	if len(buf) == 0 {
		return kind.Refuse("drain", q.name, "len(buf)", 0, "1 or more", ErrInvalid)
	}
	if budget < 0 {
		return kind.Refuse("drain", q.name, "budget", budget, "0 or more", ErrInvalid)
	}
	if err := c.Ack(q, 1); err != nil {
		return err
	}
	if err := c.RequestNotify(q, n); err != nil {
		return err
	}
	for left := budget; budget == 0 || left > 0; {
		room := buf
		if budget > 0 {
			room = buf[:min(len(buf), left)]
		}
		got, err := Read(q, room)
		if err == ErrWouldBlock {
			return nil
		}
		if err != nil {
			return err
		}
		left -= got
		if err := handle(room[:got]); err != nil {
			return err
		}
	}
	return c.Inject(q)
}

// driven returns what feeds the queues and does not drive itself.
func (c *Channel) driven() []*feeders {
	return drivenOf(&c.mu, &c.byBit, func(a *attached) *feeders { return a.q.feeds() })
}

// await has them driven while nobody here looks.
func (c *Channel) await() (rest func()) { return awaitAll(c.driven()) }

// arm does so for who waits on the descriptor, once somebody asked for it: of several goroutines,
// one may wait there while another handles an event.
func (c *Channel) arm() {
	if c.described.Load() {
		c.armed.replace(c.await())
	}
}
