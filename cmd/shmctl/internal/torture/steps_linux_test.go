//go:build shmring_steps

package torture

import (
	"slices"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// TestEveryStepIsReached: a label at which nobody dies proves nothing. Roles that the crowd of all
// leaves no time to get there go on without it.
func TestEveryStepIsReached(t *testing.T) {
	o := Options{Duration: 2 * time.Minute, UntilSteps: 1, Steps: true}
	for crowd := true; ; crowd = false {
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		if len(r.Below) == 0 {
			break
		}
		if !crowd {
			t.Fatalf("nobody died at %v", r.Below)
		}
		o.Duration, o.Before = 8*time.Minute, r.Steps
		for _, role := range table {
			if slices.ContainsFunc(role.steps, func(l crash.Label) bool {
				return slices.Contains(r.Below, l.String())
			}) {
				o.Roles = append(o.Roles, role.name)
			}
		}
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
