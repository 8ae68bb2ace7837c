package model

// reduced are small forms of the variants that only -model.full explores, so that whoever changes
// the bell hears of a loss there at once. The mutants of the large ones fall here, too:
//
//	large      reduced  without
//	b          b6       a second lane of queue 0 beside queue 1
//	h, h2      h3, h4   entries in both queues
//	e          e2       a second entry (e1 has that, without the direct read)
//	d, d1      d8       a second lane
//	d2, d7     d9, d10  entries in both queues; the second getter
//	d3         d11, d5  a second lane that gets nothing solicited
//	d4         d12      the same; d6 has one getter
//	i2         i7       a second lane
//
// Caught by one of several reduced forms only: a domain bit that is set already makes the producer
// return (b6, not one lane in each of two queues); a solicited index beyond the tail is not due
// (d5, which has two solicited entries in one lane).
// Caught by the large one only: waking one getter of two channels (x; x1 and x3 do not see it).
// Mutants whose base has no reduced form (b3, gx, q3, v, w1) fall on the large one, which the
// short forms leave at the first loss.
var reduced = []variant{
	{key: "b6", text: "set {Q0, Q1}, 2 lanes x1 in Q0", size: short,
		bell: &bell{publishes: four(1, 1, 0, 0), queueOf: secondQueue,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{3}}},
	{key: "h3", text: "two sets, {Q0, Q1} and {Q1}, x2 in Q1", size: short,
		bell: &bell{publishes: four(0, 0, 2, 0), queueOf: secondQueue,
			roles: three(setter, setter, absent), masks: [taskCount]uint8{3, 2}}},
	{key: "h4", text: "two sets {Q0, Q1}, x2 in Q0", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0),
			roles: three(setter, setter, absent), masks: [taskCount]uint8{3, 3}}},
	{key: "e2", text: "add/delete/add Q0 to a waiting set, sread, x1", size: short,
		bell: &bell{sift: true, publishes: four(1, 0, 0, 0),
			roles: three(direct, setter, changer), masks: [taskCount]uint8{0, 2}}},
	{key: "d9", text: "two queues on one channel, 2 getters, x1 in Q0", size: short,
		bell: &bell{publishes: four(1, 0, 0, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			roles: three(getter, getter, absent)}},
	{key: "d10", text: "two queues on one channel, 1 getter, x1 each", size: short,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue, channel: 3, mode: forAny,
			roles: three(getter, absent, absent)}},
	{key: "d11", text: "channel solicited, 2 getters, 1 lane x2, the last", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), channel: 1, mode: forSolicited,
			solicited: [laneCount]uint8{2}, roles: three(getter, getter, absent)}},
	{key: "d12", text: "armed solicited, then any, 2 getters, 1 lane x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), channel: 1, mode: forAny, twice: true,
			solicited: [laneCount]uint8{2}, roles: three(getter, getter, absent)}},
	{key: "i7", text: "trywait + sread on one queue, 1 lane x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), roles: three(poller, direct, absent)}},
}

// reducedMutants deviate as those of the large variants do.
var reducedMutants = []mutant{
	{bug: drungBeforeWake, base: "b6", text: "rung before wake, domain"},
	{bug: domainBitFirst, base: "b6", text: "domain bit before the queue's ready bit"},
	{bug: readyBeforeDomain, base: "b6", text: "reader takes ready bits before the domain bit"},
	{bug: domainBitSkips, base: "b6", text: "domain bit already set: producer returns"},
	{bug: domainBitWhenArmed, base: "b6", text: "domain bit only when the domain is seen armed"},
	{bug: noBarrierS2, base: "b6", plain: true, text: "no barrier in S2"},

	{bug: lateOffList, base: "h3", text: "queue taken off todo after the look"},
	{bug: eachDisarmsDomain, base: "h3", text: "each waiter disarms the domain when it leaves"},
	{bug: domainLookSharedOnly, base: "h3", text: "domain's second look: shared bits only"},
	{bug: domainHandOn, base: "h3", text: "domain bits taken and handed on in two steps"},
	{bug: lateOffList, base: "h4", text: "queue taken off todo after the look"},
	{bug: eachDisarmsDomain, base: "h4", text: "each waiter disarms the domain when it leaves"},
	{bug: domainLookSharedOnly, base: "h4", text: "domain's second look: shared bits only"},
	{bug: domainHandOn, base: "h4", text: "domain bits taken and handed on in two steps"},
	{bug: sharedList, base: "h4", text: "two goroutines wait on the same set"},

	{bug: listBeforeFlag, base: "e2", text: "add: on the list before the queue's flag"},
	{bug: addWakesNobody, base: "e2", text: "add does not wake the set's sleeper"},

	{bug: unparkArmed, base: "d8", text: "drain un-parks while a channel is armed"},
	{bug: judgeByHead, base: "d8", text: "event judged against head"},
	{bug: wakeOneDomain, base: "d9", text: "wake one getter only"},
	{bug: eachDisarmsDomain, base: "d9", text: "each getter disarms the domain when it leaves"},
	{bug: setsOnly, base: "d10", text: "what is taken is not handed to the channel"},
	{bug: noBarrierN1, base: "d10", plain: true, text: "no barrier in N1"},
	{bug: unparkArmed, base: "d11", text: "drain un-parks while armed for solicited"},
	{bug: judgeByHead, base: "d11", text: "solicited event judged against head"},
	{bug: rearmDrops, base: "d12", text: "re-arm forgets the due event"},
	{bug: unparkArmed, base: "d12", text: "drain un-parks between the two armings"},
	{bug: judgeByHead, base: "d12", text: "event of the second arming judged against head"},

	{bug: resetAfterArm, base: "i7", text: "trywait: reset between arming and second look"},
	{bug: disarmTakesFD, base: "i7", text: "sread's disarming takes the descriptor's bit along"},
	{bug: armForgetsFD, base: "i7", text: "sread's arming drops the descriptor's bit"},
	{bug: sameSeq, base: "i7", text: "an arming on top of another keeps its number"},
}

func init() {
	variants = append(variants, reduced...)
	for _, m := range reducedMutants {
		m.size = short
		mutants = append(mutants, m)
	}
}
