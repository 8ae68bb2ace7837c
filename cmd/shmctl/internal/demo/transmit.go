package demo

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"

	"github.com/shmring/shmring/cq"
)

// sender is the state of the sending phase. A payload slot is busy from the post of a send until
// its completion, whose context names the slot and which send it was for.
type sender struct {
	a         *application
	postedNs  [sendSlots]int64
	sequence  [sendSlots]uint64
	free      []int
	posted    uint64
	completed uint64
	wrong     uint64 // completions that match no send under way
	failed    uint64 // completions in error
	acks      acks
	begin     int64
	end       int64
	buf       []cq.Tagged
}

// transmit posts sends and reads their completions.
func (a *application) transmit() (*Direction, error) {
	s := &sender{a: a, buf: make([]cq.Tagged, readBatch)}
	for i := range sendSlots {
		s.free = append(s.free, i)
	}
	if a.credit != nil {
		go s.acks.follow(a.credit, a.cfg.Count, a.q)
	}
	last := time.Now()
	s.begin = spin.Now()
	for s.completed+s.failed < a.cfg.Count {
		posted, err := s.post()
		if err != nil {
			return nil, err
		}
		read, err := s.read(posted)
		if err != nil {
			return nil, err
		}
		if posted+read > 0 {
			last = time.Now()
			a.progress("tx", s.completed)
		} else if time.Since(last) > quiet {
			break
		}
	}
	s.end = spin.Now()
	d := a.direction(s.completed, nil, s.completed, s.begin, s.end)
	d.Sent, d.Duplicate, d.Corrupt = s.posted, s.wrong, s.failed
	return d, nil
}

// post sends from free slots, no further ahead of the peer than the window.
func (s *sender) post() (int, error) {
	room := uint64(len(s.free))
	if s.a.credit != nil {
		room = min(room, window-min(window, s.posted-s.acks.n.Load()))
	}
	n := int(min(room, readBatch, s.a.cfg.Count-s.posted))
	if n == 0 {
		return 0, nil
	}
	now := spin.Now()
	for k := range n {
		slot := s.free[len(s.free)-1]
		err := s.a.way.post(slot, s.posted, s.posted<<16|uint64(slot))
		if errors.Is(err, syscall.EAGAIN) {
			n = k
			break
		}
		if err != nil {
			return 0, err
		}
		s.sequence[slot], s.postedNs[slot] = s.posted, now
		s.free = s.free[:len(s.free)-1]
		s.posted++
	}
	return n, s.a.way.flush()
}

// read takes completions, and waits for one if there was nothing to post either.
func (s *sender) read(posted int) (int, error) {
	o := cq.ReadOptions{Timeout: -1}
	if posted == 0 {
		o.Timeout = 10 * time.Millisecond
	}
	n, err := cq.ReadContext(context.Background(), s.a.q, s.buf, o)
	switch {
	case errors.Is(err, cq.ErrAvail):
		return s.readError()
	case errors.Is(err, cq.ErrTimedOut), errors.Is(err, cq.ErrSignaled):
		if s.a.line.ctx.Err() != nil {
			return 0, stage.ErrGone
		}
		return 0, nil
	case err != nil:
		return 0, err
	}
	now := spin.Now()
	for _, e := range s.buf[:n] {
		if slot, ok := s.release(e.Context); ok {
			s.completed++
			_ = s.a.hist.RecordValue(max(1, now-s.postedNs[slot]))
		}
	}
	return n, nil
}

// release frees the slot of a completion, if it is one that is due.
func (s *sender) release(context uint64) (slot int, ok bool) {
	slot = int(context & 0xffff)
	if slot >= sendSlots || s.sequence[slot] != context>>16 || s.postedNs[slot] == 0 {
		s.wrong++
		return 0, false
	}
	s.free = append(s.free, slot)
	s.sequence[slot] = ^uint64(0)
	return slot, true
}

func (s *sender) readError() (int, error) {
	var e cq.ErrorEntry
	if err := s.a.q.ReadErr(&e); err != nil {
		return 0, err
	}
	if _, ok := s.release(e.Context); ok {
		if s.failed++; s.failed == 1 {
			s.a.result.Notes = []string{fmt.Sprintf("first failed send: %v", &e)}
		}
	}
	return 1, nil
}
