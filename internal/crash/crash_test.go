package crash_test

import (
	"testing"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/testdata"
)

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	var names []string
	for _, l := range crash.Labels() {
		name := l.String()
		if got, ok := crash.Parse(name); name == "" || seen[name] || !ok || got != l {
			t.Errorf("label %d: name %q, parsed as %d, %v", l, name, got, ok)
		}
		seen[name] = true
		names = append(names, name)
	}
	if err := testdata.CheckFrozen(testdata.FrozenStep, names); err != nil {
		t.Error(err)
	}
	if _, ok := crash.Parse("none"); ok {
		t.Error(`"none" is a step`)
	}
}

// TestPassingStep: what is called at a step is called once, at the passage that was asked for, and
// the process goes on. Without the tag a step is nothing.
func TestPassingStep(t *testing.T) {
	crash.At(crash.Stamped)
	var calls int
	crash.Passing(crash.Stamped, 2, func() { calls++ })
	for i, want := range []int{0, 1, 1} {
		crash.At(crash.Filled)
		crash.At(crash.Stamped)
		if !crash.On {
			want = 0
		}
		if calls != want {
			t.Errorf("%d calls after %d passages, want %d", calls, i+1, want)
		}
	}
}
