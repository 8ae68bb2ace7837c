//go:build shmring_steps

package torture

import (
	"slices"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// TestEveryStepIsReached: a label at which nobody dies proves nothing. Roles that the crowd of all
// leaves no time to get there go on without it, with fewer others each time.
func TestEveryStepIsReached(t *testing.T) {
	o := Options{Duration: 20 * time.Second, UntilSteps: 1, Steps: true, Before: map[string]uint64{}}
	for until := time.Now().Add(10 * time.Minute); ; {
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		t.Logf("%v: nobody yet at %v", time.Duration(r.DurationNs).Round(time.Second), r.Below)
		if len(r.Below) == 0 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("nobody died at %v", r.Below)
		}
		for l, n := range r.Steps {
			o.Before[l] += n
		}
		o.Roles = nil
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
