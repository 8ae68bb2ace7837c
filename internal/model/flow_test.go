package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Messages between the endpoints of three processes, explored: what is sent at once and what by its
// header alone, what is stored, which receive gets what, and what is cancelled. Each process runs a
// program, and makes progress only while it is in one of its calls. The programs are legal; most
// of them hang a design that is more simple than this one. A lane has two slots, a control ring
// two, and a pool two chunks.
//
//	M1 send: at once if the grant and the pool allow it, else the header in the same place
//	M2 examine: match, or store; never wait
//	M3 match: what came at once ends here, and its credit and chunk go back; else clear is owed
//	M4 clear (CTS) in the control ring, when there is room    M5 data, through the lane's own chunk
//	M6 place data, then the word of its end    M7 the sender reads the word
//	M8 cancel a send: a record in the control ring; whoever examines decides
//
// A message is one record, and data one segment; transfers_test.go has several of them, and deaths.
// Not in the model: sleeping (ends, feeders), multi-receive, counters, fences, truncation.

type flowModel struct {
	sends    []flowSend
	receives []flowReceive
	// A call is a verb and the number of a send or receive: s send, r receive, S R wait until it has
	// ended, c cancel a receive, C a send, p peek a message, t take what was peeked with the last
	// receive, d discard it. At a stop it calls in for ever, at a slash until it likes to leave.
	programs [3]string
	anyOrder uint8 // so many receives that B posts first are posted in any order
	room     uint8 // of each queue of receives; 0 is enough
	raises   bool  // a receiver raises grants whenever it likes
	all      bool  // all send to all, so that each has a grant of one
	deviant
}

type flowSend struct {
	from, to, tag uint8
	kind          byte // inline, k a chunk, long
}

type flowReceive struct{ at, from, tag uint8 }

// The processes, and any source or tag.
const (
	flowA uint8 = iota
	flowB
	flowC
	flowAny
)

// Deviations.
const (
	flowStorage     = "a message stays in its slot until it is matched"
	flowNoGrants    = "whoever has a slot sends at once"
	flowStops       = "a lane stops while the store is full"
	flowOverRaises  = "grants are raised beyond the budget"
	flowEarlyCredit = "a grant advances when a message is examined"
	flowNoHeaders   = "who has no grant waits in place of sending the header"
	flowAcksInLane  = "a message is acknowledged through the lane"
	flowNoReserve   = "chunks for matched data are taken from those for unmatched messages"
	flowPoolReserve = "a pool has one reserved chunk for matched data, not each lane"
	flowCloseEarly  = "close does not wait for sends by header"
	flowDropsClear  = "a clear that does not fit is dropped"
	flowClearWaits  = "examining a header waits for room in the control ring"
	flowQueueStalls = "a receive reserves no completion, and a lane stalls for room in the queue"
	flowQueueStores = "without room in the queue a message is stored, and matched at a read"
	flowControl     = "headers go through the control ring"
	flowWildFirst   = "wildcards are tried by themselves, without a post number"
	flowNewest      = "the store is searched from its end"
	flowCancelsAll  = "the cancel of a matched receive succeeds"
	flowEndsAlone   = "a sender ends a published send by itself"
	flowForgets     = "a cancel that overtakes its header is forgotten"
	flowPeeksStore  = "a peek looks at the store only"
	flowNoLeast     = "a sender has no grant at first"
	flowNoQuota     = "a peer may hold all chunks"
	flowAllChunks   = "no chunk of the pool is kept, as each lane has its own for matched data"
	flowUnmarked    = "a message that was peeked to be taken is matched by another receive"
)

// fault is what must not happen in a model of messages.
type fault uint8

const (
	fine           fault = iota
	messageOrder         // a later message of the same sender is matched first
	receiveOrder         // a receive that was posted later is matched first
	endedTwice           // an operation ends twice
	overBudget           // more is stored than was promised
	unseenByPeek         // a peek misses a message that was sent before
	lateData             // data is placed after the receive ended
	takenByOther         // a message that was peeked to be taken is matched by another
	readByOther          // what somebody may still read is free, or written
	ringFull             // a return finds no room
	unmapped             // memory is unmapped that somebody reads
	notThere             // a send succeeds, and the receiver does not have it
	thereAfterAll        // a send is cancelled, and delivered
	otherOperation       // a record meant another operation
	senderGone           // a header is matched when its sender is gone
	wrongLength          // a receive fails with a wrong length
)

