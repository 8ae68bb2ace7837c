package cq

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// PollSet finds out which of many queues and counters have something, without waiting (fid_poll).
// One goroutine at a time polls; that counts as using
// the members. Add, Remove and Close may be called from anywhere.
type PollSet struct {
	fid  FID
	bell *doorbell.Domain
	set  *doorbell.Set
	gate guard
	list memberList
	one  sync.Mutex // held by the one who polls
	bits []int      // of that one

	mu       sync.Mutex
	shut     bool // it closes: no counter comes any more
	counters []*polledCounter
	turn     bool // counters come first the next time
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
	bell, err := processDomain.acquire(d)
	if err != nil {
		return nil, failed("open", "poll set", err)
	}
	s := &PollSet{fid: FID{Kind: FIDPollSet, ID: rand.Uint64()}, bell: bell, set: bell.NewSet()}
	s.gate.shared = true
	return s, nil
}

// FID returns the set's identifier.
func (s *PollSet) FID() FID { return s.fid }

// Add makes m a member (fi_poll_add), whatever its wait object. fs.ErrExist if it is one already.
func (s *PollSet) Add(m Waitable) error {
	c, ok := m.(*Counter)
	if !ok || c == nil {
		return s.list.add(&s.gate, s.set, m)
	}
	if !s.gate.enterAny() {
		return ErrClosed
	}
	defer s.gate.leaveAny()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return ErrClosed
	}
	if s.find(c) >= 0 {
		return errMember(m)
	}
	if err := c.holders.bind(); err != nil {
		return err
	}
	s.counters = append(slices.Clone(s.counters), &polledCounter{c: c})
	return nil
}

// Remove takes a member out (fi_poll_del); fs.ErrNotExist if it is none.
func (s *PollSet) Remove(m Waitable) error {
	c, ok := m.(*Counter)
	if !ok || c == nil {
		return s.list.remove(&s.gate, s.set, m)
	}
	if !s.gate.enterAny() {
		return ErrClosed
	}
	defer s.gate.leaveAny()
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.find(c)
	if i < 0 {
		return errNoMember(m)
	}
	s.counters = slices.Delete(slices.Clone(s.counters), i, i+1)
	c.holders.unbind()
	return nil
}

func (s *PollSet) find(c *Counter) int {
	return slices.IndexFunc(s.counters, func(p *polledCounter) bool { return p.c == c })
}

// Len returns the number of members.
func (s *PollSet) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list.len() + len(s.counters)
}

// Poll drives the progress of all members and puts those into dst that may have something
// (fi_poll): queues that are not empty, and counters that stand elsewhere than when Poll of this
// set last returned them. (fi_poll(3) has a set forget what its application adds itself, and allows
// to report too much: here any change is reported, whoever made it.) It returns how many. Those
// that do not fit in dst come first the next time: nothing is forgotten because dst is short. A
// signal is for who waits: Poll neither reports nor takes it.
//
// ErrBusy says that another goroutine polls the set, ErrClosed that it is closed. That nothing is
// ready is 0 and no error.
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
	s.list.progress()
	if s.turn {
		n = s.pollCounters(dst)
	}
	if room := dst[n:]; len(room) > 0 {
		bits, e := s.set.Poll(roomFor(&s.bits, len(room)))
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
	s.mu.Lock()
	all := s.counters // replaced, never changed in place, but for the order
	s.mu.Unlock()
	for i, p := range all {
		if n == len(dst) {
			s.mu.Lock()
			if len(s.counters) == len(all) && &s.counters[0] == &all[0] {
				s.counters = append(slices.Clone(all[i:]), all[:i]...)
			}
			s.mu.Unlock()
			break
		}
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

// empty refuses members from now on, or returns how many there are.
func (s *PollSet) empty() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.counters); n > 0 {
		return n + s.list.len()
	}
	n := s.list.close()
	s.shut = s.shut || n == 0
	return n
}

// Close closes the set (fi_close). ErrBusy while it has members; closing twice is harmless.
func (s *PollSet) Close() error {
	if n := s.empty(); n > 0 {
		return &Error{Pkg: kind.Pkg, Op: "close", Name: "poll set", Field: "members", Got: n, Want: 0,
			Err: ErrBusy, Hint: "remove them first"}
	}
	first, err := s.gate.close(func() {})
	if !first || err != nil {
		return err
	}
	s.set.Close()
	return processDomain.release()
}
