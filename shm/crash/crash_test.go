package crash_test

import (
	"testing"

	"github.com/shmring/shmring/shm/crash"
)

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range crash.Labels() {
		name := l.String()
		if got, ok := crash.Parse(name); name == "" || seen[name] || !ok || got != l {
			t.Errorf("label %d: name %q, parsed as %d, %v", l, name, got, ok)
		}
		seen[name] = true
	}
	if _, ok := crash.Parse("none"); ok {
		t.Error(`"none" is a step`)
	}
}

// TestOffCostsNothing: without the tag a step must not even count.
func TestOffCostsNothing(t *testing.T) {
	before := crash.Passed(crash.Filled)
	crash.At(crash.Filled)
	if moved := crash.Passed(crash.Filled) != before; moved != crash.On {
		t.Errorf("counted: %v, built with steps: %v", moved, crash.On)
	}
}
