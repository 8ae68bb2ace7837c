package soak

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
)

// played returns a report of so many rounds, in which each step killed so often.
func played(rounds, deaths uint64) *Report {
	r := &Report{Rounds: rounds, Outcome: torture.NewOutcome(0, 0, crash.Labels())}
	for _, l := range crash.Labels() {
		r.Steps[l.String()] = deaths
	}
	return r
}

// TestWhatLacksIsPlayed: the one step that is not done is gone for, until it is.
func TestWhatLacksIsPlayed(t *testing.T) {
	for _, l := range crash.Labels() {
		if _, ok := smallest(playable(), l); !ok && torture.Lacks("device") == nil {
			t.Errorf("nobody plays at %v", l)
		} else if !ok {
			continue // it takes a device, or another user
		}
		r := played(castFirst, 1000)
		r.Steps[l.String()] = 0
		roles, chosen := r.cast(1)
		if steps := torture.Steps(roles); !chosen || !slices.Contains(steps, l) {
			t.Errorf("%v lacks, played: %v, chosen: %v", l, roles, chosen)
		}
	}
	if roles, chosen := played(castFirst, 1000).cast(1); chosen {
		t.Errorf("nothing lacks, and %v was chosen", roles)
	}
}

// TestSeedReplaysCasts: with the same deaths before.
func TestSeedReplaysCasts(t *testing.T) {
	differ := 0
	for seed := range uint64(50) {
		a, _ := played(castFirst, 3).cast(seed)
		b, _ := played(castFirst, 3).cast(seed)
		other, _ := played(castFirst, 3).cast(seed + 1)
		if !slices.Equal(a, b) {
			t.Errorf("seed %d: %v, and again %v", seed, a, b)
		}
		if !slices.Equal(a, other) {
			differ++
		}
	}
	if differ == 0 {
		t.Error("all seeds choose alike")
	}
}

// TestEveryRoleIsPlayed: whatever lacks, all roles together have their turn.
func TestEveryRoleIsPlayed(t *testing.T) {
	all := playable()
	for rounds := range uint64(2 * castTurn) {
		roles, _ := played(rounds, 3).cast(rounds)
		if rounds%castTurn == castTurn-1 && !slices.Equal(roles, all[len(all)-1].roles) {
			t.Errorf("round %d has %v", rounds, roles)
		}
	}
	if torture.Lacks("device") == nil && !slices.Equal(all[len(all)-1].roles, torture.Roles()) {
		t.Errorf("the last cast is %v", all[len(all)-1].roles)
	}
}

// TestBelow: a step that nobody died at is below, one that killed so often is not.
func TestBelow(t *testing.T) {
	r := played(1, 7)
	r.Steps[crash.Filled.String()] = 6
	r.Steps[crash.PeekChosen.String()] = 0
	want := []string{crash.Filled.String(), crash.PeekChosen.String()}
	if got := torture.Below(r.Steps, 7); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	r.UntilSteps, r.Below = 7, torture.Below(r.Steps, 7)
	if r.enough() {
		t.Error("two steps are below, and that is enough")
	}
	r.Below = nil
	if !r.enough() {
		t.Error("no step is below, and that is not enough")
	}
}
