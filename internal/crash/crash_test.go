package crash_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/testdata"
)

// spelt returns the constants of the steps as their names are to be: each stands alone in a line of
// its own, in order.
func spelt(t *testing.T) (names []string) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	constants := regexp.MustCompile(`(?m)^\t([A-Z]\w+)( +//.*)?$`)
	for _, m := range constants.FindAllStringSubmatch(string(text), -1) {
		words := regexp.MustCompile(`[A-Z][a-z]+`).FindAllString(m[1], -1)
		names = append(names, strings.ToLower(strings.Join(words, "-")))
	}
	return names
}

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
	if want := spelt(t); !slices.Equal(names, want) {
		t.Errorf("steps are named %q, their constants %q", names, want)
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
