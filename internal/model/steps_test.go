package model

// step is a point of the protocol. The names are those of the protocol's description and of the
// code; a letter behind the number is a part of that step that other processes can tell apart.
type step uint8

const (
	app     step = iota // the application runs; it may call again or leave for good
	gone                // left
	expire              // deadline
	visible             // tail becomes visible

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

// bug is the one deviation of a mutant.
type bug uint8

const (
	_ bug = iota // none

	// Producer.
	rungBeforeWake
	drungBeforeWake
	producerDisarms
	domainBitFirst
	domainBitSkips
	domainBitWhenArmed
	directBellOnly
	oneRungWord
	readyBitSkips
	noFence     // P2' missing; P3 drains the buffer when it stores, as a locked instruction does
	noFenceWeak // P2' missing and P3 orders nothing

	// Direct reader.
	noTailsAgain
	noBarrier // neither side pays
	noBarrierR4
	lookIgnoresLatch
	lookSharedOnly
	lookUnlocked
	noLock
	eachDisarms
	sameSeq
	wakeOne

	// Descriptor.
	resetAfterArm
	resetAfterLook
	noReset
	noSecondLook
	disarmTakesFD
	armForgetsFD

	// Wait set.
	readyBeforeDomain
	setDoesNotPark
	edgeList
	noBarrierS2
	lateOffList
	eachDisarmsDomain
	domainLookSharedOnly
	domainHandOn
	sharedList
	latchUnseen
	signalKept      // a set returns the queue and leaves the signal
	signalUnclaimed // a set returns the queue for a signal that another waiter took
	leafBeforeSummary
	summaryFirst
	summarySkips
	listBeforeFlag
	addWakesNobody
	noticeQueueOnly
	noticeListsOnly
	noticeWakesFirst
	noticeUnmarked
	signalQueueOnly

	// Completion channel.
	unparkArmed
	judgeByHead
	judgeByTail // a solicited index beyond the tail is not due
	rearmDrops
	wakeOneDomain
	noBarrierN1
	setsOnly  // what is taken from the domain is not handed to the channel
	armedLate // armed before the tails are read again
	ownOnly   // what one channel takes from the domain is not handed to the others

	// Take-over.
	heirTakesMarks // it takes the marked lanes in hand, not all
	heirParks      // no barrier
	heirNamesLate  // its bell is named after the queue is on the list
	heirListsNone  // the queue is not on the list from the start
	heirCountsAnew // its armings have numbers of the predecessor's
	keepsBell      // the producer rings the bell that it holds, whoever reads

	// Lanes that come and that pass to another writer.
	silentSuccessor // it does not ring when it takes the lane over
	silentBirth     // nor does the writer of a new lane
	markedUnnamed   // a new lane is marked before it can be found
	orderUnseen     // the reader goes on as if the first writer's order held
	orderUnpaid     // it sees the order, and does not pay for what was published before
	orderUntold     // it pays, and does not tell those who rely on marks
	orderLate       // the successor says its order after it rang
	heirMaps        // the heir looks at lanes that it knows by their marks only

	// Descriptors of sets and channels.
	keeperBlind
	listsSilently
	faceResetLate
	faceNoLook
	faceLooksFirst
	edgeOnce

	// Threshold.
	wholeIndex
	indexFromNow // tails are read anew for the indices, what is missing is not
	indexAfterLook
	indexUnclamped
	unparksSilently
	takesIgnored
	fullIgnored
	thresholdGatesFD // an arming for many keeps its mark beside that of the descriptor
	trywaitKeepsThr  // and so does an arming of the descriptor on top of it
	heirIndices      // the wake indices of the one before are left standing
)