const (
	flowSlots  = 2 // of a lane, and of a control ring
	flowChunks = 2
	flowBudget = 3 // of an endpoint
)

// pair is a ring with two places; no record is 0.
type pair [flowSlots]uint8

func (r *pair) push(v uint8) bool {
	i := slices.Index(r[:], 0)
	if i >= 0 {
		r[i] = v
	}
	return i >= 0
}

func (r *pair) pop() uint8 {
	v := r[0]
	r[0], r[1] = r[1], 0
	return v
}

// list has numbers in the order in which they came, one more than they are.
type list [8]uint8

func (l *list) add(k uint8) { l[slices.Index(l[:], 0)] = k + 1 }

func (l *list) remove(k uint8) {
	if i := slices.Index(l[:], k+1); i >= 0 {
		copy(l[i:], l[i+1:])
		l[len(l)-1] = 0
	}
}

// What a record is, above the number of its send.
const (
	flowNow    = (1 + iota) << 4 // the message
	flowHeader                   // its header alone
	flowData
	flowAck // only in a mutant
	flowClear
	flowCancel
	flowKind = 7 << 4
)

// States of a send, of its message at the receiver, and of a receive.
const (
	published = 1 + iota
	opened    // by header
	cleared
	flying
	ended
)

const (
	stored = 1 + iota
	matched
	delivered
	discarded
	withdrawn // by a cancel
	forewarned
	peeked
)

const (
	posted = 1 + iota
	taken
	received
	canceled
)

type flowState struct {
	call          [3]uint8
	lane, control [3][3]pair // from, to
	send, message [8]uint8
	by, word      [8]uint8 // its receive, one more; how it ended, for the sender to read
	header        [8]bool
	clear, cancel [8]bool // owed by the receiver, by the sender
	receive       [8]uint8
	posted, store list
	sent, granted [3][3]uint8
	matched       [3][3]uint8
	out, bounce   [3][3]uint8 // chunks
	fault         fault
}

const (
	flowSends    step = iota // M1 send
	flowReceives             // post a receive
	flowSent                 // its send has ended
	flowReceived             // its receive has ended
	flowUnpost               // cancel a receive
	flowUnsend               // M8 cancel a send
	flowPeek                 // peek
	flowTake                 // take what was peeked
	flowDiscard              // discard it
	flowLeaves               // stops calling in
	flowExamines             // M2 examine a lane
	flowControls             // examine a control ring
	flowClears               // M4 clear
	flowTellsOff             // M8 the record of a cancel
	flowSegment              // M5 data
	flowWord                 // M7 read the word
	flowRaises               // raise a grant
)

const flowVerbs = "srSRcCptd/"

func (m flowModel) names() []string { return []string{"flowSends", "A", "B", "C"} }

func (m flowModel) start() (s flowState) {
	for from := range s.granted {
		for to := range s.granted {
			switch g := &s.granted[from][to]; {
			case m.bug == flowNoGrants:
				*g = 100
			case m.bug == flowNoLeast:
			case m.raises && from == to:
			case m.raises || m.all || m.bug != flowStops && (from == to || from == int(flowC)):
				*g = 1
			default:
				*g = 2
			}
		}
	}
	return s
}

// judge: all programs have come to their ends, and nobody went wrong.
func (m flowModel) judge(s *flowState) verdict {
	if s.fault != fine {
		return lost
	}
	for p := range uint8(3) {
		if verb, _ := m.calls(s, p); verb != 0 && verb != '.' {
			return moving
		}
	}
	return resting
}

var (
	flowThree = []flowReceive{{flowB, flowA, 1}, {flowB, flowA, 1}, {flowB, flowA, 1}}
	flowBoth  = []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 2, 'l'},
		{flowB, flowA, 1, 'i'}, {flowB, flowA, 1, 'i'}, {flowB, flowA, 2, 'l'}}
	flowCrowd = []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}, {flowC, flowB, 1, 'i'},
		{flowC, flowB, 1, 'i'}, {flowC, flowB, 2, 'i'}}
	flowCrowded = []flowReceive{{flowB, flowC, 2}, {flowB, flowAny, 1}, {flowB, flowAny, 1},
		{flowB, flowAny, 1}, {flowB, flowAny, 1}}
	flowCrowding = [3]string{"s0 s1 S0 S1 .0", "r0 R0 r1 r2 r3 r4 R1 R2 R3 R4 .0",
		"s2 s3 s4 S2 S3 S4 .0"}
)

