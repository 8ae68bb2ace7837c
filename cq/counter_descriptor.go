package cq

import (
	"context"
	"sync"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
)

// counterKeeper is a goroutine that waits for a counter in place of a descriptor, or of a set.
// Adders do not know whose epoll waits, they know a futex: so while the keeper is armed, and nobody
// else of the handle sleeps there, it does.
type counterKeeper struct {
	c      *Counter
	notify func() // makes the descriptor readable, or the set look

	mu      sync.Mutex
	armed   *counterWaiter // what the last arming put on the list
	running *counterWaiter // what the goroutine took last
	poke    chan struct{}  // made with the goroutine
	ctx     context.Context
	cancel  context.CancelFunc
	over    bool // nothing is armed any more
	wg      sync.WaitGroup
}

// TryWait arms the descriptor (fi_trywait). nil says that neither value is another one than Read
// and ReadErr of this handle returned last, and that a blocking wait on the descriptor will end
// when one changes. ErrWouldBlock says that one is: read both, and try again. It must be called
// before each wait on the descriptor, by one goroutine at a time. While it is armed a thread of
// this process sleeps for it.
func (c *Counter) TryWait() error {
	if c.face == nil {
		return &Error{Pkg: kind.Pkg, Op: "trywait", Name: c.name, Err: ErrNoWait,
			Hint: "open the counter with WaitFD"}
	}
	if !c.guard.enterAny() {
		return ErrClosed
	}
	defer c.guard.leaveAny()
	// The reset comes before the arming: what is written after it stays visible.
	if err := c.face.Reset(); err != nil {
		return failed("trywait", c.name, err)
	}
	c.feeders.drive()
	if !c.keeper.arm(c.seen.value.Load(), c.seen.errs.Load()) {
		return ErrWouldBlock
	}
	return nil
}

// arm makes the keeper tell of the next change, and reports whether nothing has changed so far.
func (k *counterKeeper) arm(value, errs uint64) bool {
	c := k.c
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return true
	}
	w := &counterWaiter{any: true, value: value, errs: errs, turn: make(chan struct{}, 1)}
	if changed, _ := c.assess(w); changed {
		return false
	}
	k.disarm()
	k.armed = w
	if c.enlist(w) {
		w.tell()
	}
	if changed, _ := c.assess(w); changed {
		k.disarm()
		return false
	}
	if k.poke == nil {
		k.poke = make(chan struct{}, 1)
		k.wg.Go(k.keep)
	}
	select {
	case k.poke <- struct{}{}:
	default:
	}
	return true
}

// disarm takes an arming back that is not needed any more. The keeper's lock is held. One that
// leads stays if the goroutine has it: it sleeps for the whole list, and writes once too often at
// most.
func (k *counterKeeper) disarm() {
	c, q := k.c, &k.c.waiters
	w := k.armed
	k.armed = nil
	if w == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.done || q.leader == w && k.running == w {
		return
	}
	w.off = true
	q.remove(w)
	c.setLow(q.lowest())
	w.tell()
}

// keep is the goroutine. It waits as any other goroutine does, for any change.
func (k *counterKeeper) keep() {
	c := k.c
	for {
		select {
		case <-c.gone:
			return
		case <-k.ctx.Done():
			return
		case <-k.poke:
		}
		k.mu.Lock()
		w := k.armed
		if w == k.running {
			w = nil // was poked for it twice
		}
		if w != nil {
			k.running = w
		}
		k.mu.Unlock()
		if w == nil || !c.guard.enterAny() {
			continue
		}
		_ = c.follow(k.ctx, w, 0)
		if !w.off {
			k.notify() // also when the counter is closed: whoever looks finds out
		}
		c.guard.leaveAny()
	}
}

// init must be called before anything else.
func (k *counterKeeper) init(c *Counter, notify func()) {
	k.c, k.notify = c, notify
	k.ctx, k.cancel = context.WithCancel(context.Background())
}

// stop ends the goroutine, also one that sleeps. It is harmless without init.
func (k *counterKeeper) stop() {
	if k.cancel == nil {
		return
	}
	k.mu.Lock()
	k.over = true
	k.disarm()
	k.mu.Unlock()
	k.cancel()
	k.wg.Wait()
}

// counterMember is a counter in one wait set. Producers of a queue ring the process's bell; for a
// counter its keeper does, of the process that waits: so only a counter that a set sleeps for costs
// its adders anything, and a thread of this process, or a share of one, stands for each.
type counterMember struct {
	c      *Counter
	bit    int
	keeper counterKeeper
	// last is what the set reported. Only the goroutine that waits on the set uses it.
	last, now counterCheckpoint
}

func newCounterMember(c *Counter, bell *wake.Domain, bit int) *counterMember {
	f := &counterMember{c: c, bit: bit}
	f.keeper.init(c, func() { bell.Consider(bit) })
	return f
}

// claim: a counter has no signals.
func (f *counterMember) claim() bool { return true }

// Look implements wake.Member: a counter is ready while it stands elsewhere than when the set
// last reported it. One that does not is waited for.
func (f *counterMember) Look() (more, signaled bool, err error) {
	if !f.c.guard.enterAny() {
		return false, false, nil
	}
	defer f.c.guard.leaveAny()
	now, changed, err := f.c.news(f.last)
	if err == nil && !changed && !f.keeper.arm(now.value, now.errs) {
		now, changed, err = f.c.news(f.last)
	}
	f.now = now
	return changed, false, err
}

// Join implements wake.Member. Nobody but the keeper rings.
func (f *counterMember) Join(bool) {}

func (f *counterMember) reported() { f.last = f.now }

func (f *counterMember) left() {
	f.keeper.stop()
	place.ProcessBell.GiveBack(f.bit)
	f.c.holders.unbind()
}
