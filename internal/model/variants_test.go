package model

// size says in which form of the test a variant is explored.
type size uint8

const (
	smallest size = iota // also with -short and under the race detector
	short
	complete // only with -model.full
)

// variant is a protocol that must not lose anything. Every one is explored twice unless it says
// otherwise: with sequentially consistent publishes, and with plain ones that the reader pays for.
type variant struct {
	key       string
	text      string
	bell      *bell
	threshold *threshold
	size      size
	plainOnly bool
}

var secondQueue = [laneCount]uint8{0, 0, 1}

// variants keeps the letters of the protocol's description; i and j are new.
var variants = []variant{
	{key: "a", text: "sread, 2 lanes x2", size: smallest,
		bell: &bell{publishes: four(2, 2, 0, 0), roles: three(direct, absent, absent)}},
	{key: "f", text: "sread + signal latch, 2 lanes x1", size: smallest,
		bell: &bell{publishes: four(1, 1, 0, 1), roles: three(direct, absent, absent)}},
	{key: "b", text: "set {Q0: 2 lanes, Q1: 1 lane} x1", size: complete,
		bell: &bell{publishes: four(1, 1, 1, 0), queueOf: secondQueue,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{3}}},
	{key: "b2", text: "set {Q0, Q1}, 1 lane x2 each", size: smallest,
		bell: &bell{publishes: four(2, 0, 2, 0), queueOf: secondQueue,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{3}}},
	{key: "c", text: "sread Q0 + set {Q0, Q1}, x2 and x1", size: complete,
		bell: &bell{publishes: four(2, 0, 1, 0), queueOf: secondQueue,
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 3}}},
	{key: "c1", text: "sread + set on one queue, 1 lane x3", size: smallest,
		bell: &bell{publishes: four(3, 0, 0, 0),
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},
	{key: "c2", text: "sread + set on one queue, 2 lanes x1", size: short,
		bell: &bell{publishes: four(1, 1, 0, 0),
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},
	{key: "c3", text: "sread + set on one queue, x2 and x1", size: complete,
		bell: &bell{publishes: four(2, 1, 0, 0),
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},
	{key: "h", text: "two sets, {Q0, Q1} and {Q1}, 1 lane x1 each", size: complete,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue,
			roles: three(setter, setter, absent), masks: [taskCount]uint8{3, 2}}},
	{key: "h2", text: "two sets {Q0, Q1}, 1 lane x1 each", size: complete,
		bell: &bell{publishes: four(1, 0, 1, 0), queueOf: secondQueue,
			roles: three(setter, setter, absent), masks: [taskCount]uint8{3, 3}}},
	{key: "i", text: "trywait + epoll on an eventfd, 2 lanes x2", size: smallest,
		bell: &bell{publishes: four(2, 2, 0, 0), roles: three(poller, absent, absent)}},
	{key: "i2", text: "trywait + sread on one queue, 2 lanes x1", size: complete,
		bell: &bell{publishes: four(1, 1, 0, 0), roles: three(poller, direct, absent)}},
	{key: "i3", text: "trywait + sread on one queue, 1 lane x3", size: smallest,
		bell: &bell{publishes: four(3, 0, 0, 0), roles: three(poller, direct, absent)}},
	{key: "i4", text: "trywait + sread + set on one queue, 1 lane x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0),
			roles: three(poller, direct, setter), masks: [taskCount]uint8{0, 0, 1}}},
	{key: "i5", text: "trywait + signal latch, 2 lanes x1", size: smallest,
		bell: &bell{publishes: four(1, 1, 0, 1), roles: three(poller, absent, absent)}},
	{key: "i6", text: "trywait + sread + signal, 1 lane x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 1), roles: three(poller, direct, absent)}},
	{key: "j", text: "two sreads on one queue, 2 lanes x1", size: smallest,
		bell: &bell{publishes: four(1, 1, 0, 0), roles: three(direct, direct, absent)}},
	{key: "j2", text: "two sreads on one queue, x2 and x1", size: complete,
		bell: &bell{publishes: four(2, 1, 0, 0), roles: three(direct, direct, absent)}},
	{key: "j3", text: "two sreads and two signals, 1 lane x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 2), roles: three(direct, direct, absent)}},
	{key: "j4", text: "three sreads on one queue, 1 lane x2", size: complete,
		bell: &bell{publishes: four(2, 0, 0, 0), roles: three(direct, direct, direct)}},
	{key: "l", text: "a, barrier only if a lane was hot", size: smallest, plainOnly: true,
		bell: &bell{publishes: four(2, 2, 0, 0), roles: three(direct, absent, absent), lazy: true}},
	{key: "l1", text: "c1, barrier only if a lane was hot", size: smallest, plainOnly: true,
		bell: &bell{publishes: four(3, 0, 0, 0), lazy: true,
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},
	{key: "l2", text: "b2, barrier only if a lane was hot", size: smallest, plainOnly: true,
		bell: &bell{publishes: four(2, 0, 2, 0), queueOf: secondQueue, lazy: true,
			roles: three(setter, absent, absent), masks: [taskCount]uint8{3}}},
	{key: "n", text: "a, R2 never un-parks (as with a channel)", size: smallest, plainOnly: true,
		bell: &bell{publishes: four(2, 2, 0, 0), roles: three(direct, absent, absent), keep: true}},
	{key: "y", text: "a, R2 leaves empty lanes parked", size: smallest,
		bell: &bell{publishes: four(2, 2, 0, 0), roles: three(direct, absent, absent), sift: true}},
	{key: "y1", text: "c1, R2 leaves empty lanes parked", size: smallest,
		bell: &bell{publishes: four(3, 0, 0, 0), sift: true,
			roles: three(direct, setter, absent), masks: [taskCount]uint8{0, 1}}},
	{key: "y2", text: "j2, R2 leaves empty lanes parked", size: complete,
		bell: &bell{publishes: four(2, 1, 0, 0), sift: true, roles: three(direct, direct, absent)}},
	{key: "g", text: "threshold 3, 2 lanes x3", size: smallest,
		threshold: &threshold{want: 3, publishes: [2]uint8{3, 3}, capacity: 9}},
	{key: "g4", text: "threshold 5, 2 lanes x4", size: smallest,
		threshold: &threshold{want: 5, publishes: [2]uint8{4, 4}, capacity: 9}},
	{key: "ga", text: "threshold 3, lane attaches after arming", size: smallest,
		threshold: &threshold{want: 3, publishes: [2]uint8{3, 3}, capacity: 9, attach: true}},
	{key: "gf", text: "threshold 6, lanes of 2 slots", size: smallest,
		threshold: &threshold{want: 6, publishes: [2]uint8{4, 4}, capacity: 2}},
	{key: "gs", text: "threshold 3 and another reader, 1 lane x4", size: smallest,
		threshold: &threshold{want: 3, publishes: [2]uint8{4, 0}, capacity: 9, shared: true}},
	{key: "gt", text: "threshold 2 and another reader, 2 lanes x2", size: complete,
		threshold: &threshold{want: 2, publishes: [2]uint8{2, 2}, capacity: 9, shared: true}},
	{key: "gu", text: "threshold 3 and another reader, x3 and x2", size: complete,
		threshold: &threshold{want: 3, publishes: [2]uint8{3, 2}, capacity: 9, shared: true}},
	{key: "gw", text: "threshold 4, another reader, lanes of 2 slots", size: complete,
		threshold: &threshold{want: 4, publishes: [2]uint8{3, 3}, capacity: 2, shared: true}},
}

func four(a, b, c, signals uint8) [laneCount + 1]uint8 {
	return [laneCount + 1]uint8{a, b, c, signals}
}

func three(a, b, c role) [taskCount]role { return [taskCount]role{a, b, c} }

// explored returns a copy of the variant as a function, with the given payer and bug.
func (v variant) explored(plain bool, b bug) (run func(bool) outcome, trace func() string) {
	if v.bell != nil {
		p := *v.bell
		p.plain, p.bug = plain, b
		return func(first bool) outcome { return explore(protocol[bellState](&p), first) },
			func() string { return interleaving(protocol[bellState](&p)) }
	}
	p := *v.threshold
	p.plain, p.bug = plain, b
	return func(first bool) outcome { return explore(protocol[thresholdState](&p), first) },
		func() string { return interleaving(protocol[thresholdState](&p)) }
}
