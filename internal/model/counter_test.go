package model

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// The bell of a counter, explored like that of a queue: adders may stop after any step or die
// there, waiters may leave at every return, a waiter's seat is shared by a second one that follows
// it. Only finished adds must have been heard, and those of the dead once their death is noticed.
//
// Not in the model: several adds by one process at once, a value that is set back, wrap of the
// value and of the numbers, seats that change hands.

var countVariants = map[string]countModel{
	"two seats":     {adds: [3]uint8{2, 1}, want: [3]uint8{2, 1}, seat: [3]uint8{0, 1}},
	"one seat":      {adds: [3]uint8{2, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 0}},
	"leader is low": {adds: [3]uint8{2, 1}, want: [3]uint8{1, 3}, seat: [3]uint8{0, 0}},
	"three waiters": {adds: [3]uint8{1, 1}, want: [3]uint8{2, 1, 2}, seat: [3]uint8{0, 0, 1},
		size: short},
	"three adders": {adds: [3]uint8{1, 1, 1}, want: [3]uint8{3, 2}, seat: [3]uint8{0, 1},
		size: complete},
	"an adder dies":  {adds: [3]uint8{1, 1}, want: [3]uint8{2, 1}, seat: [3]uint8{0, 1}, deaths: true},
	"dies, one seat": {adds: [3]uint8{1, 1}, want: [3]uint8{2, 2}, seat: [3]uint8{0, 0}, deaths: true},
	"joins and dies": {adds: [3]uint8{0, 0, 2}, want: [3]uint8{2, 1}, seat: [3]uint8{0, 1},
		deaths: true, joins: true},
}

var countMutants = []struct {
	base string
	bug  countBug
	text string
}{
	{"two seats", cRungFirst, "rung before wake"},
	{"two seats", cNoLook, "no second look after arming"},
	{"two seats", cLateEpoch, "epoch loaded after the second look"},
	{"two seats", cLateThreshold, "threshold stored after the second look"},
	{"two seats", cSameArming, "armed once for several sleeps"},
	{"two seats", cWakeOne, "wake one"},
	{"two seats", cWaiterDisarms, "a waiter that leaves marks the arming rung"},
	{"one seat", cLeaveForgetsOthers, "the seat's threshold goes with the first who leaves"},
	{"one seat", cNoHandOn, "a leader leaves without naming another"},
	{"one seat", cServeSelfOnly, "the leader looks for itself only"},
	{"one seat", cNoFollowerLook, "a follower parks without a look"},
	{"joins and dies", cSilentJoin, "a handle comes without waking"},
	{"joins and dies", cScanFirst, "handles looked for before arming"},
}

func (m countModel) with(b countBug) protocol[countState] {
	m.bug = b
	return countProtocol{&m}
}

func TestModelCounterLosesNothing(t *testing.T) {
	shmtest.Long(t)
	for name, m := range countVariants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if m.size > modelSize() {
				t.Skip("explored with -model.full only")
			}
			o := explore(m.with(cNone), false)
			t.Logf("%-16s %v", name, o)
			compare(t, countTitle+": "+name, o)
			if o.resting == 0 || o.stuck > 0 {
				t.Errorf("%d states asleep, %d stuck", o.resting, o.stuck)
			}
			if o.lost+o.muted > 0 {
				t.Errorf("shortest run:%s", interleaving(m.with(cNone)))
			}
		})
	}
}

func TestModelCounterCatchesMutants(t *testing.T) {
	shmtest.Long(t)
	for _, c := range countMutants {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			o := explore(countVariants[c.base].with(c.bug), !*modelFull)
			t.Logf("%-52s %v", c.text, o)
			if o.lost+o.muted == 0 {
				t.Errorf("the mutant survives: %v", o)
			}
		})
	}
}
