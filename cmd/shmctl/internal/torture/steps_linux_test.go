//go:build shmring_steps

package torture

import (
	"slices"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// TestEveryStepIsReached: a label that nobody passes proves nothing, and nobody dies at it.
func TestEveryStepIsReached(t *testing.T) {
	// Some steps need a death at the right moment before: more runs, if one was not enough.
	roles, err := choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	var missing []crash.Label
	for _, r := range roles {
		missing = append(missing, r.steps...)
	}
	// And longer ones: a slow machine gets through little in the time of the first.
	length := 6 * time.Second
	for seed := uint64(5); len(missing) > 0 && seed < 12; seed++ {
		passed := map[crash.Label]uint64{}
		for _, l := range crash.Labels() {
			passed[l] = 0
		}
		r, err := Run(t.Context(), Options{Duration: length, Seed: seed, Steps: true,
			passed: passed})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		length = min(2*length, time.Minute)
		missing = slices.DeleteFunc(missing, func(l crash.Label) bool {
			return passed[l]+r.Steps[l.String()] > 0
		})
	}
	if len(missing) > 0 {
		t.Errorf("not reached: %v", missing)
	}
	aimed := map[crash.Label]bool{}
	for _, r := range table() {
		for _, l := range r.steps {
			aimed[l] = true
		}
	}
	for _, l := range crash.Labels() {
		if !aimed[l] {
			t.Errorf("no role is sent to %v", l)
		}
	}
}
