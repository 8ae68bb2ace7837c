package model

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

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

var othersVariants = map[string]othersModel{
	"direct": {publishes: [othersLanes]uint8{2, 2}, roles: [2]othersRole{oDirect}},
	"direct, a death": {publishes: [othersLanes]uint8{2, 1}, roles: [2]othersRole{oDirect},
		deaths: true},
	"shared": {publishes: [othersLanes]uint8{2, 0}, roles: [2]othersRole{oSharer}, keeper: true},
	"shared, 2 lanes": {publishes: [othersLanes]uint8{2, 1}, roles: [2]othersRole{oSharer},
		keeper: true, size: complete},
	"two share": {publishes: [othersLanes]uint8{2, 0}, roles: [2]othersRole{oSharer, oSharer},
		keeper: true, size: complete},
	"two share, 2 lanes": {publishes: [othersLanes]uint8{1, 1},
		roles: [2]othersRole{oSharer, oSharer}, keeper: true, size: complete},
	"set": {publishes: [othersLanes]uint8{1, 1}, roles: [2]othersRole{oSetter}, keeper: true,
		size: short},
	"set, x2": {publishes: [othersLanes]uint8{2, 2}, roles: [2]othersRole{oSetter},
		keeper: true, size: complete},
	"set, a death": {publishes: [othersLanes]uint8{1, 1}, roles: [2]othersRole{oSetter},
		keeper: true, deaths: true, size: complete},
	"set, one dies": {publishes: [othersLanes]uint8{1, 0}, roles: [2]othersRole{oSetter},
		keeper: true, deaths: true},
	"shared and set": {publishes: [othersLanes]uint8{2, 0}, roles: [2]othersRole{oSharer, oSetter},
		keeper: true, size: complete},
	"descriptor": {publishes: [othersLanes]uint8{2, 1}, roles: [2]othersRole{oPoller}},
	"descriptor, a death": {publishes: [othersLanes]uint8{1, 1}, roles: [2]othersRole{oPoller},
		deaths: true, size: short},
}

var othersMutants = []struct {
	base string
	bug  othersBug
	text string
}{
	{"direct", oRingFirst, "rings before it publishes"},
	{"direct", oArmedFirst, "armed loaded before the ring is counted"},
	{"direct", oWakeFirst, "wakes before it counts the ring"},
	{"direct", oCountOnce, "counts once, before it loads armed, and mutes the next"},
	{"shared", oCountOnce, "the same, through a keeper"},
	{"direct", oNoTailsAgain, "no second look at the tail after parking"},
	{"direct", oFreshWords, "words to sleep on loaded after the look, not what was heard"},
	{"direct", oNoWords, "sleeps on the queue's word alone"},
	{"direct, a death", oNoNotice, "a death goes unnoticed"},
	{"direct, a death", oNoticeNoMark, "a death wakes and marks nothing"},
	{"shared", oKeeperForgets, "keeper sleeps on what rung is now, not on what it passed on"},
	{"shared", oKeeperArmed, "keeper loads armed before it sleeps"},
	{"shared", oNoSecondLook, "no second look after arming"},
	{"set", oMuteRelayed, "wakes muted although a keeper listens"},
	{"set", oKeeperForgets, "keeper sleeps on what rung is now, for a set"},
	{"descriptor", oResetAfterArm, "pipe reset between arming and second look"},
	{"descriptor", oResetAfterLook, "pipe reset after the second look"},
	{"descriptor", oNoPipeSecondLook, "trywait without second look"},
	{"descriptor, a death", oNoNotice, "a death goes unnoticed by a descriptor"},
}

func (m othersModel) with(b othersBug) protocol[othersState] {
	m.bug = b
	return othersProtocol{&m}
}

func TestModelOthersLosesNothing(t *testing.T) {
	shmtest.Conforms(t)
	for name, m := range othersVariants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.size > modelSize() {
				t.Skip("explored with -model.full, or not with -short")
			}
			o := explore(m.with(oNone), false)
			t.Logf("%-20s %v", name, o)
			compare(t, othersTitle+": "+name, o)
			if o.resting == 0 || o.stuck > 0 {
				t.Errorf("%d states asleep, %d stuck", o.resting, o.stuck)
			}
			if o.lost+o.muted > 0 {
				t.Errorf("shortest run:%s", interleaving(m.with(oNone)))
			}
		})
	}
}

func TestModelOthersCatchesMutants(t *testing.T) {
	shmtest.Long(t)
	for _, c := range othersMutants {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			o := explore(othersVariants[c.base].with(c.bug), !*modelFull)
			t.Logf("%-64s %v", c.text, o)
			if o.lost+o.muted == 0 {
				t.Errorf("the mutant survives: %v", o)
			}
		})
	}
}
