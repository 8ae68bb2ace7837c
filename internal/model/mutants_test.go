package model

// mutant is a deviation that must lose something; which of the two payers it is tried with
// follows from the mutant: one that is about store buffers needs them.
type mutant struct {
	bug   bug
	base  string
	text  string
	plain bool
	size  size // as of a variant
}

var mutants = []mutant{
	{bug: rungBeforeWake, base: "a", text: "rung before wake, direct"},
	{bug: drungBeforeWake, base: "b", text: "rung before wake, domain"},
	{bug: noTailsAgain, base: "a", text: "no second look at the tail after parking"},
	{bug: producerDisarms, base: "a", text: "producer disarms after its wake"},
	{bug: noSecondLook, base: "a", text: "no second look after arming"},
	{bug: lookIgnoresLatch, base: "f", text: "second look ignores the latch"},
	{bug: domainBitFirst, base: "b", text: "domain bit before the queue's ready bit"},
	{bug: readyBeforeDomain, base: "b", text: "reader takes ready bits before the domain bit"},
	{bug: domainBitSkips, base: "b", text: "domain bit already set: producer returns"},
	{bug: domainBitWhenArmed, base: "b", text: "domain bit only when the domain is seen armed"},
	{bug: setDoesNotPark, base: "b2", text: "the set's look does not park hot lanes"},
	{bug: edgeList, base: "b2", text: "queue dropped from todo though not empty"},
	{bug: lookSharedOnly, base: "c1", text: "sread's second look: shared bits only"},
	{bug: lookUnlocked, base: "c1", text: "second look outside q.mu, others take in two steps"},
	{bug: noLock, base: "c1", text: "no q.mu between the two waiters"},
	{bug: directBellOnly, base: "c2", text: "direct bell armed: ring only that"},
	{bug: oneRungWord, base: "c2", text: "one rung word gates both bells"},
	{bug: lateOffList, base: "h2", text: "queue taken off todo after the look"},
	{bug: eachDisarmsDomain, base: "h2", text: "each waiter disarms the domain when it leaves"},
	{bug: domainLookSharedOnly, base: "h2", text: "domain's second look: shared bits only"},
	{bug: domainHandOn, base: "h2", text: "domain bits taken and handed on in two steps"},
	{bug: wholeIndex, base: "g", text: "index = seen + all that is missing"},
	{bug: indexFromNow, base: "g", text: "index = the tail of now + share of what was missing"},
	{bug: indexAfterLook, base: "g", text: "indices stored after the second look"},
	{bug: noSecondLook, base: "g", text: "threshold without second look"},
	{bug: readyBitSkips, base: "g4", text: "ready bit already set: producer returns"},
	{bug: indexUnclamped, base: "gf", text: "index beyond what the lane can hold"},
	{bug: fullIgnored, base: "gf", text: "a full lane does not end the wait"},
	{bug: unparksSilently, base: "gs", text: "un-parking counted lanes wakes nobody"},
	{bug: takesIgnored, base: "gs", text: "second look overlooks what another took or un-parked"},

	{bug: rungBeforeWake, base: "i", text: "rung before the write to the eventfd"},
	{bug: noTailsAgain, base: "i", text: "trywait: no look at the tail after parking"},
	{bug: noSecondLook, base: "i", text: "trywait: no second look after arming"},
	{bug: resetAfterLook, base: "i", text: "trywait: reset after the second look"},
	{bug: resetAfterArm, base: "i", text: "trywait: the same, a single user"},
	{bug: lookIgnoresLatch, base: "i5", text: "trywait: second look ignores the latch"},
	{bug: resetAfterArm, base: "i2", text: "trywait: reset between arming and second look"},
	{bug: disarmTakesFD, base: "i2", text: "sread's disarming takes the descriptor's bit along"},
	{bug: armForgetsFD, base: "i2", text: "sread's arming drops the descriptor's bit"},
	{bug: sameSeq, base: "i2", text: "an arming on top of another keeps its number"},

	{bug: sharedList, base: "h2", text: "two goroutines wait on the same set"},
	{bug: eachDisarms, base: "j", text: "each direct reader disarms on leaving"},
	{bug: sameSeq, base: "j", text: "second direct reader arms with the same number"},
	{bug: wakeOne, base: "j", text: "wake one of two direct readers"},
	{bug: noLock, base: "j", text: "no q.mu between two direct readers"},

	{bug: noBarrier, base: "a", plain: true, text: "plain publish and nobody pays"},
	{bug: noBarrier, base: "b2", plain: true, text: "plain publish and nobody pays, set"},
	{bug: noBarrierR4, base: "a", plain: true, text: "no barrier in R4"},
	{bug: noBarrierR4, base: "c1", plain: true, text: "no barrier in R4, the set has one"},
	{bug: noBarrierR4, base: "f", plain: true, text: "no barrier in R4, with a latch"},
	{bug: noBarrierR4, base: "i", plain: true, text: "no barrier in trywait's R4"},
	{bug: noBarrierR4, base: "j", plain: true, text: "no barrier in R4 of two readers"},
	{bug: noBarrierR4, base: "g", plain: true, text: "no barrier in a threshold's R4"},
	{bug: noBarrierS2, base: "b", plain: true, text: "no barrier in S2"},
	{bug: noBarrierS2, base: "c1", plain: true, text: "no barrier in S2, the direct read has one"},
	// A reader that always runs the barrier also makes up for a producer's missing fence. The
	// fence is needed as soon as the reader is spared a barrier on lanes that it finds parked, or
	// drains lanes that stay parked.
	{bug: noFence, base: "l1", plain: true, text: "no fence P2', barrier only if a lane was hot"},
	{bug: noFence, base: "l2", plain: true, text: "no fence P2', the same with a set"},
	{bug: noFence, base: "g", plain: true, text: "no fence P2', threshold"},
	{bug: noFence, base: "n", plain: true, text: "no fence P2', lanes are drained while parked"},
}

// notRequired lose nothing in the sizes explored. The complete form shows that; it asserts
// nothing about them, so that a larger variant may find a loss.
var notRequired = []mutant{
	{bug: noFence, base: "a", plain: true, text: "no fence P2', barrier at every parking"},
	{bug: noFence, base: "b2", plain: true, text: "no fence P2', barrier at every parking, set"},
	{bug: noFence, base: "c1", plain: true, text: "no fence P2', barrier at every parking, both"},
	{bug: noFence, base: "l", plain: true, text: "no fence P2', barrier only if hot, one sread"},
	{bug: noFenceWeak, base: "c1", plain: true, text: "no fence P2', and P3 orders nothing"},
	{bug: noReset, base: "i", text: "eventfd never reset (the user only spins)"},
}
