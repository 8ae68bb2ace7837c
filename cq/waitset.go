package cq

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// WaitSetOptions of [NewWaitSet] (struct fi_wait_attr).
type WaitSetOptions struct {
	// Wait is WaitUnspec, or WaitFD, WaitPollFD or WaitMutexCond for a set with a wait object that
	// the caller can use itself, see [WaitSet.GetWait].
	Wait WaitObject
	// Flags must be 0.
	Flags Flags
}

// WaitSet waits for many queues, event queues and counters at once (fid_wait). Waiting costs what
// the ready members cost, however many there are. Members come and go at any time, and a queue may
// be in several sets and be read with blocking calls besides, without losing a wake.
//
// A writer opens the bell of the reader's process when it first has to ring it. One that cannot,
// for it has no descriptor left, say, wakes no set or channel; it tries again at each post that
// finds the reader asleep.
//
// One goroutine at a time waits on a set; that counts as using its members, so a queue in it is
// either Shared or read by the goroutine that waits. Add, Remove, Signal and Close may be called
// from anywhere.
type WaitSet struct {
	fid    FID
	opt    WaitSetOptions
	bell   *doorbell.Domain
	set    *doorbell.Set
	face   *doorbell.Face
	keeper *condKeeper // of WaitMutexCond
	gate   guard
	list   memberList
	turn   sync.Mutex // held by the one who waits
	bits   []int      // of that one

	signal atomic.Bool
}

// NewWaitSet makes an empty wait set (fi_wait_open). d is the directory of the queues that are to
// be its members; others can be members as well. Flags and kinds of wait object that a set does not
// know are ErrInvalid.
func NewWaitSet(d *shm.Dir, o WaitSetOptions) (*WaitSet, error) {
	if o.Flags != 0 {
		return nil, kind.Refuse("open", "wait set", "Flags", o.Flags, 0, ErrInvalid)
	}
	if o.Wait == WaitCritSecCond {
		return nil, errWindows("open", "wait set")
	}
	if o.Wait != WaitUnspec && !o.Wait.hasFD() {
		return nil, kind.Refuse("open", "wait set", "Wait", o.Wait,
			"WaitUnspec, WaitFD, WaitPollFD or WaitMutexCond", ErrInvalid)
	}
	s := &WaitSet{fid: FID{Kind: FIDWaitSet, ID: rand.Uint64()}, opt: o}
	s.gate.shared, s.list.signals = true, true
	var err error
	if s.bell, err = processDomain.acquire(d); err != nil {
		return nil, failed("open", "wait set", err)
	}
	s.set = s.bell.NewSet()
	if o.Wait.hasFD() {
		if s.face, err = s.set.Face(); err == nil && o.Wait == WaitMutexCond {
			s.keeper, err = newCondKeeper(s.face.FD())
		}
		if err != nil {
			s.set.Close()
			_ = processDomain.release()
			return nil, failed("open", "wait set", err)
		}
	}
	return s, nil
}

// FID returns the set's identifier.
func (s *WaitSet) FID() FID { return s.fid }

// Add makes m a member. It may be ready at once. fs.ErrExist if it is one already; ErrNoWait for a
// queue that was opened with WaitNone.
func (s *WaitSet) Add(m Waitable) error {
	if !absent(m) && m.waitObject() == WaitNone {
		return &Error{Pkg: kind.Pkg, Op: "add", Name: "wait set", Err: ErrNoWait,
			Hint: "open the member with another wait object"}
	}
	return s.list.add(&s.gate, s.set, m)
}

// Remove takes a member out (fs.ErrNotExist if it is none).
func (s *WaitSet) Remove(m Waitable) error { return s.list.remove(&s.gate, s.set, m) }

// Len returns the number of members.
func (s *WaitSet) Len() int { return s.list.len() }

