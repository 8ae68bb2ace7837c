package model

// setsAndChannelsMutants belong to the variants in setsAndChannels.
var setsAndChannelsMutants = []mutant{
	{bug: listBeforeFlag, base: "e1", text: "add: on the list before the queue's flag"},
	{bug: addWakesNobody, base: "e1", text: "add does not wake the set's sleeper"},
	{bug: leafBeforeSummary, base: "b3", text: "reader takes the bits before the summary"},
	{bug: summaryFirst, base: "b3", text: "producer sets the summary before the bit"},
	{bug: summarySkips, base: "b4", text: "bit already set: producer skips the summary"},
	{bug: latchUnseen, base: "o", text: "the set's look overlooks the latch"},
	{bug: signalKept, base: "o", text: "the set returns a queue and leaves its signal"},
	{bug: signalUnclaimed, base: "o1", text: "the set returns a signal that a read took"},
	{bug: signalUnclaimed, base: "o2", text: "the set returns a signal that another took"},
	{bug: signalQueueOnly, base: "o", text: "a signal rings the queue's own bell only"},
	{bug: noticeQueueOnly, base: "q", text: "a death notice wakes the queue's own sleepers only"},
	{bug: noticeListsOnly, base: "q", text: "a death notice lists the queue and wakes nobody"},
	{bug: noticeWakesFirst, base: "q", text: "a death notice wakes before it lists the queue"},
	{bug: noticeUnmarked, base: "q", text: "a death notice does not mark the lane"},
	{bug: noticeQueueOnly, base: "q2", text: "a death notice does not reach the channel"},
	{bug: noticeUnmarked, base: "q2", text: "a death notice does not mark the lane, channel"},

	{bug: unparkArmed, base: "d", text: "drain un-parks while a channel is armed"},
	{bug: judgeByHead, base: "d1", text: "event judged against head"},
	{bug: noLock, base: "d8", text: "two getters judge without q.mu"},
	{bug: rearmDrops, base: "d4", text: "re-arm forgets the due event"},
	{bug: rearmDrops, base: "d6", text: "re-arm forgets the due event, one getter"},
	{bug: judgeByTail, base: "d5", text: "solicited index beyond the tail: not due"},
	{bug: wakeOneDomain, base: "d2", text: "wake one getter only"},
	{bug: eachDisarmsDomain, base: "d2", text: "each getter disarms the domain when it leaves"},
	{bug: setsOnly, base: "p1", text: "what a set takes is not handed to the channel"},
	{bug: domainLookSharedOnly, base: "p1", text: "domain's second look: shared bits only"},
	{bug: unparkArmed, base: "p2", text: "a direct read un-parks while a channel is armed"},
	{bug: noBarrierN1, base: "p2", plain: true, text: "no barrier in N1"},
	{bug: noBarrierS2, base: "gx", plain: true, text: "no barrier in S2 beside a threshold"},

	{bug: keeperBlind, base: "v", text: "the keeper does not look again after arming"},
	{bug: faceResetLate, base: "v", text: "set's trywait: reset after the second look"},
	{bug: faceNoLook, base: "v", text: "set's trywait: no second look"},
	{bug: listsSilently, base: "v", text: "the keeper lists and leaves the descriptor alone"},
	{bug: listsSilently, base: "q3", text: "a death notice leaves the descriptor alone"},
	{bug: keeperBlind, base: "w", text: "the same with a channel"},
	{bug: faceNoLook, base: "w", text: "the get that takes the last event does not look again"},
	{bug: faceLooksFirst, base: "w", text: "the get looks again before the reset"},
	{bug: listsSilently, base: "w", text: "the keeper lists and leaves the channel's alone"},
	{bug: edgeOnce, base: "w1", text: "two events, one edge"},
}

func init() { mutants = append(mutants, setsAndChannelsMutants...) }
