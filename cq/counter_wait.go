package cq

import (
	"context"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// Wait waits until the value is at least threshold (fi_cntr_wait), and returns nil then. Otherwise
// it returns an error that matches ErrAvail (EAVAIL) when the error value is another one than when
// it was called, which what failed before does not make it; ErrClosed when this handle is closed;
// ErrTimedOut (ETIMEDOUT, os.ErrDeadlineExceeded), as fi_cntr_wait has it, which is not the EAGAIN
// of a read; or one that matches ctx.Err() and its cause. A value that was reached comes before an
// error, and both before the end of the time or the context.
//
// One goroutine of a handle sleeps on a futex, which holds an operating system thread; the others
// wait for it. An add that reaches nobody's threshold wakes nobody. A handle that has slept holds a
// descriptor for each process that has the counter open, to see it die. No time is polled, unless
// there is one whose death cannot be seen (in another PID namespace, or beyond the 64th handle):
// then every sleep ends after 100 ms.
func (c *Counter) Wait(ctx context.Context, threshold uint64, o WaitOptions) error {
	if c.opt.Wait != WaitNone && c.reached(threshold) {
		return c.open() // without a look at the clock
	}
	return c.wait(ctx, threshold, deadline(o.Timeout))
}

// reached is the first look. With the counter closed meanwhile it says nothing.
func (c *Counter) reached(threshold uint64) bool {
	v := c.words.Value.Load()
	c.edge.acquire()
	return v >= threshold
}

func (c *Counter) wait(ctx context.Context, threshold uint64, deadlineNs int64) error {
	if c.opt.Wait == WaitNone {
		return &Error{Pkg: kind.Pkg, Op: "wait", Name: c.name, Err: ErrNoWait,
			Hint: "open the counter with another wait object"}
	}
	errs := c.words.Errs.Load()
	if c.reached(threshold) {
		return c.open()
	}
	w := counterWaiterPool.Get().(*counterWaiter)
	defer w.put()
	w.threshold, w.errs = threshold, errs
	c.feeders.drive()
	if c.opt.Wait == WaitYield {
		return c.yield(ctx, w, deadlineNs)
	}
	if !c.guard.enterAny() {
		return ErrClosed
	}
	defer c.guard.leaveAny()
	if done, err := c.spinFor(ctx, w, deadlineNs); done {
		return err
	}
	if c.enlist(w) {
		return c.lead(ctx, w, deadlineNs)
	}
	return c.follow(ctx, w, deadlineNs)
}

// yield is a wait that never sleeps.
func (c *Counter) yield(ctx context.Context, w *counterWaiter, deadlineNs int64) error {
	for look := uint(1); ; look++ {
		c.feeders.drive()
		done, err := c.assess(w)
		if over := c.over(ctx, deadlineNs); over == ErrClosed || over != nil && !done {
			return over
		}
		if done {
			return err
		}
		spin.Yield(look)
	}
}

// spinFor looks for as long as the options say, and reports that the wait is over by the counter
// itself. Clock and context are asked between stretches, not at every look.
func (c *Counter) spinFor(ctx context.Context, w *counterWaiter, deadlineNs int64) (done bool,
	err error) {
	const stretch = 5 * spin.Default
	for left := c.spin; left > 0 && !done; left -= stretch {
		spin.Until(min(left, stretch), func() bool {
			c.feeders.drive()
			done, err = c.assess(w)
			return done || c.guard.isClosed()
		})
		if c.over(ctx, deadlineNs) != nil {
			break
		}
	}
	return done, err
}

// counterWaiter is one blocking call, or the descriptor while it is armed.
type counterWaiter struct {
	threshold uint64
	errs      uint64
	value     uint64 // for the descriptor, which is told of any change
	any       bool
	turn      chan struct{} // told that it is done, or leads now

	at   int   // in the list, under its lock
	done bool  // taken off the list
	off  bool  // because nobody wants it any more
	err  error // what the counter itself made of the wait
}

// counterWaiters are those of one handle. The protocol is that of counterbell.Words, where this
// is one seat: one of them leads, which is to sleep on the futex and look for all; when it leaves
// it names another.
type counterWaiters struct {
	mu     sync.Mutex
	list   []*counterWaiter
	leader *counterWaiter // on the list; nil if that is empty
	low    uint64         // lowest threshold on the list, as adders see it
}

var counterWaiterPool = sync.Pool{New: func() any {
	return &counterWaiter{turn: make(chan struct{}, 1)}
}}

func (w *counterWaiter) put() {
	select {
	case <-w.turn: // told after it had left by itself
	default:
	}
	*w = counterWaiter{turn: w.turn}
	counterWaiterPool.Put(w)
}

// tell lets the waiter look whether it is done, or leads.
func (w *counterWaiter) tell() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}

