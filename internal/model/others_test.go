package model

import "slices"

// The bell of a queue for other users, explored like that of a queue of one user: producers may
// stop for ever after any step, or die there; what is finished must have been heard of, and all
// that the dead had published once their death is noticed.
//
// A producer of another user writes to its lane and its pipe only. A reader that has the queue to
// itself sleeps on the words of the lanes; for goroutines that share a queue, and for sets, a
// keeper passes rings on. A lane's count of rings is modelled as whether it is what the bell, or
// the keeper, heard last.
//
// What survives and so is not required: that the keeper marks the lane in the queue's ready word
// before it rings, or at all, since every look hears the lanes itself; and the order in which it
// wakes and marks the domain rung, since it never stops in between.
//
// Not in the model: thresholds and channels, which look at the same marks; pauses for those who
// ring for nothing; a keeper's pass by somebody who is about to look at a set. Wrap of the count
// is explored in wrap_rings_test.go.
var others = family{
	title: "Queues between users",
	variants: []variant{
		form("descriptor",
			othersModel{publishes: [2]uint8{2, 1}, roles: [2]othersRole{oPoller}}.with),
		form("descriptor, a death",
			othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oPoller}, deaths: true}.with),
		form("direct",
			othersModel{publishes: [2]uint8{2, 2}, roles: [2]othersRole{oDirect}}.with),
		form("direct, a death",
			othersModel{publishes: [2]uint8{2, 1},
				roles: [2]othersRole{oDirect}, deaths: true}.with),
		form("set",
			othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSetter}, keeper: true}.with),
		form("set, a death",
			othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSetter}, keeper: true, deaths: true}.with),
		form("set, one dies",
			othersModel{publishes: [2]uint8{1, 0},
				roles: [2]othersRole{oSetter}, keeper: true, deaths: true}.with),
		form("set, x2",
			othersModel{publishes: [2]uint8{2, 2},
				roles: [2]othersRole{oSetter}, keeper: true}.with),
		form("shared",
			othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer}, keeper: true}.with),
		form("shared and set",
			othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer, oSetter}, keeper: true}.with),
		form("shared, 2 lanes",
			othersModel{publishes: [2]uint8{2, 1},
				roles: [2]othersRole{oSharer}, keeper: true}.with),
		form("two share",
			othersModel{publishes: [2]uint8{2, 0},
				roles: [2]othersRole{oSharer, oSharer}, keeper: true}.with),
		form("two share, 2 lanes",
			othersModel{publishes: [2]uint8{1, 1},
				roles: [2]othersRole{oSharer, oSharer}, keeper: true}.with),
	},
	mutants: slices.Concat(
		on("direct", oRingFirst, oArmedFirst, oWakeFirst, oCountOnce, oNoTailsAgain, oFreshWords,
			oNoWords),
		on("shared", oKeeperForgets, oKeeperArmed, oNoSecondLook),
		on("direct, a death", oNoNotice, oNoticeNoMark),
		on("set", oMuteRelayed),
		on("descriptor", oResetAfterArm, oResetAfterLook, oNoPipeSecondLook),
		[]mutant{
			{base: "shared", bug: oCountOnce, text: "the same, through a keeper"},
			{base: "set", bug: oKeeperForgets, text: "keeper sleeps on what rung is now, for a set"},
			{base: "descriptor, a death", bug: oNoNotice, text: "a death goes unnoticed by a descriptor"},
		}),
}

func (m othersModel) with(bug string) protocol[othersState] {
	m.bug = bug
	return &m
}
