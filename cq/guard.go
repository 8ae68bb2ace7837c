package cq

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
)

// guard keeps Close, which may come from any goroutine, from unmapping memory that a call is
// using. A call marks itself and then looks whether the handle is closed; Close marks it closed and
// then waits for the mark to go. Each needs its store before its load. The caller's side is hot,
// so Close pays for both: a barrier on every thread of the process.
//
// A handle that several goroutines use counts them instead, or has a lock under which there is one.
type guard struct {
	busy   ring.Index   // written by the one goroutine that uses the handle
	loans  ring.Index   // entries handed out in place, written by the goroutine that has them
	users  atomic.Int64 // goroutines inside, beside the one that busy stands for
	closed atomic.Bool
	over   atomic.Bool // closed, and nobody is inside any more
	shared bool
	// misused says that a second goroutine was found inside. Whether one was is asked with a load
	// and not claimed with an atomic operation, so it may also have been missed.
	misused atomic.Bool
}

// misusedGrace is how long close waits for a goroutine that it cannot see.
const misusedGrace = 10 * time.Millisecond

// drainGrace is far longer than a store stays in a processor's buffer: for a close where the kernel
// refuses the barrier, since a filter of system calls came late.
const drainGrace = 10 * time.Millisecond

// asymmetric tells whether Close can pay. It is decided once: both sides must agree.
var asymmetric = barrier.RegisterPrivate() == nil

// enter reports whether the handle may be used; leave must follow if it may.
func (g *guard) enter() bool {
	if g.shared {
		return g.enterAny()
	}
	return g.enterSeen()
}

// enterSeen is enterAlone that turns a second goroutine away if it can be seen: the load does not
// wait for stores of other processors. The shortest calls do without it: on an empty read it would
// be a third of the time.
func (g *guard) enterSeen() bool { return g.busy.Load() == 0 && g.enterAlone() }

func (g *guard) leave() {
	if g.shared {
		g.leaveAny()
		return
	}
	g.leaveAlone()
}

// enterAlone is enter for the one goroutine that uses the handle, or has its lock; leaveAlone must
// follow. Both are inlined, and on amd64 they are two stores and a load.
func (g *guard) enterAlone() bool {
	ring.StoreRelease(&g.busy, 1)
	if !asymmetric {
		g.busy.Store(1)
	}
	if g.closed.Load() {
		g.leaveAlone()
		return false
	}
	return true
}

func (g *guard) leaveAlone() { ring.StoreRelease(&g.busy, 0) }

// refusal says why the handle could not be entered.
func (g *guard) refusal() error {
	if g.closed.Load() {
		return ErrClosed
	}
	g.misused.Store(true)
	return errInUse
}

// errInUse is made once: a caller that tries again and again costs nothing.
var errInUse error = &Error{Pkg: kind.Pkg, Op: "enter", Name: "handle", Err: ErrBusy,
	Hint: "it is used by two goroutines at once: give each its own, or a queue Options.Shared"}

// enterAny is enter for calls that may come from any goroutine at any time; leaveAny must follow.
func (g *guard) enterAny() bool {
	g.users.Add(1)
	if !g.closed.Load() {
		return true
	}
	g.users.Add(-1)
	return false
}

func (g *guard) leaveAny() { g.users.Add(-1) }

// close closes the gate and calls wake until nobody is inside any more. It reports whether this
// was the first close. With entries handed out it opens the gate again and fails.
func (g *guard) close(wake func()) (first bool, err error) {
	// Looked at before the gate closes as well, so that a close that must fail turns nobody away.
	if g.loans.Load() != 0 {
		return false, ErrBusy
	}
	if !g.closed.CompareAndSwap(false, true) {
		return false, nil
	}
	if asymmetric && barrier.Private() != nil {
		time.Sleep(drainGrace)
	}
	for i := 0; g.busy.Load() != 0 || g.users.Load() != 0; i++ {
		wake()
		if i < 16 {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
	if g.misused.Load() {
		// The mark may have been wiped by one of two who were inside: let the other leave.
		time.Sleep(misusedGrace)
	}
	if g.loans.Load() != 0 {
		g.closed.Store(false)
		return false, ErrBusy
	}
	g.over.Store(true)
	return true, nil
}

func (g *guard) isClosed() bool { return g.closed.Load() }

// isOver reports whether a close has turned everybody out: from then on nobody uses the memory.
func (g *guard) isOver() bool { return g.over.Load() }
