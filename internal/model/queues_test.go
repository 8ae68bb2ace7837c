package model

import (
	"slices"
	"strings"
	"testing"
)

const (
	producerPays = "producer pays"
	readerPays   = "reader pays"
)

// queue is a form of the bell of a queue. It is explored twice: with sequentially consistent
// publishes, and with plain ones that the reader pays for.
type queue struct {
	key, text string
	model     bell
}

var queues = family{title: "Queues", variants: bothPay(queueTable), mutants: queueMutants,
	spare: queueSpare}

func bothPay(queues []queue) (vs []variant) {
	for _, q := range queues {
		if !q.model.paidOnly {
			vs = append(vs, variant{q.key, q.text, producerPays, q.model.with(false)})
		}
		vs = append(vs, variant{q.key, q.text, readerPays, q.model.with(true)})
	}
	return vs
}

// TestPrintsInterleavings keeps the report of a loss working: it is what a failure needs.
func TestPrintsInterleavings(t *testing.T) {
	v := queues.bases(t, mutant{"a", noBarrier})[0]
	run := v.trace(noBarrier)
	t.Logf("plain publish and nobody pays:%s", run)
	for _, want := range []string{"reader 0   R4t read the tails", "visible", "armed:"} {
		if !strings.Contains(run, want) {
			t.Errorf("the run does not show %q", want)
		}
	}
}

