//go:build shmring_steps

package torture

import (
	"testing"
	"time"

	"github.com/shmring/shmring/shm/crash"
)

// TestEveryStepIsReached: a label that nobody passes proves nothing, and nobody dies at it.
func TestEveryStepIsReached(t *testing.T) {
	passed := map[crash.Label]uint64{}
	for _, l := range crash.Labels() {
		passed[l] = 0
	}
	r, err := Run(t.Context(), Options{Duration: 8 * time.Second, Seed: 5, Steps: true,
		passed: passed})
	if err != nil {
		t.Fatalf("%v; report %+v", err, r)
	}
	for _, l := range crash.Labels() {
		if passed[l]+r.Steps[l.String()] == 0 {
			t.Errorf("%v was not reached", l)
		}
	}
	aimed := map[crash.Label]bool{}
	for _, labels := range stepsOf {
		for _, l := range labels {
			aimed[l] = true
		}
	}
	for _, l := range crash.Labels() {
		if !aimed[l] {
			t.Errorf("no role is sent to %v", l)
		}
	}
}
