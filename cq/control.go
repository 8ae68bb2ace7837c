package cq

import (
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
)

// Command of a Control call (fi_control).
type Command int

const (
	// GetWait returns the wait object, to be used with system calls or in the process (FI_GETWAIT).
	GetWait Command = iota
	// GetWaitObj returns its kind alone (FI_GETWAITOBJ).
	GetWaitObj
)

// Native is a wait object for use outside the library. Which fields are set depends on Object.
type Native struct {
	Object WaitObject
	FD     int        // of WaitFD, else -1
	Cond   *MutexCond // of WaitMutexCond
	// PollFDs of WaitPollFD are all to be waited on. The list, which here has one element, is the
	// same as long as ChangeIndex is.
	PollFDs     []int
	ChangeIndex uint64
}

// MutexCond is the wait object of WaitMutexCond, for goroutines of the process that reads the
// queue. The mutex must be held over TryWait and Wait, or a completion could be signaled in
// between; and nobody may hold it for good while the queue or set is closed, which takes it to wake
// who waits.
//
//	mc.Lock()
//	for q.TryWait() == nil {
//		mc.Wait()
//	}
//	mc.Unlock()
type MutexCond struct {
	sync.Mutex
	cond *sync.Cond
}

// Wait gives the mutex up, waits until something may be there, and takes it again.
func (m *MutexCond) Wait() { m.cond.Wait() }

// ErrNoData: there is no wait object to return (ENODATA).
var ErrNoData error = kind.NewSentinel("no wait object: open it with another one",
	Errno(syscall.ENODATA), nil)

// controlled is what a Control call is about.
type controlled struct {
	op, name string
	object   WaitObject
	fd       int
	cond     *MutexCond
}

func (c controlled) do(cmd Command) (Native, error) {
	n := Native{Object: c.object, FD: -1}
	fail := func(err error, hint string) (Native, error) {
		return Native{}, &Error{Pkg: kind.Pkg, Op: "control", Name: c.name, Field: "command",
			Got: int(cmd),
			Err: err, Hint: hint}
	}
	switch {
	case cmd != GetWait && cmd != GetWaitObj:
		return fail(Errno(syscall.ENOSYS), "use GetWait or GetWaitObj")
	case c.object == WaitNone:
		return fail(ErrNoData, "open it with a wait object")
	case cmd == GetWaitObj:
	case c.object == WaitFD:
		n.FD = c.fd
	case c.object == WaitPollFD:
		n.PollFDs, n.ChangeIndex = []int{c.fd}, 1
	case c.object == WaitMutexCond:
		n.Cond = c.cond
	default:
		return fail(Errno(syscall.ENOSYS), "its wait object is for calls of this library only")
	}
	return n, nil
}

// Control returns the queue's wait object or its kind (fi_control with FI_GETWAIT, FI_GETWAITOBJ):
// ErrNoData for WaitNone, ENOSYS for wait objects that only calls of this library can use, and for
// other commands; ErrClosed. It may be called from anywhere.
func (q *Queue) Control(c Command) (Native, error) {
	if !q.guard.enterAny() {
		return Native{}, &Error{Pkg: kind.Pkg, Op: "control", Name: q.name, Err: ErrClosed}
	}
	defer q.guard.leaveAny()
	return controlled{op: "control", name: q.name, object: q.opt.Wait, fd: q.FD(),
		cond: q.keeper.mutexCond()}.do(c)
}

// Control is as for [Queue.Control].
func (s *WaitSet) Control(c Command) (Native, error) {
	if !s.gate.enterAny() {
		return Native{}, &Error{Pkg: kind.Pkg, Op: "control", Name: "wait set", Err: ErrClosed}
	}
	defer s.gate.leaveAny()
	return controlled{op: "control", name: "wait set", object: s.opt.Wait, fd: s.FD(),
		cond: s.keeper.mutexCond()}.do(c)
}
