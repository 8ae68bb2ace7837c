package model

// The bell's protocol, explored state by state. Its steps carry the names of package wake's (P:
// producer, R: read, S: wait set, T: trywait), so the two can be read side by side.
//
// Facts of the model: a producer or signaller may stop for ever after any step; readers may leave
// at every return; armings and epochs are not capped; only finished publishes count as lost. With
// a plain publish each producer has a store buffer that drains in order, at any moment, and the
// reader's barrier empties the buffers one producer after the other.
//
// A reader's process may die at any step, also while it takes over, and another takes over, any
// number of times, with a domain of its own that the producers find by its generation.
//
// Not in the model: parking or draining several lanes is one step, and so is taking bits together
// with merging them under the lock; loads are not reordered (the barrier orders them, too); wrap of
// epoch and sequence, which wrap_test.go explores with its bounds, and that of generations;
// take-over of the reader while a producer's death is noticed; descriptors of several channels; a
// producer that has no descriptor to write to, or that cannot reach a domain that exists.
//
// What is explored, how many states that is, and which deviations are caught, stands in
// testdata/guards_models.md. Where to find it: take-over of a lane s, of a reader z, of both s5 to
// s7; bell generation z1, z2 and keepsBell; death notices q; descriptors and keeper i, v, w; attach
// while arming t, ga, gj; set with channel and direct read p, u5; threshold with a set gx, gy, with
// a channel gl, with a descriptor gm; latch with a set o; threshold, latch and a set whose user
// reads in threshold_test.go; summary word b3 to b5, u to u3, with descriptors v4, v5, w4, w5;
// frames in frames_test.go; lanes without room in room_test.go; readers of other users
// that follow one another in follow_test.go; store buffers in every variant, as "reader
// pays".

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
	counter          // waits once for want entries of queue 0
	taker            // reads of queue 0 that do not block
	looker           // looks at queue 0 as a wait set does, without waiting
	marker           // takes marks of queue 0 as a channel does
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
	count // wait for many
	hints // take marks and go
)

// Bits of the queue's armed word.
const (
	armDirect = 1 << iota
	armFD
	armThr // the wake indices gate it
)

// What a channel is armed for.
const (
	forNone = iota
	forSolicited
	forAny
)

// bell is one variant of the protocol: its size, its roles and at most one bug.
type bell struct {
	publishes entries // the last one is the number of signals
	queueOf   [laneCount]uint8
	roles     tasks
	masks     sets  // queues of a setter
	plain     bool  // P1 is a plain store; the reader that parks runs the barrier
	lazy      bool  // no barrier if the lanes in hand were parked already
	keep      bool  // R2 never un-parks, as while a completion channel is armed
	channel   uint8 // queues on the channel
	apart     bool  // getters have a channel each: task i that of queue i
	mode      uint8 // what its users arm
	twice     bool  // they arm for solicited entries before
	solicited marks // bit k: publish k is solicited
	summary   bool  // the domain's bits have a summary
	edges     bool  // the user's epoll is edge-triggered
	sift      bool  // R2 takes parked lanes that are empty off again
	rests     bool  // R2 may leave parked what it finds there, as the first look after a parking
	passes    bool  // producer 0 may die anywhere, and another has its lane
	mixed     bool  // only those who take lane 0 over publish plainly
	attaches  uint8 // lanes that come while the reader is at work
	paidOnly  bool  // explored with the reader paying only
	numbers   uint8 // values of an arming's number, see wrap_test.go; 0: each has one of its own
	epochs    uint8 // and of the epoch then
	want      uint8 // entries that a counter waits for, see threshold_test.go
	slots     uint8 // of each lane then
	reads     bool  // a counter reads in the end, and may end at any time
	coarse    bool  // some steps are one, see threshold_test.go
	capacity  uint8 // of lane 0, see room_test.go; 0 is enough
	asks      asks  // then: what its operations publish, each at once
	wipes     bool  // and a stranger wipes the marks
	deviant
}

type (
	entries [laneCount + 1]uint8
	tasks   [taskCount]role
	sets    [taskCount]uint8
	marks   [laneCount]uint8
)

var secondQueue = [laneCount]uint8{0, 0, 1}

// with makes a variant of one of its own.
func (v bell) with(plain bool) explored {
	v.plain = plain
	return form("", &v).explored
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
	moved  uint8 // how often the epoch has, if it has few values
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

	seq uint8                // the number of an arming stays when the reader disarms
	age [laneCount + 1]uint8 // armings since P4

	room
	sum
}