// queueTable keeps the letters of the protocol's description; i, j and what follows n are new.
var queueTable = []queue{
	{"a", "sread, 2 lanes x2", bell{publishes: entries{2, 2}, roles: tasks{direct}}},
	{"f", "sread + signal latch, 2 lanes x1",
		bell{publishes: entries{1, 1, 0, 1}, roles: tasks{direct}}},
	{"b", "set {Q0: 2 lanes, Q1: 1 lane} x1",
		bell{publishes: entries{1, 1, 1}, queueOf: secondQueue, roles: tasks{setter},
			masks: sets{3}}},
	{"b2", "set {Q0, Q1}, 1 lane x2 each",
		bell{publishes: entries{2, 0, 2}, queueOf: secondQueue, roles: tasks{setter},
			masks: sets{3}}},
	{"c", "sread Q0 + set {Q0, Q1}, x2 and x1",
		bell{publishes: entries{2, 0, 1}, queueOf: secondQueue, roles: tasks{direct, setter},
			masks: sets{0, 3}}},
	{"c1", "sread + set on one queue, 1 lane x3",
		bell{publishes: entries{3}, roles: tasks{direct, setter}, masks: sets{0, 1}}},
	{"c2", "sread + set on one queue, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{direct, setter}, masks: sets{0, 1}}},
	{"c3", "sread + set on one queue, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{direct, setter}, masks: sets{0, 1}}},
	{"h", "two sets, {Q0, Q1} and {Q1}, 1 lane x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{setter, setter},
			masks: sets{3, 2}}},
	{"h2", "two sets {Q0, Q1}, 1 lane x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{setter, setter},
			masks: sets{3, 3}}},
	{"i", "trywait + epoll on an eventfd, 2 lanes x2",
		bell{publishes: entries{2, 2}, roles: tasks{poller}}},
	{"i2", "trywait + sread on one queue, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{poller, direct}}},
	{"i3", "trywait + sread on one queue, 1 lane x3",
		bell{publishes: entries{3}, roles: tasks{poller, direct}}},
	{"i4", "trywait + sread + set on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{poller, direct, setter}, masks: sets{0, 0, 1}}},
	{"i5", "trywait + signal latch, 2 lanes x1",
		bell{publishes: entries{1, 1, 0, 1}, roles: tasks{poller}}},
	{"i6", "trywait + sread + signal, 1 lane x2",
		bell{publishes: entries{2, 0, 0, 1}, roles: tasks{poller, direct}}},
	{"j", "two sreads on one queue, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{direct, direct}}},
	{"j2", "two sreads on one queue, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{direct, direct}}},
	{"j3", "two sreads and two signals, 1 lane x2",
		bell{publishes: entries{2, 0, 0, 2}, roles: tasks{direct, direct}}},
	{"j4", "three sreads on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{direct, direct, direct}}},
	{"l", "a, barrier only if a lane was hot",
		bell{publishes: entries{2, 2}, roles: tasks{direct}, lazy: true, paidOnly: true}},
	{"l1", "c1, barrier only if a lane was hot",
		bell{publishes: entries{3}, roles: tasks{direct, setter}, masks: sets{0, 1}, lazy: true,
			paidOnly: true}},
	{"l2", "b2, barrier only if a lane was hot",
		bell{publishes: entries{2, 0, 2}, queueOf: secondQueue, roles: tasks{setter},
			masks: sets{3}, lazy: true, paidOnly: true}},
	{"n", "a, R2 never un-parks (as with a channel)",
		bell{publishes: entries{2, 2}, roles: tasks{direct}, keep: true, paidOnly: true}},
	{"y", "a, R2 leaves empty lanes parked",
		bell{publishes: entries{2, 2}, roles: tasks{direct}, sift: true}},
	{"y1", "c1, R2 leaves empty lanes parked",
		bell{publishes: entries{3}, roles: tasks{direct, setter}, masks: sets{0, 1},
			sift: true}},
	{"y2", "j2, R2 leaves empty lanes parked",
		bell{publishes: entries{2, 1}, roles: tasks{direct, direct}, sift: true}},
	{"y3", "l, R2 may leave lanes parked",
		bell{publishes: entries{2, 2}, roles: tasks{direct}, lazy: true, sift: true, rests: true}},
	{"y4", "l1, R2 may leave lanes parked",
		bell{publishes: entries{3}, roles: tasks{direct, setter}, masks: sets{0, 1}, lazy: true,
			sift: true, rests: true}},
	{"y5", "j2, R2 may leave lanes parked",
		bell{publishes: entries{2, 1}, roles: tasks{direct, direct}, lazy: true, sift: true,
			rests: true}},
	{"y6", "i2, R2 may leave lanes parked",
		bell{publishes: entries{1, 1}, roles: tasks{poller, direct}, lazy: true, sift: true,
			rests: true}},
	{"y7", "p2, R2 may leave lanes parked",
		bell{publishes: entries{2}, roles: tasks{direct, getter}, sift: true, lazy: true,
			rests: true, channel: 1, mode: forAny}},
	{"g", "threshold 3, 2 lanes x3",
		bell{publishes: entries{3, 3}, roles: tasks{counter}, want: 3, slots: 9, lazy: true}},
	{"g4", "threshold 5, 2 lanes x4",
		bell{publishes: entries{4, 4}, roles: tasks{counter}, want: 5, slots: 9, lazy: true}},
	{"ga", "threshold 3, lane attaches after arming",
		bell{publishes: entries{3, 3}, roles: tasks{counter},
			want: 3, slots: 9, lazy: true, attaches: 2}},
	{"gf", "threshold 6, lanes of 2 slots",
		bell{publishes: entries{4, 4}, roles: tasks{counter}, want: 6, slots: 2, lazy: true}},
	{"gs", "threshold 3 and another reader, 1 lane x4",
		bell{publishes: entries{4}, roles: tasks{counter, taker}, want: 3, slots: 9, lazy: true}},
	{"gt", "threshold 2 and another reader, 2 lanes x2",
		bell{publishes: entries{2, 2}, roles: tasks{counter, taker}, want: 2, slots: 9, lazy: true}},
	{"gu", "threshold 3 and another reader, x3 and x2",
		bell{publishes: entries{3, 2}, roles: tasks{counter, taker}, want: 3, slots: 9, lazy: true}},
	{"gr", "threshold 2, the other may leave lanes parked",
		bell{publishes: entries{2, 1}, roles: tasks{counter, taker},
			want: 2, slots: 9, lazy: true, rests: true}},
	{"gw", "threshold 4, another reader, lanes of 2 slots",
		bell{publishes: entries{3, 3}, roles: tasks{counter, taker}, want: 4, slots: 2, lazy: true}},

	// The descriptors of sets and channels where the domain's bits have a summary word.
	// Whoever resets a channel's descriptor takes summary and bits in two steps, under the domain's
	// lock, as a wait does.
	{"v4", "set's descriptor, keeper and summary, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{setPoller, keeper}, masks: sets{1}, sift: true,
			summary: true}},
	{"v5", "the same, edge-triggered, Q0 and Q1, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{setPoller, keeper},
			masks: sets{3}, edges: true, sift: true, summary: true}},
	{"w4", "channel's descriptor, keeper and summary, x2",
		bell{publishes: entries{2}, roles: tasks{eventPoller, keeper}, channel: 1, mode: forAny,
			summary: true}},
	{"w5", "the same, edge-triggered",
		bell{publishes: entries{2}, roles: tasks{eventPoller, keeper}, channel: 1, mode: forAny,
			edges: true, summary: true}},

	// What sleeps on the domain, beyond wait sets that are members for good.
	{"e", "add/delete/add Q0 to a waiting set, sread, x2",
		bell{publishes: entries{2}, roles: tasks{direct, setter, changer}, masks: sets{0, 2},
			sift: true}},
	{"e1", "add/delete/add Q0 to a waiting set, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{absent, setter, changer}, masks: sets{0, 2},
			sift: true}},
	{"b3", "set {Q0, Q1} with a summary word, x2 each",
		bell{publishes: entries{2, 0, 2}, queueOf: secondQueue, roles: tasks{setter},
			masks: sets{3}, summary: true}},
	{"b5", "two sets {Q0} with a summary word, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{setter, setter}, masks: sets{1, 1},
			summary: true}},
	{"b4", "set {Q0} with a summary word, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{setter}, masks: sets{1}, summary: true}},
	{"gx", "threshold 3 and a set, 2 lanes x3",
		bell{publishes: entries{3, 3}, roles: tasks{counter, looker}, want: 3, slots: 9, lazy: true}},
	{"gy", "threshold 4 and a set, lanes of 2 slots",
		bell{publishes: entries{3, 3}, roles: tasks{counter, looker}, want: 4, slots: 2, lazy: true}},
	{"d", "channel any, 2 getters, 2 lanes x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{getter, getter}, channel: 1, mode: forAny}},
	{"d1", "channel any, 2 getters, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{getter, getter}, channel: 1, mode: forAny}},
	{"d8", "channel any, 2 getters, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{getter, getter}, channel: 1, mode: forAny}},
	{"d2", "two queues on one channel, 2 getters, x2 and x1",
		bell{publishes: entries{2, 0, 1}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny}},
	{"d3", "channel solicited, 2 getters, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{getter, getter}, channel: 1,
			mode: forSolicited, solicited: marks{2}}},
	{"d4", "armed solicited, then any, 2 getters, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{getter, getter}, channel: 1, mode: forAny,
			twice: true, solicited: marks{2}}},
	{"d5", "channel solicited, 2 getters, 1 lane x2, both",
		bell{publishes: entries{2}, roles: tasks{getter, getter}, channel: 1, mode: forSolicited,
			solicited: marks{3}}},
	{"d6", "armed solicited, then any, 1 getter, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{getter}, channel: 1, mode: forAny, twice: true,
			solicited: marks{2}}},
	{"d7", "two queues on one channel, 2 getters, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny}},
	{"o", "set + signal latch, 2 lanes x1",
		bell{publishes: entries{1, 1, 0, 1}, roles: tasks{setter}, masks: sets{1}, sift: true}},
	{"o1", "set + sread + signal latch, 1 lane x1",
		bell{publishes: entries{1, 0, 0, 1}, roles: tasks{direct, setter}, masks: sets{0, 1},
			sift: true}},
	{"o2", "two sets + signal latch, 1 lane x1",
		bell{publishes: entries{1, 0, 0, 1}, roles: tasks{setter, setter}, masks: sets{1, 1},
			sift: true}},
	{"o3", "set's descriptor + signal latch, 1 lane x1",
		bell{publishes: entries{1, 0, 0, 1}, roles: tasks{setPoller, keeper}, masks: sets{1},
			sift: true}},
	{"p", "set + channel + sread on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{direct, setter, getter}, masks: sets{0, 1},
			sift: true, channel: 1, mode: forAny}},
	{"p1", "set + channel on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{setter, getter}, masks: sets{1}, sift: true,
			channel: 1, mode: forAny}},
	{"p2", "channel + sread on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{direct, getter}, sift: true, channel: 1,
			mode: forAny}},
	{"q", "set and the death of a producer, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{setter, undertaker}, masks: sets{1},
			sift: true}},
	{"q1", "set + sread, death of the producer, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{direct, setter, undertaker}, masks: sets{0, 1},
			sift: true}},
	{"q2", "channel and the death of a producer, x2",
		bell{publishes: entries{2}, roles: tasks{getter, undertaker}, channel: 1, mode: forAny}},
	{"q3", "set's descriptor, death of the producer, x2",
		bell{publishes: entries{2}, roles: tasks{setPoller, keeper, undertaker},
			masks: sets{1}}},
	{"v3", "set's descriptor and keeper, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{setPoller, keeper}, masks: sets{1},
			sift: true}},
	{"v", "set's descriptor and keeper, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{setPoller, keeper}, masks: sets{1}}},
	{"v1", "the same, edge-triggered, Q0 and Q1, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{setPoller, keeper},
			masks: sets{3}, edges: true}},
	{"v2", "the same beside a waiting set, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{setPoller, keeper, setter},
			masks: sets{1, 0, 1}, sift: true}},
	{"w", "channel's descriptor and keeper, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{eventPoller, keeper}, channel: 1,
			mode: forAny}},
	{"w3", "the same, edge-triggered",
		bell{publishes: entries{2}, roles: tasks{eventPoller, keeper}, channel: 1, mode: forAny,
			edges: true}},
	{"w1", "the same, two queues, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue,
			roles: tasks{eventPoller, keeper}, channel: 3, edges: true, mode: forAny}},
	{"w2", "the same, and a getter, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{eventPoller, keeper, getter}, channel: 1,
			mode: forAny}},

	// With a second reader's process, and those with two channels. The barrier
	// is run for hot lanes only, as built: a lane that is found parked must have been paid for.
	{"z", "sread, take-overs, 2 lanes x2",
		bell{publishes: entries{2, 2}, roles: tasks{direct, heir}, lazy: true, sift: true}},
	{"z1", "set, take-overs, 2 lanes x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{setter, heir}, masks: sets{1}, lazy: true,
			sift: true}},
	{"z2", "channel, take-overs, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{getter, heir}, lazy: true, channel: 1,
			mode: forAny}},
	{"z3", "sread + set, take-overs, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{direct, setter, heir}, masks: sets{0, 1},
			lazy: true, sift: true}},
	{"z4", "trywait, take-overs, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{poller, heir}, lazy: true, sift: true}},
	{"z5", "set {Q0, Q1}, take-overs, 1 lane x2 and x1",
		bell{publishes: entries{2, 0, 1}, queueOf: secondQueue, roles: tasks{setter, heir},
			masks: sets{3}, lazy: true, sift: true}},
	{"z6", "sread + set, take-overs, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{direct, setter, heir}, masks: sets{0, 1},
			lazy: true, sift: true}},
	{"x", "two channels, a getter and a queue each, x1",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny, apart: true}},
	{"x1", "two channels with a queue each, x1 in Q0",
		bell{publishes: entries{1}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny, apart: true}},
	{"x2", "two channels and a set over their queues, x1 in Q0",
		bell{publishes: entries{1}, queueOf: secondQueue, roles: tasks{getter, getter, setter},
			masks: sets{0, 0, 3}, channel: 3, mode: forAny, apart: true, sift: true}},
	{"x3", "two channels with a queue each, x2 in Q0",
		bell{publishes: entries{2}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny, apart: true}},

	// Lanes come and pass from one writer to the next, and those that
	// combine what the other files have apart.
	{"s", "sread, a lane is taken over, 2 lanes x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{direct}, lazy: true, sift: true,
			passes: true}},
	{"s1", "the same, and the successor does not pay",
		bell{publishes: entries{2, 1}, roles: tasks{direct}, lazy: true, sift: true,
			passes: true, mixed: true, paidOnly: true}},
	{"s2", "set, the same, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{setter}, masks: sets{1}, lazy: true,
			sift: true, passes: true, mixed: true, paidOnly: true}},
	{"s3", "channel, the same, x2",
		bell{publishes: entries{2}, roles: tasks{getter}, lazy: true, passes: true, mixed: true,
			channel: 1, mode: forAny, paidOnly: true}},
	{"s4", "trywait, the same, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{poller}, lazy: true, sift: true,
			passes: true, mixed: true, paidOnly: true}},
	{"s5", "sread, lane and reader are taken over, x2",
		bell{publishes: entries{2}, roles: tasks{direct, heir}, lazy: true, sift: true,
			passes: true, mixed: true}},
	{"s6", "set, lane and reader are taken over, x2",
		bell{publishes: entries{2}, roles: tasks{setter, heir}, masks: sets{1}, lazy: true,
			sift: true, passes: true, mixed: true}},
	{"s7", "channel, lane and reader are taken over, x2",
		bell{publishes: entries{2}, roles: tasks{getter, heir}, lazy: true, passes: true,
			mixed: true, channel: 1, mode: forAny}},
	{"s8", "sread + set, a lane is taken over, x2",
		bell{publishes: entries{2}, roles: tasks{direct, setter}, masks: sets{0, 1}, lazy: true,
			sift: true, passes: true, mixed: true}},
	{"t", "sread, a lane comes, 2 lanes x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{direct}, lazy: true, sift: true,
			attaches: 2}},
	{"t1", "set, a lane comes, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{setter}, masks: sets{1}, lazy: true,
			sift: true, attaches: 2}},
	{"t2", "sread, a lane comes amid take-overs, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{direct, heir}, lazy: true, sift: true,
			attaches: 2}},
	{"t3", "set, a lane comes amid take-overs, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{setter, heir}, masks: sets{1}, lazy: true,
			sift: true, attaches: 2}},
	{"t4", "channel, a lane comes amid take-overs, x1",
		bell{publishes: entries{1, 1}, roles: tasks{getter, heir}, lazy: true, attaches: 2,
			channel: 1, mode: forAny}},
	{"t5", "trywait, a lane comes while arming, x2 and x1",
		bell{publishes: entries{2, 1}, roles: tasks{poller}, lazy: true, sift: true,
			attaches: 2}},
	{"u", "channel with a summary word, 2 getters, x2",
		bell{publishes: entries{2}, roles: tasks{getter, getter}, summary: true, channel: 1,
			mode: forAny}},
	{"u1", "set and channel with a summary word, x1",
		bell{publishes: entries{1}, roles: tasks{setter, getter}, masks: sets{1}, sift: true,
			summary: true, channel: 1, mode: forAny}},
	{"u2", "set and channel with a summary word, x2",
		bell{publishes: entries{2}, roles: tasks{setter, getter}, masks: sets{1}, sift: true,
			summary: true, channel: 1, mode: forAny}},
	{"u3", "two queues on a channel with a summary, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{getter},
			summary: true, channel: 3, mode: forAny}},
	{"u4", "three channels with a queue each, x1 in Q0",
		bell{publishes: entries{1}, queueOf: thirdQueue, roles: tasks{getter, getter, getter},
			channel: 7, mode: forAny, apart: true}},
	{"u5", "set + channel + sread on one queue, 1 lane x1",
		bell{publishes: entries{1}, roles: tasks{direct, setter, getter}, masks: sets{0, 1},
			sift: true, channel: 1, mode: forAny}},
	{"u6", "set + channel + signal latch, 1 lane x1",
		bell{publishes: entries{1, 0, 0, 1}, roles: tasks{setter, getter}, masks: sets{1},
			sift: true, channel: 1, mode: forAny}},

	//
	// Caught by one of several reduced forms only: a domain bit that is set already makes the producer
	// return (b6, not one lane in each of two queues); a solicited index beyond the tail is not due
	// (d5, which has two solicited entries in one lane).
	// Caught by the large one only: waking one getter of two channels (x; x1 and x3 do not see it).
	// Mutants whose base has no reduced form (b3, gx, q3, v, w1) fall on the large one, which the
	// short forms leave at the first loss.
	{"b6", "set {Q0, Q1}, 2 lanes x1 in Q0",
		bell{publishes: entries{1, 1}, queueOf: secondQueue, roles: tasks{setter},
			masks: sets{3}}},
	{"h3", "two sets, {Q0, Q1} and {Q1}, x2 in Q1",
		bell{publishes: entries{0, 0, 2}, queueOf: secondQueue, roles: tasks{setter, setter},
			masks: sets{3, 2}}},
	{"h4", "two sets {Q0, Q1}, x2 in Q0",
		bell{publishes: entries{2}, roles: tasks{setter, setter}, masks: sets{3, 3}}},
	{"e2", "add/delete/add Q0 to a waiting set, sread, x1",
		bell{publishes: entries{1}, roles: tasks{direct, setter, changer}, masks: sets{0, 2},
			sift: true}},
	{"d9", "two queues on one channel, 2 getters, x1 in Q0",
		bell{publishes: entries{1}, queueOf: secondQueue, roles: tasks{getter, getter},
			channel: 3, mode: forAny}},
	{"d10", "two queues on one channel, 1 getter, x1 each",
		bell{publishes: entries{1, 0, 1}, queueOf: secondQueue, roles: tasks{getter}, channel: 3,
			mode: forAny}},
	{"d11", "channel solicited, 2 getters, 1 lane x2, the last",
		bell{publishes: entries{2}, roles: tasks{getter, getter}, channel: 1, mode: forSolicited,
			solicited: marks{2}}},
	{"d12", "armed solicited, then any, 2 getters, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{getter, getter}, channel: 1, mode: forAny,
			twice: true, solicited: marks{2}}},
	{"i7", "trywait + sread on one queue, 1 lane x2",
		bell{publishes: entries{2}, roles: tasks{poller, direct}}},

	{"gh", "threshold 3, take-overs, 2 lanes x3",
		bell{publishes: entries{3, 3}, roles: tasks{counter, heir}, want: 3, slots: 9, lazy: true}},
	{"gi", "threshold 4, take-overs, lanes of 2 slots",
		bell{publishes: entries{3, 3}, roles: tasks{counter, heir}, want: 4, slots: 2, lazy: true}},
	{"gj", "threshold 3, a lane comes amid take-overs, x2",
		bell{publishes: entries{2, 2}, roles: tasks{counter, heir},
			want: 3, slots: 9, lazy: true, attaches: 2}},
	{"gk", "threshold 3, take-overs, another reader, 1 lane x4",
		bell{publishes: entries{4}, roles: tasks{counter, taker, heir}, want: 3, slots: 9, lazy: true}},
	{"gl", "threshold 3 and a channel, 2 lanes x2",
		bell{publishes: entries{2, 2}, roles: tasks{counter, marker}, want: 3, slots: 9, lazy: true}},
	{"gm", "threshold 3 and trywait, 1 lane x4",
		bell{publishes: entries{4}, roles: tasks{counter, poller}, want: 3, slots: 9, lazy: true}},
	{"gn", "threshold 2 and trywait, 2 lanes x1",
		bell{publishes: entries{1, 1}, roles: tasks{counter, poller}, want: 2, slots: 9, lazy: true}},
}

