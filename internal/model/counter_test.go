package model

import "slices"

// The bell of a counter, explored like that of a queue: adders may stop after any step or die
// there, waiters may leave at every return, a waiter's seat is shared by a second one that follows
// it. Only finished adds must have been heard, and those of the dead once their death is noticed.
//
// Not in the model: several adds by one process at once, a value that is set back, wrap of the
// value and of the numbers, seats that change hands.
var counters = family{
	title: "Counters",
	variants: []variant{
		form("an adder dies",
			countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 1},
				seat: [3]uint8{0, 1}, deaths: true}.with),
		form("dies, one seat",
			countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 2},
				seat: [3]uint8{0, 0}, deaths: true}.with),
		form("joins and dies",
			countModel{adds: [3]uint8{0, 0, 2}, want: [3]uint8{2, 1},
				seat: [3]uint8{0, 1}, deaths: true, joins: true}.with),
		form("leader is low",
			countModel{adds: [3]uint8{2, 1}, want: [3]uint8{1, 3}, seat: [3]uint8{0, 0}}.with),
		form("one seat",
			countModel{adds: [3]uint8{2, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 0}}.with),
		form("three adders",
			countModel{adds: [3]uint8{1, 1, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 1}}.with),
		form("three waiters",
			countModel{adds: [3]uint8{1, 1}, want: [3]uint8{2, 1, 2},
				seat: [3]uint8{0, 0, 1}}.with),
		form("two seats",
			countModel{adds: [3]uint8{2, 1}, want: [3]uint8{2, 1}, seat: [3]uint8{0, 1}}.with),
	},
	mutants: slices.Concat(
		on("two seats", cRungFirst, cNoLook, cLateEpoch, cLateThreshold, cSameArming, cWakeOne,
			cWaiterDisarms),
		on("one seat", cLeaveForgetsOthers, cNoHandOn, cServeSelfOnly, cNoFollowerLook),
		on("joins and dies", cSilentJoin, cScanFirst)),
}

func (m countModel) with(bug string) protocol[countState] {
	m.bug = bug
	return &m
}