var flows = family{
	title: "Messages",
	variants: []variant{
		form("five of tag 1 before the one that is wanted", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'k'},
				{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'k'}, {flowA, flowB, 2, 'i'}},
			receives: []flowReceive{{flowB, flowA, 2}, {flowB, flowA, 1}, {flowB, flowAny, 1},
				{flowB, flowA, 1}, {flowB, flowAny, flowAny}, {flowB, flowA, 1}},
			programs: [3]string{"s0 s1 s2 s3 s4 s5 S0 S1 S2 S3 S4 S5 .0",
				"r0 R0 r1 r2 r3 r4 r5 R1 R2 R3 R4 R5 .0"}}),
		form("both send four before they receive", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'k'}, {flowA, flowB, 1, 'k'},
				{flowA, flowB, 2, 'i'}, {flowB, flowA, 1, 'i'}, {flowB, flowA, 1, 'k'},
				{flowB, flowA, 1, 'k'}, {flowB, flowA, 2, 'i'}},
			receives: []flowReceive{{flowA, flowAny, 2}, {flowA, flowB, 1}, {flowB, flowAny, 2},
				{flowB, flowA, 1}},
			programs: [3]string{"s0 s1 s2 s3 r0 R0 r1 R1 .0", "s4 s5 s6 s7 r2 R2 r3 R3 .0"}}),
		form("to itself, before it receives", flowModel{
			sends: []flowSend{{flowA, flowA, 1, 'i'}, {flowA, flowA, 1, 'k'}, {flowA, flowA, 1, 'k'},
				{flowA, flowA, 1, 'l'}, {flowA, flowA, 2, 'i'}},
			receives: []flowReceive{{flowA, flowA, 2}, {flowA, flowAny, 1}, {flowA, flowA, 1},
				{flowA, flowA, flowAny}, {flowA, flowA, 1}},
			programs: [3]string{
				"s0 s1 s2 s3 s4 r0 R0 r1 r2 r3 r4 R1 R2 R3 R4 S0 S1 S2 S3 S4 .0"}}),
		form("a long one, while others keep chunks", flowModel{
			sends:    []flowSend{{flowA, flowC, 1, 'k'}, {flowA, flowA, 1, 'k'}, {flowA, flowB, 1, 'l'}},
			receives: []flowReceive{{flowB, flowA, 1}, {flowA, flowA, 1}},
			programs: [3]string{"s0 s1 s2 S2 r1 R1 .0", "r0 R0"}}),
		form("a long one, while another stopped in its own", flowModel{
			sends:    []flowSend{{flowA, flowC, 1, 'l'}, {flowA, flowA, 1, 'k'}, {flowA, flowB, 1, 'l'}},
			receives: []flowReceive{{flowC, flowA, 1}, {flowB, flowA, 1}, {flowA, flowA, 1}},
			programs: [3]string{"s0 s1 s2 S2 r2 R2 .0", "r1 R1 .0", "r0 /0"}}),
		form("close after three", flowModel{
			sends:    []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}},
			receives: flowThree,
			programs: [3]string{"s0 s1 s2 S0 S1 S2", "r0 R0 r1 R1 r2 R2 .0"}}),
		form("three long ones of one that stopped", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'l'},
				{flowA, flowB, 2, 'i'}},
			receives: append(slices.Clone(flowThree), flowReceive{flowB, flowA, 2}),
			programs: [3]string{"s0 s1 s2 s3", "r0 r1 r2 r3 R3 .0"}}),
		form("queues of three, both wait for a send", flowModel{room: 3, sends: flowBoth,
			receives: []flowReceive{{flowB, flowA, 1}, {flowB, flowA, 1}, {flowB, flowA, 2},
				{flowA, flowB, 1}, {flowA, flowB, 1}, {flowA, flowB, 2}},
			programs: [3]string{"r3 r4 r5 s0 s1 s2 S2 R3 R4 R5 .0",
				"r0 r1 r2 s3 s4 s5 S5 R0 R1 R2 .0"}}),
		form("two that fill the third", flowModel{sends: flowCrowd, receives: flowCrowded,
			programs: flowCrowding}),
		form("two that fill the third, who raises grants", flowModel{raises: true,
			sends:    flowCrowd[1:],
			receives: flowCrowded[:4],
			programs: [3]string{"s0 S0 .0", "r0 R0 r1 r2 r3 R1 R2 R3 .0",
				"s1 s2 s3 S1 S2 S3 .0"}}),
		form("two that fill the third, a long one open", flowModel{
			sends: []flowSend{{flowA, flowB, 2, 'l'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'},
				{flowC, flowB, 1, 'i'}, {flowC, flowB, 1, 'i'}},
			receives: append([]flowReceive{{flowB, flowA, 2}}, flowCrowded[1:]...),
			programs: [3]string{"s0 s1 s2 S0 S1 S2 .0", "r0 R0 r1 r2 r3 r4 R1 R2 R3 R4 .0",
				"s3 s4 S3 S4 .0"}}),
		form("three long ones each way", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'l'},
				{flowB, flowA, 1, 'l'}, {flowB, flowA, 1, 'l'}, {flowB, flowA, 1, 'l'}},
			receives: append(slices.Clone(flowThree), []flowReceive{{flowA, flowB, 1},
				{flowA, flowB, 1}, {flowA, flowB, 1}}...),
			programs: [3]string{"r3 r4 r5 s0 s1 s2 S0 S1 S2 R3 R4 R5 .0",
				"r0 r1 r2 s3 s4 s5 S3 S4 S5 R0 R1 R2 .0"}}),
		form("three receives in any order", flowModel{anyOrder: 3,
			sends: []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 2, 'i'}, {flowA, flowB, 1, 'i'},
				{flowC, flowB, 1, 'k'}},
			receives: []flowReceive{{flowB, flowA, 1}, {flowB, flowAny, 1}, {flowB, flowA, flowAny}},
			programs: [3]string{"s0 s1 s2 .0", "r0 r1 r2 R1 .0", "s3 .0"}}),
		form("three receives in any order, one by header", flowModel{anyOrder: 3,
			sends: []flowSend{{flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'l'},
				{flowC, flowB, 2, 'i'}},
			receives: []flowReceive{{flowB, flowA, 1}, {flowB, flowAny, flowAny},
				{flowB, flowA, flowAny}},
			programs: [3]string{"s0 s1 s2 S0 .0", "r0 r1 r2 R0 R2 .0", "s3 S3 .0"}}),
		form("a receive is cancelled", flowModel{anyOrder: 2,
			sends:    []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'i'}, {flowA, flowB, 1, 'i'}},
			receives: []flowReceive{{flowB, flowA, 1}, {flowB, flowAny, 1}, {flowB, flowA, flowAny}},
			programs: [3]string{"s0 s1 s2 S0 S1 .0", "r0 r1 c0 r2 R0 R1 R2 .0"}}),
		form("a send is cancelled", flowModel{
			sends:    []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 1, 'i'}},
			receives: flowThree[:1],
			programs: [3]string{"s0 C0 s1 S0 S1 .0", "r0 R0 .0"}}),
		form("a send that nobody wants is cancelled", flowModel{
			sends:    []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowB, 2, 'i'}, {flowA, flowB, 2, 'i'}},
			receives: []flowReceive{{flowB, flowA, 2}, {flowB, flowA, 2}},
			programs: [3]string{"s0 s1 C0 S0 s2 S1 .0", "r0 R0 r1 R1 .0"}}),
		form("a peek after hearsay, and taken", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'k'}, {flowA, flowC, 2, 'i'}, {flowC, flowB, 2, 'i'},
				{flowA, flowB, 1, 'l'}},
			receives: []flowReceive{{flowB, flowC, 2}, {flowC, flowA, 2}, {flowB, flowA, 1},
				{flowB, flowA, 1}},
			programs: [3]string{"s0 s1 S0 s3 S3 .0", "r0 R0 p0 r2 t0 R2 R3 .0",
				"r1 R1 s2 S2 .0"}}),
		form("a peek after hearsay, and discarded", flowModel{
			sends: []flowSend{{flowA, flowB, 1, 'l'}, {flowA, flowC, 2, 'i'}, {flowC, flowB, 2, 'i'},
				{flowA, flowB, 1, 'l'}},
			receives: []flowReceive{{flowB, flowC, 2}, {flowC, flowA, 2}, {flowB, flowA, 1}},
			programs: [3]string{"s0 s1 S0 s3 S3 .0", "r0 R0 p0 r2 d0 R2 .0", "r1 R1 s2 S2 .0"}}),
	},
	mutants: slices.Concat(
		on("five of tag 1 before the one that is wanted", flowStorage, flowNoGrants, flowEarlyCredit,
			flowNoHeaders),
		on("both send four before they receive", flowStorage, flowNoHeaders, flowAcksInLane),
		on("to itself, before it receives", flowStorage),
		on("a long one, while others keep chunks", flowNoReserve),
		on("a long one, while another stopped in its own", flowPoolReserve),
		on("close after three", flowCloseEarly),
		on("three long ones of one that stopped", flowClearWaits),
		on("queues of three, both wait for a send", flowQueueStalls, flowQueueStores),
		on("two that fill the third", flowStops),
		on("two that fill the third, who raises grants", flowOverRaises),
		on("two that fill the third, a long one open", flowStops),
		on("three long ones each way", flowDropsClear),
		on("three receives in any order, one by header", flowControl, flowWildFirst, flowNewest),
		on("a receive is cancelled", flowCancelsAll),
		on("a send is cancelled", flowEndsAlone),
		on("a send that nobody wants is cancelled", flowForgets),
		on("a peek after hearsay, and taken", flowPeeksStore, flowUnmarked)),
	spare: slices.Concat(
		on("five of tag 1 before the one that is wanted", flowNoLeast, flowNoQuota, flowAllChunks),
		on("both send four before they receive", flowNoLeast, flowNoQuota, flowAllChunks),
		on("to itself, before it receives", flowNoLeast, flowNoQuota, flowAllChunks),
		on("a long one, while others keep chunks", flowNoQuota, flowAllChunks),
		on("a long one, while another stopped in its own", flowNoQuota, flowAllChunks),
		on("close after three", flowNoLeast)),
}