// wakeAt is the value from which on the waiter wants to be woken.
func (w *counterWaiter) wakeAt() uint64 {
	if w.any {
		return 0
	}
	return min(w.threshold, counterbell.Any)
}

// assess decides whether a wait is over by the counter itself, and how.
func (c *Counter) assess(w *counterWaiter) (done bool, err error) {
	v, errs, _ := c.mark()
	c.edge.acquire()
	switch {
	case w.any:
		return v != w.value || errs != w.errs, nil
	case v >= w.threshold:
		return true, nil
	case errs != w.errs:
		// Somebody may have added to both since v was loaded: what was reached comes first.
		if c.words.Value.Load() >= w.threshold {
			return true, nil
		}
		return true, errFailed
	}
	return false, nil
}

// enlist is W1. It reports whether the waiter leads.
func (c *Counter) enlist(w *counterWaiter) (leads bool) {
	q := &c.waiters
	q.mu.Lock()
	defer q.mu.Unlock()
	w.at = len(q.list)
	q.list = append(q.list, w)
	if q.leader == nil {
		q.leader = w
	}
	c.setLow(min(q.low, w.wakeAt()))
	return q.leader == w
}

// setLow tells adders, under the list's lock.
func (c *Counter) setLow(low uint64) {
	if low != c.waiters.low {
		c.waiters.low = low
		c.words.Bell.SetThreshold(c.seat.Index(), low)
	}
}

// lowest looks at the whole list, under its lock.
func (q *counterWaiters) lowest() uint64 {
	low := counterbell.Idle
	for _, w := range q.list {
		low = min(low, w.wakeAt())
	}
	return low
}

// remove takes a waiter off, under the list's lock: the last act of a leader is to name another.
func (q *counterWaiters) remove(w *counterWaiter) {
	last := len(q.list) - 1
	q.list[w.at] = q.list[last]
	q.list[w.at].at = w.at
	q.list[last] = nil
	q.list = q.list[:last]
	w.done = true
	if q.leader == w {
		q.leader = nil
		if last > 0 {
			q.leader = q.list[0]
			q.leader.tell()
		}
	}
}

// lead is W2 to W6.
func (c *Counter) lead(ctx context.Context, w *counterWaiter, deadlineNs int64) error {
	if ctx.Done() != nil {
		cancel := context.AfterFunc(ctx, c.kick)
		defer cancel()
	}
	for !c.serve(w) { // without arming, if it is so already
		epoch := c.words.Bell.Arm() // W2, W3
		sliced := c.watchPeers()
		if c.serve(w) { // W4
			return w.err
		}
		if err := c.over(ctx, deadlineNs); err != nil {
			return c.quit(w, err)
		}
		until := deadlineNs
		if slice := spin.Now() + sliceNs; sliced && (until == 0 || slice < until) {
			until = slice
		}
		c.sleeps.Add(1)
		crash.At(crash.CountSleep)
		c.sleep(epoch, until)
	}
	return w.err
}

// sleep is W5.
func (c *Counter) sleep(epoch uint32, untilNs int64) {
	if again := c.feeders.drive(); again >= 0 {
		if until := deadline(max(1, again)); untilNs == 0 || until < untilNs {
			untilNs = until
		}
	}
	rest := c.feeders.await()
	c.words.Bell.Sleep(epoch, untilNs)
	if rest != nil {
		rest()
	}
}

