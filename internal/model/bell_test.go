package model

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
	absent      role = iota
	direct           // blocking reads of queue 0
	setter           // waits on a wait set, then reads one of the queues that it reports
	poller           // trywait, then epoll on the descriptor of queue 0; reads without blocking
	getter           // gets an event of a channel, arms the queue again, drains it
	setPoller        // trywait on a set, then epoll on the set's descriptor
	eventPoller      // epoll on the channel's descriptor, then a getter's steps without sleeping
	keeper           // waits on the domain for the descriptors of sets and channels
	changer          // adds queue 0 to the set of task 1, deletes it, adds it
	undertaker       // brings the notice that producer 0 died
	heir             // takes over from the process of the others, who start anew in its own
)

// gets tells whether the role gets events of the channel.
func (r role) gets() bool { return r == getter || r == eventPoller }

// call is what such a goroutine currently asks of a queue.
type call uint8

const (
	nothing call = iota
	read         // never blocks
	sread
	trywait
	empty // drain all there is: what the user of a channel does after arming
)

// Bits of the queue's armed word.
const (
	armDirect = 1 << iota
	armFD
)

// What a channel is armed for.
const (
	forNone = iota
	forSolicited
	forAny
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
	channel   uint8            // queues on the channel
	apart     bool             // getters have a channel each: task i that of queue i
	mode      uint8            // what its users arm
	twice     bool             // they arm for solicited entries before
	solicited [laneCount]uint8 // bit k: publish k is solicited
	summary   bool             // the domain's bits have a summary
	edges     bool             // the user's epoll is edge-triggered
	sift      bool             // R2 takes parked lanes that are empty off again
	passes    bool             // producer 0 may die anywhere, and another has its lane
	mixed     bool             // only those who take lane 0 over publish plainly
	attaches  uint8            // lanes that come while the reader is at work
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
	signal bool  // S2: queue 0 is so for its latch alone
	done   uint8 // S2: queues looked at in this round
	hand   uint8 // bits taken but not handed on: only in mutants that take in two steps
	lane   uint8 // next producer that the barrier reaches
}

// bellState is everything that two steps may disagree about. Tails and heads appear as the number
// of unread entries, since nothing in these variants compares absolute indices.
type bellState struct {
	unread, left, buffered [laneCount + 1]uint8
	parked, ready, cand    uint8 // bits of lanes; cand belongs to the reader's process, under q.mu
	lock                   [3]uint8
	armed, armBits, rung   uint8 // queue 0
	waiters                uint8 // direct sleepers of queue 0, under q.mu
	latch, eventfd         bool
	owes                   uint8 // waits that the latch is to end
	dready, dom            uint8 // bits of queues; dom is in their armed words
	dsum, dead, started    bool
	mask, todo             [taskCount]uint8 // of lists; a channel's mask is what it is armed for
	darmed, drung, nw      uint8
	task                   [taskCount]task
	at                     [laneCount + 1]step // of the producers
	w, wBits, dw           [laneCount + 1]uint8
	wDom                   uint8 // bits of producers that go on to P6

	notify              [3]uint8         // of a channel, in the queue's armed word
	base, sol, since    [laneCount]uint8 // since: the tail at the end of the last arming
	noted               uint8            // lanes whose base counts
	pending, owed       [3]uint8         // events that wait; armings less events delivered
	face, edge, lowered bool             // the descriptor of a set or channel
	lowering            uint8            // who resets it
	dmu                 uint8            // who is inside S1 of two steps

	heirReady, named bool  // nobody takes over right now; the reader's bell can be found
	old              uint8 // producers that loaded the armed word of the reader before
	holds, stale     uint8 // producers that hold its bell, or an older one: only in a mutant

	linked, begun uint8 // lanes that have a name; lanes whose producers are attaching
	cutOff        bool  // the one before in lane 0 died inside of a publish
	order         uint8 // of lane 0: its producer publishes plainly; the reader knows
}

func (v *bell) start() (s bellState) {
	s.left, s.heirReady, s.named = v.publishes, true, true
	s.mask, s.todo = v.masks, v.masks
	s.dom = v.masks[0] | v.masks[1] | v.masks[2]
	for l := range laneCount {
		if v.publishes[l] > 0 {
			s.cand |= 1 << l // a new reader takes every lane in hand
		}
		s.at[l] = P1
	}
	v.unborn(&s)
	s.at[signaller] = P1
	for i := range s.task {
		s.task[i].at = app
		switch {
		case v.roles[i] == keeper:
			s.task[i].at = v.setBegins()
		case v.roles[i] == undertaker:
			s.task[i].at = U1
		case v.roles[i] == heir:
			s.task[i].at = K1
		case v.roles[i] == changer:
			s.task[i].at = A1
			if v.bug == listBeforeFlag {
				s.task[i].at = A2
			}
		case v.roles[i].gets() && i == v.list(i):
			s.task[i] = task{at: N1} // it arms the queues, one after the other
			if v.apart {
				s.task[i].queue = uint8(i)
			}
		}
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

// takeLatch ends a wait for a signal.
func (s *bellState) takeLatch() {
	s.latch = false
	s.owes--
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
		if v.roles[i] == absent || t.at == gone || !s.heirReady && v.roles[i] != heir {
			continue
		}
		by := label{uint8(10 + i), t.at}
		if t.asleep && v.roles[i] == keeper {
			continue
		}
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
		if l == 0 && v.passes {
			n := *s
			v.passOn(s, &n)
			out(&n, label{0, L0})
		}
		if s.at[l] == P1 && s.left[l] == 0 || l == 0 && s.dead {
			continue
		}
		n := *s
		v.produce(s, &n, l)
		out(&n, label{uint8(l), s.at[l]})
	}
}