// Wait waits until at least one member is ready and returns how many of them it put into dst
// (fi_wait, which does not say which). With an empty dst it only waits. Those that do not fit come
// first the next time. A queue is ready while a read would return something, a counter when one of
// its values differs from what it was when a Wait of this set last returned it. A signal of a queue
// that has nothing else makes one Wait return it, once, with whatever time it was given: that takes
// the signal, and a read then finds nothing. Wait ends with ErrSignaled after Signal of the set,
// ErrTimedOut (ETIMEDOUT), ErrClosed, the context's error, or ErrBusy if another goroutine waits.
func (s *WaitSet) Wait(ctx context.Context, dst []Waitable, o WaitOptions) (int, error) {
	if !s.gate.enter() {
		return 0, ErrClosed
	}
	defer s.gate.leave()
	if !s.turn.TryLock() {
		return 0, errTurn("wait", "wait set")
	}
	defer s.turn.Unlock()
	w := doorbell.Wait{DeadlineNs: deadline(o.Timeout)}
	stop := stopOn(ctx, &s.gate, s.bell)
	defer stop()
	w.Stop = func() bool { return s.signal.Load() || s.gate.isClosed() || ctx.Err() != nil }
	for {
		turn := w
		if again := s.list.progress(); again > 0 {
			if until := deadline(time.Duration(again)); turn.DeadlineNs == 0 || until < turn.DeadlineNs {
				turn.DeadlineNs = until
			}
		}
		bits, err := s.set.Wait(roomFor(&s.bits, len(dst)), turn)
		if n, ready := s.list.report(bits, dst); ready > 0 || err != nil {
			return n, err
		}
		switch {
		case len(bits) > 0: // all of them were taken out meanwhile, or their signals by others
		case s.gate.isClosed():
			return 0, ErrClosed
		case ctx.Err() != nil:
			return 0, ended(ctx)
		case w.DeadlineNs != 0 && spin.Now() >= w.DeadlineNs:
			return 0, ErrTimedOut // before the signal, which stays for the next call
		case s.signal.Swap(false):
			return 0, ErrSignaled
		}
	}
}

func errTurn(op, name string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: name, Err: ErrBusy,
		Hint: "another goroutine waits on it: give each a set of its own"}
}

// Signal ends one wait: one that is waiting now, in Wait or on the descriptor, or else the next
// Wait or TryWait that finds nothing ready. After Close it is ErrClosed.
func (s *WaitSet) Signal() error {
	if !s.gate.enterAny() {
		return ErrClosed
	}
	defer s.gate.leaveAny()
	s.signal.Store(true)
	s.set.Alert()
	return nil
}

// TryWait arms the descriptor (fi_trywait): nil says that no member is ready and that the
// descriptor becomes readable when one does; ErrWouldBlock that one is, or may be, or had a
// signal, which that takes; ErrSignaled, once, that the set had one; ErrBusy that another goroutine
// waits on the set.
func (s *WaitSet) TryWait() error {
	if s.face == nil {
		return &Error{Pkg: kind.Pkg, Op: "trywait", Name: "wait set", Err: ErrNoWait,
			Hint: "open the set with WaitFD"}
	}
	if !s.gate.enter() {
		return ErrClosed
	}
	defer s.gate.leave()
	if !s.turn.TryLock() {
		return errTurn("trywait", "wait set")
	}
	defer s.turn.Unlock()
	s.list.progress()
	for {
		bits, err := s.set.Poll(roomFor(&s.bits, 1))
		if err != nil {
			return failed("trywait", "wait set", err)
		}
		if _, ready := s.list.report(bits, nil); ready > 0 {
			return ErrWouldBlock
		}
		if len(bits) == 0 {
			break
		}
	}
	switch ready, err := s.set.TryWait(); {
	case err != nil:
		return failed("trywait", "wait set", err)
	case ready:
		return ErrWouldBlock
	case s.signal.Swap(false): // after the descriptor was lowered, which a signal raises
		return ErrSignaled
	}
	s.keeper.arm()
	return nil
}

func (s *WaitSet) waitObject() WaitObject { return s.opt.Wait }

// Close closes the set (fi_close). ErrBusy while it has members. A Wait that is under way returns
// ErrClosed; closing twice is harmless.
func (s *WaitSet) Close() error {
	if n := s.list.close(); n > 0 {
		return &Error{Pkg: kind.Pkg, Op: "close", Name: "wait set", Field: "members", Got: n, Want: 0,
			Err: ErrBusy, Hint: "remove them, and close the queues that were opened in it"}
	}
	first, err := s.gate.close(s.bell.Kick)
	if !first || err != nil {
		return err
	}
	s.keeper.close()
	s.set.Close()
	return processDomain.release()
}