// Deviations.
const (
	// Producer.
	rungBeforeWake     = "rung before wake"
	drungBeforeWake    = "the domain's rung before wake"
	producerDisarms    = "producer disarms after its wake"
	domainBitFirst     = "domain bit before the queue's ready bit"
	domainBitSkips     = "domain bit already set: producer returns"
	domainBitWhenArmed = "domain bit only when the domain is seen armed"
	directBellOnly     = "direct bell armed: ring only that"
	oneRungWord        = "one rung word gates both bells"
	readyBitSkips      = "ready bit already set: producer returns"
	// P3 drains the buffer when it stores, as a locked instruction does.
	noFence     = "no fence P2'"
	noFenceWeak = "no fence P2', and P3 orders nothing"

	// Direct reader.
	noTailsAgain     = "no second look at the tail after parking"
	noBarrier        = "plain publish and nobody pays"
	noBarrierR4      = "no barrier in R4"
	lookIgnoresLatch = "second look ignores the latch"
	lookSharedOnly   = "sread's second look: shared bits only"
	lookUnlocked     = "second look outside q.mu, others take in two steps"
	noLock           = "no q.mu between two readers"
	eachDisarms      = "each direct reader disarms on leaving"
	sameSeq          = "an arming on top of another keeps its number"
	wakeOne          = "wake one of two direct readers"

	// Descriptor.
	resetAfterArm  = "trywait: reset between arming and second look"
	resetAfterLook = "trywait: reset after the second look"
	noReset        = "eventfd never reset (the user only spins)"
	noSecondLook   = "no second look after arming"
	disarmTakesFD  = "sread's disarming takes the descriptor's bit along"
	armForgetsFD   = "sread's arming drops the descriptor's bit"

	// Wait set.
	readyBeforeDomain    = "reader takes ready bits before the domain bit"
	setDoesNotPark       = "the set's look does not park hot lanes"
	edgeList             = "queue dropped from todo though not empty"
	noBarrierS2          = "no barrier in S2"
	lateOffList          = "queue taken off todo after the look"
	eachDisarmsDomain    = "each waiter disarms the domain when it leaves"
	domainLookSharedOnly = "domain's second look: shared bits only"
	domainHandOn         = "domain bits taken and handed on in two steps"
	sharedList           = "two goroutines wait on the same set"
	latchUnseen          = "the set's look overlooks the latch"
	signalKept           = "the set returns a queue and leaves its signal"
	signalUnclaimed      = "the set returns a signal that another took"
	leafBeforeSummary    = "reader takes the bits before the summary"
	summaryFirst         = "producer sets the summary before the bit"
	summarySkips         = "bit already set: producer skips the summary"
	listBeforeFlag       = "add: on the list before the queue's flag"
	addWakesNobody       = "add does not wake the set's sleeper"
	noticeQueueOnly      = "a death notice wakes the queue's own sleepers only"
	noticeListsOnly      = "a death notice lists the queue and wakes nobody"
	noticeWakesFirst     = "a death notice wakes before it lists the queue"
	noticeUnmarked       = "a death notice does not mark the lane"
	signalQueueOnly      = "a signal rings the queue's own bell only"

	// Completion channel.
	unparkArmed   = "drain un-parks while a channel is armed"
	judgeByHead   = "event judged against head"
	judgeByTail   = "solicited index beyond the tail: not due"
	rearmDrops    = "re-arm forgets the due event"
	wakeOneDomain = "wake one sleeper of a domain only"
	noBarrierN1   = "no barrier in N1"
	setsOnly      = "what a set takes is not handed to the channel"
	ownOnly       = "one channel keeps what it takes for the other"

	// Take-over.
	heirTakesMarks = "heir takes the marked lanes in hand only"
	heirParks      = "heir runs no barrier"
	heirNamesLate  = "heir names its bell after the queue is listed"
	heirListsNone  = "heir's set does not look at the queue first"
	heirCountsAnew = "heir numbers its armings as the one before did"
	keepsBell      = "producer goes on with the bell that it holds"

	// Lanes that come and that pass to another writer.
	silentSuccessor = "who takes a lane over does not ring"
	silentBirth     = "a new lane is linked and not marked"
	markedUnnamed   = "a new lane is marked before it can be found"
	orderUnseen     = "reader keeps the order of a lane's first writer"
	orderUnpaid     = "reader learns the order and does not pay"
	orderUntold     = "reader pays late and tells nobody"
	orderLate       = "successor rings before it says its order"
	heirMaps        = "heir looks for no lanes"

	// Descriptors of sets and channels.
	keeperBlind    = "the keeper looks only before it sleeps, not after arming"
	listsSilently  = "who lists leaves the descriptor alone"
	faceResetLate  = "a descriptor's reset after the second look"
	faceNoLook     = "no second look after a descriptor's reset"
	faceLooksFirst = "the second look before a descriptor's reset"
	edgeOnce       = "two events, one edge"

	// Threshold.
	wholeIndex       = "index = seen + all that is missing"
	indexFromNow     = "index = the tail of now + share of what was missing"
	indexAfterLook   = "indices stored after the second look"
	indexUnclamped   = "index beyond what the lane can hold"
	unparksSilently  = "un-parking counted lanes wakes nobody"
	takesIgnored     = "second look overlooks what another took or un-parked"
	fullIgnored      = "a full lane does not end the wait"
	thresholdGatesFD = "an arming for many gates the descriptor"
	trywaitKeepsThr  = "trywait leaves an arming for many in place"
	heirIndices      = "heir leaves the wake indices of the one before"

	// Threshold, set and latch.
	thresholdGatesSet = "an arming for many gates the set's bell"
	signalWaits       = "a signal looks at the wake index"
	countTakesDomain  = "who waited for many takes the set's flag along"
)

