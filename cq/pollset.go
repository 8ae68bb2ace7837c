package cq

import (
	"math/rand/v2"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// PollSet finds out which of many queues and counters have something, without waiting (fid_poll).
// Polling costs what the ready members cost. One goroutine at a time polls; that counts as using
// the members. Add, Remove and Close may be called from anywhere.
type PollSet struct {
	fid  FID
	bell *doorbell.Domain
	set  *doorbell.Set
	gate guard
	list memberList
	bits []int
}

// NewPollSet makes an empty poll set (fi_poll_open). d is as for [NewWaitSet]; flags must be 0.
func NewPollSet(d *shm.Dir, flags Flags) (*PollSet, error) {
	if flags != 0 {
		return nil, refuse("open", "poll set", "flags", flags, 0, ErrInvalid)
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
func (s *PollSet) Add(m Waitable) error { return s.list.add(&s.gate, s.set, m) }

// Remove takes a member out (fi_poll_del); fs.ErrNotExist if it is none.
func (s *PollSet) Remove(m Waitable) error { return s.list.remove(&s.gate, s.set, m) }

// Len returns the number of members.
func (s *PollSet) Len() int { return s.list.len() }

// Poll drives the progress of all members and puts those into dst that may have something
// (fi_poll): queues that are not empty, and counters of which a value differs from what it was when
// Poll of this set last returned them, or when this process last called Set or Add of them. It
// returns how many. Those that do not fit in dst come first the next time: nothing is forgotten
// because dst is short.
func (s *PollSet) Poll(dst []Waitable) (int, error) {
	if !s.gate.enter() {
		return 0, ErrClosed
	}
	defer s.gate.leave()
	s.list.progress()
	if len(dst) == 0 {
		return 0, nil
	}
	bits, err := s.set.Poll(room(&s.bits, len(dst)))
	return s.list.report(bits, dst), err
}

// Close closes the set (fi_close). ErrBusy while it has members; closing twice is harmless.
func (s *PollSet) Close() error {
	if n := s.Len(); n > 0 {
		return &Error{Pkg: pkg, Op: "close", Name: "poll set", Field: "members", Got: n, Want: 0,
			Err: ErrBusy, Hint: "remove them first"}
	}
	first, err := s.gate.close(func() {})
	if !first || err != nil {
		return err
	}
	s.set.Close()
	return processDomain.release()
}