func (v *bell) start() (s bellState) {
	s.left, s.heirReady, s.named = v.publishes, true, true
	s.rung = min(1, v.numbers) // the first of all numbers
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
		case v.roles[i] == counter:
			s.task[i] = task{at: R1, call: count}
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

func (v *bell) names() []string {
	return tenOfEach("app", "producer", "reader", "buffer", "stranger")
}

func (v *bell) same(n *bellState) {
	if v.numbers > 0 {
		return
	}
	relabel(&n.armed, &n.rung, &n.w[0], &n.w[1], &n.w[2], &n.w[3])
	relabel(&n.darmed, &n.drung, &n.dw[0], &n.dw[1], &n.dw[2], &n.dw[3])
}

func (v *bell) next(s *bellState, x *search[bellState]) {
	for i := range s.task {
		t := &s.task[i]
		if v.roles[i] == absent || t.at == gone || !s.heirReady && v.roles[i] != heir {
			continue
		}
		x.by(uint8(10+i), t.at)
		switch {
		case !t.asleep:
			v.act(s, i, x)
		case v.roles[i] != keeper && (v.roles[i] != counter || v.reads):
			x.does(s, uint8(10+i), expire, true, func(n *bellState) { n.task[i].asleep = false })
		}
	}
	for l := range s.at {
		if s.buffered[l] > 0 {
			x.by(uint8(20+l), visible)
			n := x.fork(s)
			n.unread[l]++
			n.buffered[l]--
			x.emit(n)
		}
		x.does(s, 0, L0, l == 0 && v.passes, func(n *bellState) { v.passOn(s, n) })
		if s.at[l] == P1 && (s.left[l] == 0 || v.full(s, l)) || l == 0 && (s.dead || v.waits(s)) {
			continue
		}
		x.does(s, uint8(l), s.at[l], true, func(n *bellState) { v.produce(s, n, l) })
	}
	x.does(s, 30, wipe, v.wipes && s.ready != 0, func(n *bellState) { n.wipe() })
}

// step is a point of the protocol. The names are those of the protocol's description and of the
// code; a letter behind the number is a part of that step that other processes can tell apart.
type step uint8

const (
	app     step = iota // the application runs; it may call again or leave for good
	gone                // left
	expire              // deadline
	visible             // tail becomes visible
	wipe                // wipes the marks

	W1  // look for room, unless P1 does
	W2  // refused: load parked
	W3  // anything in the lane?
	W4f // load head
	W4  // wait

	L0  // a writer dies, and another one has its lane
	L1  // the lane of a writer that comes gets its name
	L2  // the successor says who pays for order
	P1  // store tail
	P1t // the same, of a solicited entry: P1 was the store of its index
	P2  // load parked; 0: done
	P2f // a parked lane was seen and P1 was a plain store: full fence
	P3  // set the lane in ready, unless it is set
	P4  // load armed once
	P5i // threshold: load the wake index, after armed
	P5  // armed and not rung for this arming yet?
	P5e // epoch++
	P5w // futex wake all
	P5d // write the eventfd
	P5r // rung = seq
	P6  // set the queue in the domain's ready word, unless it is set
	P6s // set the word in the domain's summary, unless it is set
	P7  // load the domain's armed
	P7c // not rung for this arming yet?
	P7e // domain epoch++
	P7w // futex wake all
	P7r // domain rung = seq

	R1  // lock; swap ready into cand
	R1h // mutant: hand the bits on in a step of their own
	R2  // un-park what is in cand
	R2e // a counted lane got hot without a mark: epoch++
	R2w // futex wake all
	R3  // drain
	R4  // park cand
	R4b // barrier: every producer's store buffer drains, one after the other
	R4t // read the tails of cand again; consume the latch
	R4l // a counter: take the latch
	R5  // load epoch
	R5i // threshold: store the lanes' wake indices
	R6  // arm with a new sequence number
	R7  // second look
	R8  // futex wait
	R9  // disarm

	T4 // trywait: reset the eventfd
	T8 // the user's epoll_wait

	N1  // arm a channel for a queue: lock; swap ready into cand
	N1p // park cand
	N1b // barrier
	N1t // read the tails of cand again
	N2  // the event of the arming before is due: it waits for a getter
	N3  // arm
	N4  // bases
	N5e // an event of N2: domain epoch++
	N5w // futex wake all
	N6  // unlock

	C1s // take the domain's summary
	C1  // take the domain's bits, hand them on
	C2  // next queue off the list, or an event that waits
	C2l // lock; swap ready into cand
	C2j // judge, disarm, unlock
	C2d // mutant: disarm in a step of its own
	C4  // return the event

	F1  // the channel's descriptor: is anything left?
	F2  // reset it
	F3s // take the domain's summary
	F3  // look again: set it, or leave it to whoever lists something
	F4  // a set's descriptor: reset it
	F5  // second look, lower it
	F8  // the user's epoll_wait

	A1  // add: the queue's flag
	A2  // mask and list
	A2e // domain epoch++
	A2w // futex wake all
	A3  // delete: mask and list
	A4  // the queue's flag
	U1  // a producer dies; its notice marks the lane
	U2e // epoch++
	U2w // futex wake all, write the eventfd
	U3  // the queue goes on every list
	U3e // domain epoch++
	U3w // futex wake all

	K1 // another process takes the queue over: its words, all lanes in hand
	K2 // barrier: the predecessor may have parked a lane and died before it paid
	K3 // it names its domain's bell
	K4 // the queue's flag
	K5 // mask and list

	S1s // take the domain's summary
	S1  // take the domain's bits, hand them to every set
	S1h // mutant: hand them on in a step of their own
	S2  // next queue off the list
	S2l // lock; swap ready into cand
	S2h // mutant: hand the bits on in a step of their own
	S2p // park cand
	S2b // barrier
	S2t // read the tails of cand again; unlock
	S2r // a queue that is not empty goes back on the list
	S3  // load the domain's epoch
	S4  // arm the domain with a new sequence number
	S5  // second look
	S6  // futex wait
	S7  // disarm the domain when the last waiter leaves
	S8  // return the ready queues
)

// judge never needs a flag for "stopped for ever": a producer that stops is one that is not
// scheduled again, so every state in which all of the reader's process sleeps is final for the
// steps that are still missing. A store buffer, in contrast, always drains.
func (v *bell) judge(s *bellState) verdict {
	if s.owes > 200 || s.owed[0] > 200 || s.owed[1] > 200 || s.owed[2] > 200 {
		return twice
	}
	for l := range laneCount {
		if s.buffered[l] > 0 {
			return moving
		}
	}
	bad, sleeper := false, false
	unread := v.finishedUnread(s)
	signaled := s.latch && s.left[signaller] == 0 && s.at[signaller] == P1
	for i, r := range v.roles {
		t := &s.task[i]
		if r == absent || t.at == gone || t.at == K1 {
			continue
		}
		if !v.blocked(s, t) {
			return moving
		}
		sleeper = sleeper || r != keeper
		switch r {
		case direct, poller:
			bad = bad || unread&1 != 0 && !v.hinted(s) || signaled || v.stuck(s)
		case counter:
			bad = bad || v.enough(s) || signaled
		case setter, setPoller:
			bad = bad || unread&s.mask[i] != 0 || signaled && s.mask[i]&1 != 0
		case getter, eventPoller:
			bad = bad || v.eventMissing(s, i)
		}
	}
	switch {
	case bad && v.halfWay(s):
		return muted
	case bad:
		return lost
	case sleeper:
		return resting
	}
	return over
}

func (v *bell) blocked(s *bellState, t *task) bool {
	readable := s.face
	if v.edges {
		readable = s.edge
	}
	return t.asleep || t.at == T8 && !s.eventfd || t.at == F8 && !readable
}

// running tells whether producer l is inside a publish, or a signaller inside a signal.
func (s *bellState) running(l int) bool { return s.at[l] != P1 && (l != 0 || !s.dead) }

func (v *bell) halfWay(s *bellState) bool {
	for l := range s.at {
		if s.running(l) {
			return true
		}
	}
	return false
}

// finished is the lane's tail without an entry whose publish is not finished.
func (v *bell) finished(s *bellState, l int) uint8 {
	t := v.tail(s, l)
	if s.begun>>l&1 != 0 { // nothing of its own is published yet
		if l == 0 && s.cutOff {
			t--
		}
	} else if s.running(l) && s.at[l] != P1t {
		t -= v.unfinished(s) // the buffers are empty here
	}
	return t
}

func (v *bell) tail(s *bellState, l int) uint8 {
	return v.publishes[l] - s.left[l] - s.buffered[l]
}

func (v *bell) head(s *bellState, l int) uint8 { return v.tail(s, l) - s.unread[l] }

// finishedUnread returns the queues with entries whose publishes are finished, as bits.
func (v *bell) finishedUnread(s *bellState) (queues uint8) {
	for l := range laneCount {
		if v.finished(s, l) > v.head(s, l) {
			queues |= 1 << v.queueOf[l]
		}
	}
	return queues
}

// eventMissing: with all getters asleep no event may wait, no arming may be gone without its event,
// and while one stands its user has read what was there at its end, and is owed an event for what
// came since, read or not.
func (v *bell) eventMissing(s *bellState, i int) bool {
	mine := func(q uint8) bool { return !v.apart || int(q) == i }
	for q := range uint8(3) {
		if !mine(q) {
			continue
		}
		if s.pending[q] > 0 || s.owed[q] != min(1, s.notify[q]) {
			return true
		}
	}
	for l := range laneCount {
		if !mine(v.queueOf[l]) {
			continue
		}
		from := min(v.head(s, l), s.since[l])
		switch s.notify[v.queueOf[l]] {
		case forAny:
			if v.finished(s, l) > from {
				return true
			}
		case forSolicited:
			if v.lastSolicited(s, l) > from {
				return true
			}
		}
	}
	return false
}

// lastSolicited returns the index after the last entry that is solicited and finished.
func (v *bell) lastSolicited(s *bellState, l int) (last uint8) {
	for k := range v.finished(s, l) {
		if v.solicited[l]>>k&1 != 0 {
			last = k + 1
		}
	}
	return last
}
