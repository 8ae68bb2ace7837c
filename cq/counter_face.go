package cq

import (
	"context"
	"sync"
)

// counterKeeper is the goroutine that writes a counter's descriptor. Adders do not know whose epoll
// waits, they know a futex: so while the descriptor is armed, and nobody else of the handle sleeps
// there, the keeper does.
type counterKeeper struct {
	mu      sync.Mutex
	armed   *counterWaiter // what the last successful TryWait put on the list
	running *counterWaiter // what the goroutine took last
	poke    chan struct{}  // made with the goroutine
	wg      sync.WaitGroup
}

// FD returns the descriptor of a handle that was opened with WaitFD, for the caller's own poll or
// epoll; it is readable after the value or the error value changed. Before every blocking wait on
// it TryWait must have succeeded. Without WaitFD it is -1.
func (c *Counter) FD() int {
	if c.face == nil {
		return -1
	}
	return c.face.FD()
}

// TryWait arms the descriptor (fi_trywait). nil says that neither value is another one than Read
// and ReadErr of this handle returned last, and that a blocking wait on FD will end when one
// changes. ErrAgain says that one is: read both, and try again. It must be called before each wait
// on the descriptor, by one goroutine at a time. While it is armed a thread of this process sleeps
// for it.
func (c *Counter) TryWait() error {
	if c.face == nil {
		return &Error{Pkg: pkg, Op: "trywait", Name: c.name, Err: ErrNoWait,
			Hint: "open the counter with WaitFD"}
	}
	if !c.guard.enterAny() {
		return ErrClosed
	}
	defer c.guard.leaveAny()
	k := &c.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	// The reset comes before the arming: what is written after it stays visible.
	if err := c.face.Reset(); err != nil {
		return failed("trywait", c.name, err)
	}
	w := &counterWaiter{any: true, value: c.seen.value.Load(), errs: c.seen.errs.Load(),
		turn: make(chan struct{}, 1)}
	if changed, _ := c.judge(w); changed {
		return ErrAgain
	}
	c.disarm()
	k.armed = w
	if c.enlist(w) {
		w.tell()
	}
	if changed, _ := c.judge(w); changed {
		c.disarm()
		return ErrAgain
	}
	if k.poke == nil {
		k.poke = make(chan struct{}, 1)
		k.wg.Go(c.keep)
	}
	select {
	case k.poke <- struct{}{}:
	default:
	}
	return nil
}

// disarm takes an arming back that is not needed any more. The keeper's lock is held. One that
// leads stays if the goroutine has it: it sleeps for the whole list, and writes once too often at
// most.
func (c *Counter) disarm() {
	k, q := &c.keeper, &c.waiters
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
func (c *Counter) keep() {
	k := &c.keeper
	for {
		select {
		case <-c.gone:
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
		_ = c.follow(context.Background(), w, 0)
		if !w.off {
			c.face.Set() // also when the counter is closed: TryWait says so
		}
		c.guard.leaveAny()
	}
}