// aboutBuffers are deviations about store buffers, which are there if the reader pays.
var aboutBuffers = []string{noBarrier, noBarrierR4, noBarrierS2, noBarrierN1, noFence, noFenceWeak,
	heirParks, orderUnseen, orderUnpaid, orderLate, orderUntold}

// queueMutants are the rules that are left out, by the variants that fall without them; last those
// of large variants in small ones.
//
// A reader that always runs the barrier also makes up for a producer's missing fence. The fence is
// needed as soon as the reader is spared a barrier on lanes that it finds parked, or drains lanes
// that stay parked.
var queueMutants = slices.Concat(
	on("a", rungBeforeWake, noTailsAgain, producerDisarms, noSecondLook, noBarrier, noBarrierR4),
	on("b", drungBeforeWake, domainBitFirst, readyBeforeDomain, domainBitSkips, domainBitWhenArmed,
		noBarrierS2),
	on("f", lookIgnoresLatch, noBarrierR4),
	on("b2", setDoesNotPark, edgeList, noBarrier),
	on("c1", lookSharedOnly, lookUnlocked, noLock, noBarrierR4, noBarrierS2),
	on("c2", directBellOnly, oneRungWord),
	on("h2", lateOffList, eachDisarmsDomain, domainLookSharedOnly, domainHandOn, sharedList),
	on("g", wholeIndex, indexFromNow, indexAfterLook, noSecondLook, noBarrierR4, noFence),
	on("g4", readyBitSkips),
	on("gf", indexUnclamped, fullIgnored),
	on("gs", unparksSilently, takesIgnored),
	on("i", rungBeforeWake, noTailsAgain, noSecondLook, resetAfterLook, resetAfterArm, noBarrierR4),
	on("i5", lookIgnoresLatch),
	on("i2", resetAfterArm, disarmTakesFD, armForgetsFD, sameSeq),
	on("j", eachDisarms, sameSeq, wakeOne, noLock, noBarrierR4),
	on("l1", noFence),
	on("l2", noFence),
	on("n", noFence),
	on("y3", noFence, noBarrierR4, noTailsAgain, noSecondLook),
	on("y4", noFence, noBarrierR4, noBarrierS2),
	on("y5", noFence, noBarrierR4, noLock),
	on("y6", noBarrierR4, resetAfterArm),
	on("y7", noFence, unparkArmed, noBarrierN1),
	on("gr", takesIgnored, unparksSilently, noFence),
	on("v4", leafBeforeSummary, summaryFirst, keeperBlind, faceNoLook),
	on("w4", leafBeforeSummary, summaryFirst, faceLooksFirst),
	on("e1", listBeforeFlag, addWakesNobody),
	on("b3", leafBeforeSummary, summaryFirst),
	on("b4", summarySkips),
	on("o", latchUnseen, signalKept, signalQueueOnly),
	on("o1", signalUnclaimed),
	on("o2", signalUnclaimed),
	on("q", noticeQueueOnly, noticeListsOnly, noticeWakesFirst, noticeUnmarked),
	on("q2", noticeQueueOnly, noticeUnmarked),
	on("d", unparkArmed),
	on("d1", judgeByHead),
	on("d8", noLock, unparkArmed, judgeByHead),
	on("d4", rearmDrops),
	on("d6", rearmDrops),
	on("d5", judgeByTail),
	on("d2", wakeOneDomain, eachDisarmsDomain),
	on("p1", setsOnly, domainLookSharedOnly),
	on("p2", unparkArmed, noBarrierN1),
	on("gx", noBarrierS2),
	on("v", keeperBlind, faceResetLate, faceNoLook, listsSilently),
	on("q3", listsSilently),
	on("w", keeperBlind, faceNoLook, faceLooksFirst, listsSilently),
	on("w1", edgeOnce),
	on("z", heirTakesMarks, heirCountsAnew, heirParks),
	on("z1", heirTakesMarks, heirListsNone, heirNamesLate, keepsBell, heirParks),
	on("z2", heirTakesMarks, heirNamesLate, keepsBell, heirParks),
	on("z4", heirParks, heirTakesMarks),
	on("x3", ownOnly),
	on("x", wakeOneDomain),
	on("x1", eachDisarmsDomain, domainLookSharedOnly),
	on("s", silentSuccessor),
	on("s1", orderUnseen, orderUnpaid, orderLate, noBarrierR4),
	on("s2", orderUnpaid),
	on("s3", orderUnpaid, orderUntold),
	on("t2", heirMaps),
	on("t3", heirMaps),
	on("u", leafBeforeSummary, summaryFirst),
	on("u1", domainLookSharedOnly, setsOnly),
	on("b6", drungBeforeWake, domainBitFirst, readyBeforeDomain, domainBitSkips,
		domainBitWhenArmed, noBarrierS2),
	on("h3", lateOffList, eachDisarmsDomain, domainLookSharedOnly, domainHandOn),
	on("h4", lateOffList, eachDisarmsDomain, domainLookSharedOnly, domainHandOn, sharedList),
	on("e2", listBeforeFlag, addWakesNobody),
	on("d9", wakeOneDomain, eachDisarmsDomain),
	on("d10", setsOnly, noBarrierN1),
	on("d11", unparkArmed, judgeByHead),
	on("d12", rearmDrops, unparkArmed, judgeByHead),
	on("i7", resetAfterArm, disarmTakesFD, armForgetsFD, sameSeq),
	on("gh", heirTakesMarks, heirParks, heirIndices),
	on("gi", indexUnclamped),
	on("gl", takesIgnored),
	on("gm", thresholdGatesFD, trywaitKeepsThr, noBarrierR4))

// queueSpare lose nothing in the sizes explored. The complete form shows that; it asserts nothing
// about them, so that a larger variant may find a loss. What comes after the birth of a lane is
// marked again, so that only the death of its new writer would go unnoticed.
var queueSpare = slices.Concat(
	on("a", noFence),
	on("b2", noFence),
	on("c1", noFence, noFenceWeak),
	on("l", noFence),
	on("i", noReset),
	on("t3", silentBirth),
	on("t", markedUnnamed),
	on("t1", markedUnnamed))
