package model

// summaries are the descriptors of sets and channels where the domain's bits have a summary word.
// Whoever resets a channel's descriptor takes summary and bits in two steps, under the domain's
// lock, as a wait does.
var summaries = []variant{
	{key: "v4", text: "set's descriptor, keeper and summary, 1 lane x2", size: smallest,
		bell: &bell{publishes: four(2, 0, 0, 0), sift: true, summary: true,
			roles: three(setPoller, keeper, absent), masks: [taskCount]uint8{1}}},
	{key: "v5", text: "the same, edge-triggered, Q0 and Q1, x1 each", size: complete,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue, edges: true, sift: true,
			summary: true, roles: three(setPoller, keeper, absent), masks: [taskCount]uint8{3}}},
	{key: "w4", text: "channel's descriptor, keeper and summary, x2", size: short,
		bell: &bell{publishes: four(2, 0, 0, 0), channel: 1, mode: forAny, summary: true,
			roles: three(eventPoller, keeper, absent)}},
	{key: "w5", text: "the same, edge-triggered", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), channel: 1, mode: forAny, edges: true,
			summary: true, roles: three(eventPoller, keeper, absent)}},
}

var summariesMutants = []mutant{
	{bug: leafBeforeSummary, base: "v4", text: "set with a descriptor: bits before the summary"},
	{bug: summaryFirst, base: "v4", text: "the summary before the bit, a set's descriptor"},
	{bug: keeperBlind, base: "v4", text: "keeper looks at the summary only before it sleeps"},
	{bug: faceNoLook, base: "v4", text: "no second look at summary and bits after the reset"},
	{bug: leafBeforeSummary, base: "w4", size: short,
		text: "channel with a descriptor: bits before the summary"},
	{bug: summaryFirst, base: "w4", size: short,
		text: "the summary before the bit, a channel's descriptor"},
	{bug: faceLooksFirst, base: "w4", size: short,
		text: "the look at summary and bits before the reset"},
}

func init() {
	variants = append(variants, summaries...)
	mutants = append(mutants, summariesMutants...)
}
