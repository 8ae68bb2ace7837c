//go:build shmring_steps

package torture

import (
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// TestEveryStepIsReached: a label at which nobody dies proves nothing.
func TestEveryStepIsReached(t *testing.T) {
	r, err := Run(t.Context(), Options{Duration: 10 * time.Minute, UntilSteps: 1, Steps: true})
	if err != nil {
		t.Fatalf("%v; report %+v", err, r)
	}
	if len(r.Below) > 0 {
		t.Errorf("nobody died at %v", r.Below)
	}
	aimed := map[crash.Label]bool{}
	for _, r := range table {
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
