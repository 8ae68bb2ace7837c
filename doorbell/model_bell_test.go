package doorbell_test

import "fmt"

// laneCount lanes of at most two queues; index signaller is the fourth actor outside the reader's
// process, which runs a producer's steps from P4 on.
const (
	laneCount = 3
	signaller = laneCount
	taskCount = 3
)

// role is what a goroutine of the reader's process does all the time.
type role uint8

const (
	absent role = iota
	direct      // blocking reads of queue 0
	setter      // waits on a wait set, then reads one of the queues that it reports
	poller      // trywait, then epoll on the descriptor of queue 0; reads without blocking
)

// call is what such a goroutine currently asks of a queue.
type call uint8

const (
	nothing call = iota
	read         // never blocks
	sread
	trywait
)

// Bits of the queue's armed word.
const (
	armDirect = 1 << iota
	armFD
)

// bell is one variant of the protocol: its size, its roles and at most one bug.
type bell struct {
	publishes [laneCount + 1]uint8 // the last one is the number of signals
	queueOf   [laneCount]uint8
	roles     [taskCount]role
	masks     [taskCount]uint8 // queues of a setter
	plain     bool             // P1 is a plain store; the reader that parks runs the barrier
	lazy      bool             // no barrier if the lanes in hand were parked already
	keep      bool             // R2 never un-parks, as while a completion channel is armed
	bug       bug
}

// task is a goroutine of the reader's process. Its fields other than at and asleep are private to
// one call, and zero outside of it so that equal states look equal.
type task struct {
	at     step
	call   call
	queue  uint8
	asleep bool
	fresh  bool  // the epoch has not moved since this task loaded it
	found  uint8 // S2: queues that are ready
	done   uint8 // S2: queues looked at in this round
	hand   uint8 // bits taken but not handed on: only in mutants that take in two steps
	lane   uint8 // next producer that the barrier reaches
}

// bellState is everything that two steps may disagree about. Tails and heads appear as the number
// of unread entries, since nothing in these variants compares absolute indices.
type bellState struct {
	unread, left, buffered [laneCount + 1]uint8
	parked, ready, cand    uint8 // bits of lanes; cand belongs to the reader's process, under q.mu
	lock                   [2]uint8
	armed, armBits, rung   uint8 // queue 0
	waiters                uint8 // direct sleepers of queue 0, under q.mu
	latch, eventfd         bool
	dready                 uint8 // bits of queues
	todo                   [taskCount]uint8
	darmed, drung, nw      uint8
	task                   [taskCount]task
	at                     [laneCount + 1]step // of the producers
	w, wBits, dw           [laneCount + 1]uint8
}

func (v *bell) start() (s bellState) {
	s.left = v.publishes
	s.todo = v.masks
	for l := range laneCount {
		if v.publishes[l] > 0 {
			s.cand |= 1 << l // a new reader takes every lane in hand
		}
		s.at[l] = P1
	}
	s.at[signaller] = P1
	for i := range s.task {
		s.task[i].at = app
	}
	return s
}

// lanesOf returns the lanes of queue q as bits.
func (v *bell) lanesOf(q uint8) (m uint8) {
	for l := range laneCount {
		if v.publishes[l] > 0 && v.queueOf[l] == q {
			m |= 1 << l
		}
	}
	return m
}

func (v *bell) member(q uint8) bool {
	return (v.masks[0]|v.masks[1]|v.masks[2])&(1<<q) != 0
}

func (s *bellState) nonEmpty(lanes uint8) (m uint8) {
	for l := range laneCount {
		if lanes&(1<<l) != 0 && s.unread[l] > 0 {
			m |= 1 << l
		}
	}
	return m
}

// flush makes the buffered tails of one producer visible.
func (s *bellState) flush(l int) {
	s.unread[l] += s.buffered[l]
	s.buffered[l] = 0
}

func (v *bell) actor(who uint8) string {
	switch {
	case who < 10:
		return fmt.Sprintf("producer %d", who)
	case who < 20:
		return fmt.Sprintf("reader %d  ", who-10)
	}
	return fmt.Sprintf("buffer %d  ", who-20)
}

func (v *bell) next(s *bellState, emit emitter[bellState]) {
	out := func(n *bellState, by label) {
		relabel(&n.armed, &n.rung, &n.w[0], &n.w[1], &n.w[2], &n.w[3])
		relabel(&n.darmed, &n.drung, &n.dw[0], &n.dw[1], &n.dw[2], &n.dw[3])
		emit(n, by)
	}
	for i := range s.task {
		t := &s.task[i]
		if v.roles[i] == absent || t.at == gone {
			continue
		}
		by := label{uint8(10 + i), t.at}
		if t.asleep {
			n := *s
			n.task[i].asleep = false
			out(&n, label{by.who, expire})
			continue
		}
		v.act(s, i, func(n *bellState) { out(n, by) })
	}
	for l := range s.at {
		if s.buffered[l] > 0 {
			n := *s
			n.unread[l]++
			n.buffered[l]--
			out(&n, label{uint8(20 + l), visible})
		}
		if s.at[l] == P1 && s.left[l] == 0 {
			continue
		}
		n := *s
		v.produce(s, &n, l)
		out(&n, label{uint8(l), s.at[l]})
	}
}

// judge never needs a flag for "stopped for ever": a producer that stops is one that is not
// scheduled again, so every state in which all of the reader's process sleeps is final for the
// steps that are still missing. A store buffer, in contrast, always drains.
func (v *bell) judge(s *bellState) verdict {
	var unread uint8
	half := false
	for l := range laneCount {
		if s.buffered[l] > 0 {
			return moving
		}
		u := s.unread[l]
		if s.at[l] != P1 {
			half = true
			u -= min(u, 1) // the newest entry is not finished
		}
		if u > 0 {
			unread |= 1 << v.queueOf[l]
		}
	}
	half = half || s.at[signaller] != P1
	signaled := s.latch && s.left[signaller] == 0 && s.at[signaller] == P1
	bad, sleeper := false, false
	for i, r := range v.roles {
		t := &s.task[i]
		blocked := t.asleep || t.at == T8 && !s.eventfd
		if r == absent || t.at == gone {
			continue
		}
		if !blocked {
			return moving
		}
		sleeper = true
		switch r {
		case direct, poller:
			bad = bad || unread&1 != 0 || signaled
		case setter:
			bad = bad || unread&v.masks[i] != 0
		}
	}
	switch {
	case bad && half:
		return muted
	case bad:
		return lost
	case sleeper:
		return resting
	}
	return over
}
