// The bell's protocol, explored state by state. The model's steps carry the names of the code's
// (P: producer, R: read, S: wait set, T: trywait), so the two can be read side by side.
//
// Facts of the model: a producer or signaller may stop for ever after any step; readers may leave
// at every return; armings and epochs are not capped; only finished publishes count as lost. With
// a plain publish each producer has a store buffer that drains in order, at any moment, and the
// reader's barrier empties the buffers one producer after the other.
//
// A reader's process may die at any step, also while it takes over, and another takes over, any
// number of times, with a domain of its own that the producers find by its generation.
//
// Not in the model: parking or draining several lanes is one step, and so is taking bits together
// with merging them under the lock; loads are not reordered (the barrier orders them, too); wrap of
// epoch and sequence, which wrap_test.go explores with its bounds, and that of generations;
// take-over of the reader while a producer's death is noticed; descriptors of several channels; a
// producer that has no descriptor to write to, or that cannot reach a domain that exists.
//
// What is explored, how many states that is, and which deviations are caught, stands in
// testdata/guards_models.md. Where to find it: take-over of a lane s, of a reader z, of both s5 to
// s7; bell generation z1, z2 and keepsBell; death notices q; descriptors and keeper i, v, w; attach
// while arming t, ga, gj; set with channel and direct read p, u5; threshold with a set gx, gy, with
// a channel gl, with a descriptor gm; latch with a set o; threshold, latch and a set whose user
// reads in many_test.go; summary word b3 to b5, u to u3, with descriptors v4, v5, w4, w5;
// frames in frames_test.go; lanes without room in room_test.go; readers of other users
// that follow one another in follow_test.go; store buffers in every variant, as "reader
// pays".
package model

import (
	"flag"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

var modelFull = flag.Bool("model.full", false, "explore every variant and count every loss")

func modelSize() size {
	switch {
	case *modelFull:
		return complete
	case testing.Short() || raceBuild:
		return smallest
	}
	return short
}

var payers = map[bool]string{false: "producer pays", true: "reader pays"}

func TestModelLosesNothing(t *testing.T) {
	for i, v := range variants {
		if testing.Short() && i%3 != 0 {
			continue // a sample
		}
		for _, plain := range []bool{false, true} {
			if v.size > modelSize() || v.plainOnly && !plain {
				continue
			}
			// The short forms explore the larger variants as they are built only.
			if !plain && v.size > smallest && modelSize() < complete {
				continue
			}
			if !plain && (raceBuild || testing.Short()) {
				continue
			}
			t.Run(v.key+"/"+payers[plain], func(t *testing.T) {
				t.Parallel()
				run, trace := v.explored(plain, none)
				o := run(false)
				t.Logf("(%s) %-46s %-13s %v", v.key, v.text, payers[plain], o)
				if o.states == 0 || o.resting == 0 {
					t.Errorf("nothing explored: %d states, %d asleep", o.states, o.resting)
				}
				compare(t, v.key+" "+payers[plain], o)
				if o.stuck > 0 {
					t.Errorf("%d states are stuck", o.stuck)
				}
				if o.lost+o.muted > 0 {
					t.Errorf("lost %d, muted %d; shortest run:%s", o.lost, o.muted, trace())
				}
			})
		}
	}
}

func TestModelCatchesMutants(t *testing.T) {
	shmtest.Long(t)
	for _, m := range mutants {
		for _, plain := range []bool{false, true} {
			if m.size > modelSize() || m.plain && !plain || modelSize() == smallest && plain != m.plain {
				continue
			}
			t.Run(m.base+"/"+m.text+"/"+payers[plain], func(t *testing.T) {
				t.Parallel()
				o := m.explore(t, plain)
				if o.lost+o.muted == 0 {
					t.Errorf("the mutant survives: %v", o)
				}
			})
		}
	}
}

func TestModelNotRequired(t *testing.T) {
	if modelSize() < complete {
		t.Skip("explored with -model.full only: it asserts nothing")
	}
	for _, m := range notRequired {
		m.explore(t, m.plain)
	}
}

func (m mutant) explore(t *testing.T, plain bool) outcome {
	for _, v := range variants {
		if v.key != m.base {
			continue
		}
		run, _ := v.explored(plain, m.bug)
		o := run(modelSize() < complete)
		t.Logf("(%s) %-52s %-13s %v", m.base, m.text, payers[plain], o)
		return o
	}
	t.Fatalf("no variant %q", m.base)
	return outcome{}
}

// TestModelPrintsInterleavings keeps the report of a loss working: it is what a failure needs.
func TestModelPrintsInterleavings(t *testing.T) {
	for _, v := range variants {
		if v.key == "a" {
			_, trace := v.explored(true, noBarrier)
			run := trace()
			t.Logf("plain publish and nobody pays:%s", run)
			if !strings.Contains(run, R4t.String()) || !strings.Contains(run, visible.String()) {
				t.Error("the run does not show the tail becoming visible after the second look")
			}
		}
	}
}