// anyFlow is a legal program for each process: what it sends and receives in any order, then a wait
// for each of them in any order. There is a receive for each message, or all receives of a process
// take any. Nothing waits before all is posted, so all of it ends.
func anyFlow(r *rand.Rand, messages int) flowModel {
	m := flowModel{all: true}
	wild := [3]bool{r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(3) == 0}
	var calls, waits [3][]string
	for k := range messages {
		o := flowSend{uint8(r.IntN(3)), uint8(r.IntN(3)), uint8(1 + r.IntN(2)), "ikkl"[r.IntN(4)]}
		m.sends = append(m.sends, o)
		calls[o.from] = append(calls[o.from], fmt.Sprint("s", k))
		waits[o.from] = append(waits[o.from], fmt.Sprint("S", k))
	}
	for i, k := range r.Perm(messages) {
		o := m.sends[k]
		w := flowReceive{o.to, o.from, o.tag}
		if wild[o.to] {
			w.from, w.tag = flowAny, flowAny
		}
		m.receives = append(m.receives, w)
		at := r.IntN(len(calls[o.to]) + 1)
		calls[o.to] = slices.Insert(calls[o.to], at, fmt.Sprint("r", i))
		waits[o.to] = append(waits[o.to], fmt.Sprint("R", i))
	}
	for p, w := range waits {
		r.Shuffle(len(w), func(i, j int) { w[i], w[j] = w[j], w[i] })
		m.programs[p] = strings.Join(append(append(calls[p], w...), ".0"), " ")
	}
	return m
}

// TestAnyProgramEnds: and it is not only the programs of the table that a more simple design hangs.
func TestAnyProgramEnds(t *testing.T) {
	const small = 60
	programs := small
	switch {
	case testing.Short():
		programs = 10
	case *modelFull:
		programs = small + 40
	}
	hang := map[string]int{flowStorage: 0, flowNoHeaders: 0, flowAcksInLane: 0}
	for seed := range programs {
		m := anyFlow(rand.New(rand.NewPCG(uint64(seed%small), 0)), 4+seed/small)
		v := form("", m)
		if o := v.run("", false); o.lost+o.stuck > 0 {
			t.Fatalf("program %d, %+v: %v%s", seed, m, o, v.trace(""))
		}
		for bug := range hang {
			if o := v.run(bug, true); o.cut {
				hang[bug]++
			}
		}
	}
	for bug, n := range hang {
		if n == 0 && !testing.Short() { // few programs are too few
			t.Errorf("%s: all programs end", bug)
		}
	}
	t.Log(hang)
}