// follow waits for what the leader finds. The look comes after the waiter is on the list, as the
// leader's comes after it armed: an adder that both miss finds the threshold.
func (c *Counter) follow(ctx context.Context, w *counterWaiter, deadlineNs int64) error {
	if done, err := c.assess(w); done {
		return c.quit(w, err)
	}
	var expired <-chan time.Time
	if deadlineNs != 0 {
		t := time.NewTimer(time.Duration(max(0, deadlineNs-spin.Now())))
		defer t.Stop()
		expired = t.C
	}
	for {
		select {
		case <-w.turn:
		case <-expired:
			return c.quit(w, ErrTimedOut)
		case <-ctx.Done():
			return c.quit(w, kind.Ended(ctx))
		case <-c.gone:
			return c.quit(w, ErrClosed)
		}
		c.waiters.mu.Lock()
		done, leads := w.done, c.waiters.leader == w
		c.waiters.mu.Unlock()
		switch {
		case done:
			return w.err
		case leads:
			return c.lead(ctx, w, deadlineNs)
		}
	}
}

// serve looks for everybody on the list, and takes off who is done. It reports whether w is.
func (c *Counter) serve(w *counterWaiter) bool {
	q := &c.waiters
	q.mu.Lock()
	defer q.mu.Unlock()
	before := len(q.list)
	for i := 0; i < len(q.list); {
		o := q.list[i]
		done, err := c.assess(o)
		if !done {
			i++
			continue
		}
		o.err = err
		q.remove(o) // another one stands at i now
		o.tell()
	}
	if len(q.list) != before {
		c.setLow(q.lowest())
	}
	return w.done
}

// quit takes a waiter off the list, and returns why. What it waits for may have come meanwhile, and
// that is the result then.
func (c *Counter) quit(w *counterWaiter, why error) error {
	q := &c.waiters
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.done {
		return w.err
	}
	q.remove(w)
	if w.wakeAt() == q.low {
		c.setLow(q.lowest())
	}
	if done, err := c.assess(w); done && !c.guard.isClosed() {
		return err
	}
	return why
}

// over says why a wait must end although nothing came, or nil.
func (c *Counter) over(ctx context.Context, deadlineNs int64) error {
	switch {
	case c.guard.isClosed():
		return ErrClosed
	case ctx.Err() != nil:
		return kind.Ended(ctx)
	case deadlineNs != 0 && spin.Now() >= deadlineNs:
		return ErrTimedOut
	}
	return nil
}

// kick wakes who sleeps, to look again. It may come late, from a context that outlived the wait.
func (c *Counter) kick() {
	if c.guard.enterAny() {
		c.words.Bell.Kick()
		c.guard.leaveAny()
	}
}

// counterPeers are the handles of other processes, as one that sleeps watches them: who dies
// between an add and its wake leaves a value behind that nobody was told of.
type counterPeers struct {
	mu     sync.Mutex
	joined uint64 // number of handles that had come when the seats were looked at, plus one
	sliced bool   // some death would not be noticed
	seats  [counterbell.Seats]place.Notice
}

// watchPeers is the first half of W4: after arming, so that a handle which comes later finds
// somebody to wake. It reports whether sleeps must be short.
func (c *Counter) watchPeers() (sliced bool) {
	p := &c.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	joined := c.words.Bell.Joined() + 1
	if p.joined == joined && !p.sliced { // a reason for slices may be over
		return false
	}
	p.joined, p.sliced = joined, false
	for i := range p.seats {
		if i != c.seat.Index() {
			p.sliced = c.watchSeat(i) || p.sliced
		}
	}
	if c.words.Bell.Standing() {
		stands, err := c.seats.Standing()
		p.sliced = p.sliced || stands || err != nil
	}
	return p.sliced
}

// watchSeat follows who has a seat, and reports that his death would not be noticed. A seat that is
// being taken is announced once more when that is done.
func (c *Counter) watchSeat(i int) (blind bool) {
	n, seat := &c.peers.seats[i], c.seats.At(i)
	o := seat.Owner()
	if o.State != shm.StateOwned {
		n.Rest()
		return false
	}
	if !n.Follows(o.Generation) {
		n.Follow(o, c.kick)
	}
	if !n.Blind {
		return false
	}
	// The seat tells at least whether it is worth while to look every now and then.
	life, err := seat.Life()
	if blind = err != nil || life == shm.Alive || life == shm.LockLost; !blind {
		n.Rest()
	}
	return blind
}

// stop ends all watches when nobody waits any more.
func (p *counterPeers) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.seats {
		p.seats[i].Rest()
	}
}
