package cq

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
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
// for it has no descriptor left, say, wakes no set or channel yet: it tries again after 50 ms, then
// less often, up to once a second, until it can or is closed, and at each post that finds the
// reader asleep.
//
// One goroutine at a time waits on a set; that counts as using its members, so a queue in it is
// either Shared or read by the goroutine that waits. Add, Remove, Signal and Close may be called
// from anywhere.
type WaitSet struct {
	fid    FID
	opt    WaitSetOptions
	bell   *wake.Domain
	set    *wake.Set
	face   *wake.Face
	keeper *condKeeper // of WaitMutexCond
	gate   guard
	list   memberList
	turn   sync.Mutex // held by the one who waits
	bits   []int      // of that one
	armed  standIns   // for the descriptor

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
	s.gate.shared, s.list.waits = true, true
	var err error
	if s.bell, err = place.ProcessBell.Acquire(d); err != nil {
		return nil, failed("open", "wait set", err)
	}
	s.set = s.bell.NewSet()
	if o.Wait.hasFD() {
		if s.face, err = s.set.Face(); err == nil && o.Wait == WaitMutexCond {
			s.keeper, err = newCondKeeper(s.face.FD())
		}
		if err != nil {
			s.set.Close()
			_ = place.ProcessBell.Release()
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
	if !kind.Absent(m) && m.waitObject() == WaitNone {
		return &Error{Pkg: kind.Pkg, Op: "add", Name: "wait set", Err: ErrNoWait,
			Hint: "open the member with another wait object"}
	}
	return s.list.add(&s.gate, s.set, m)
}

// Remove takes a member out (fs.ErrNotExist if it is none).
func (s *WaitSet) Remove(m Waitable) error { return s.list.remove(&s.gate, s.set, m) }

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
	s.armed.replace(nil)
	e := ending{ctx: ctx, gate: &s.gate, bell: s.bell, await: s.list.await}
	defer e.over()
	w := wake.Wait{DeadlineNs: deadline(o.Timeout), Asleep: e.asleep}
	w.Stop = func() bool {
		return s.signal.Load() || s.gate.isClosed() || e.fedAnew() || ctx.Err() != nil
	}
	for {
		e.fed = feederChanges.Load()
		bits, err := s.set.Wait(roomFor(&s.bits, len(dst)), sliced(w, s.list.driven()))
		if n, ready := s.list.report(bits, dst); ready > 0 || err != nil {
			return n, err
		}
		switch {
		case len(bits) > 0: // all of them were taken out meanwhile, or their signals by others
		case s.gate.isClosed():
			return 0, ErrClosed
		case ctx.Err() != nil:
			return 0, kind.Ended(ctx)
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
	s.armed.replace(nil)
	driveAll(s.list.driven())
	// What comes between the look and the arming is looked at again: it may be a signal, which only
	// the look takes. Left there it would end another wait too.
	for range armTries {
		bits, err := s.set.Wait(roomFor(&s.bits, 1), lookOnce)
		if err != nil {
			return failed("trywait", "wait set", err)
		}
		if _, ready := s.list.report(bits, nil); ready > 0 {
			return ErrWouldBlock
		}
		if len(bits) > 0 { // their signals were taken by others
			continue
		}
		ready, err := s.set.TryWait()
		switch {
		case err != nil:
			return failed("trywait", "wait set", err)
		case ready:
			continue
		case s.signal.Swap(false): // after the descriptor was lowered, which a signal raises
			return ErrSignaled
		}
		s.keeper.arm()
		s.armed.replace(s.list.await())
		return nil
	}
	return ErrWouldBlock
}

// armTries bounds how often TryWait looks while members are marked and have nothing: a peer that
// does so could keep it for ever.
const armTries = 64

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
	s.armed.replace(nil)
	s.set.Close()
	return place.ProcessBell.Release()
}

// PollSet finds out which of many queues and counters have something, without waiting (fid_poll).
// One goroutine at a time polls; that counts as using the members. Add, Remove and Close may be
// called from anywhere.
type PollSet struct {
	bell *wake.Domain
	set  *wake.Set
	gate guard
	list memberList
	one  sync.Mutex // held by the one who polls
	bits []int      // of that one
	turn bool       // his: counters come first the next time
}

// polledCounter is a counter in a poll set, which is looked at each time: nobody rings for it.
type polledCounter struct {
	c    *Counter
	last counterCheckpoint // what was reported; of the goroutine that polls
}

// NewPollSet makes an empty poll set (fi_poll_open). d is as for [NewWaitSet]; flags must be 0.
func NewPollSet(d *shm.Dir, flags Flags) (*PollSet, error) {
	if flags != 0 {
		return nil, kind.Refuse("open", "poll set", "flags", flags, 0, ErrInvalid)
	}
	bell, err := place.ProcessBell.Acquire(d)
	if err != nil {
		return nil, failed("open", "poll set", err)
	}
	s := &PollSet{bell: bell, set: bell.NewSet()}
	s.gate.shared = true
	return s, nil
}

// Add makes m a member (fi_poll_add), whatever its wait object. fs.ErrExist if it is one already.
func (s *PollSet) Add(m Waitable) error { return s.list.add(&s.gate, s.set, m) }

// Remove takes a member out (fi_poll_del); fs.ErrNotExist if it is none.
func (s *PollSet) Remove(m Waitable) error { return s.list.remove(&s.gate, s.set, m) }

// Poll drives the progress of all members and puts those into dst that may have something
// (fi_poll): queues that are not empty, and counters with another value than when Poll of this set
// last returned them. It returns how many. (By fi_poll(3) a set does not report what its own
// application adds, and may report too much. Here Poll reports each change, whoever made it.) Those
// that do not fit in dst come first the next time, so a short dst loses nothing. Poll neither
// reports nor takes a signal, which is for calls that wait.
//
// ErrBusy says that another goroutine polls the set, ErrClosed that it is closed. If nothing is
// ready the result is 0 and no error.
//
// Polling costs what the queues that have something cost, and a look at every counter.
func (s *PollSet) Poll(dst []Waitable) (n int, err error) {
	if !s.gate.enter() {
		return 0, ErrClosed
	}
	defer s.gate.leave()
	if !s.one.TryLock() {
		return 0, errTurn("poll", "poll set")
	}
	defer s.one.Unlock()
	driveAll(s.list.driven())
	if s.turn {
		n = s.pollCounters(dst)
	}
	if room := dst[n:]; len(room) > 0 {
		bits, e := s.set.Wait(roomFor(&s.bits, len(room)), lookOnce)
		found, _ := s.list.report(bits, room)
		n, err = n+found, e
	}
	if !s.turn {
		n += s.pollCounters(dst[n:])
	}
	s.turn = !s.turn
	return n, err
}

// pollCounters puts those into dst that changed. Those that did not fit in keep their checkpoint;
// the next look begins with them.
func (s *PollSet) pollCounters(dst []Waitable) (n int) {
	l := &s.list
	l.mu.Lock()
	all := l.counters
	l.mu.Unlock()
	for i, p := range all {
		if n == len(dst) {
			l.mu.Lock()
			if len(l.counters) == len(all) && &l.counters[0] == &all[0] {
				l.counters = append(slices.Clone(all[i:]), all[:i]...)
			}
			l.mu.Unlock()
			break
		}
		p.c.feeders.drive()
		now, changed, err := p.c.news(p.last)
		if !changed && err == nil {
			continue
		}
		p.last = now
		dst[n] = p.c
		n++
	}
	return n
}

// Close closes the set (fi_close). ErrBusy while it has members; closing twice is harmless.
func (s *PollSet) Close() error {
	if n := s.list.close(); n > 0 {
		return &Error{Pkg: kind.Pkg, Op: "close", Name: "poll set", Field: "members", Got: n, Want: 0,
			Err: ErrBusy, Hint: "remove them first"}
	}
	first, err := s.gate.close(func() {})
	if !first || err != nil {
		return err
	}
	s.set.Close()
	return place.ProcessBell.Release()
}
