package torture

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

func aiming(seed uint64, o Options) *supervisor {
	return &supervisor{o: o, rnd: rand.New(rand.NewPCG(seed, 0)),
		report: &Report{Steps: map[string]uint64{}}}
}

// TestAim: only at steps that lack, more often at those that lack more, and as the seed says.
func TestAim(t *testing.T) {
	r := writerRole()
	before := map[string]uint64{}
	for _, l := range r.steps {
		before[l.String()] = 100
	}
	before[crash.Filled.String()], before[crash.Stamped.String()] = 10, 80
	s := aiming(1, Options{Enough: 100, Before: before})
	s.roles = []*role{r}
	again := aiming(1, Options{Enough: 100, Before: before})
	at := map[crash.Label]int{}
	for range 200 {
		l, n := s.aim(r)
		if m, k := again.aim(r); l != m || n != k {
			t.Fatalf("%v:%d, and with the same seed %v:%d", l, n, m, k)
		}
		at[l]++
	}
	if at[crash.Filled]+at[crash.Stamped] != 200 || at[crash.Stamped] == 0 ||
		at[crash.Filled] < 2*at[crash.Stamped] {
		t.Errorf("at %v", at)
	}
	s.report.Steps[crash.Filled.String()], s.report.Steps[crash.Stamped.String()] = 90, 20
	if l, _ := s.aim(r); l != crash.None {
		t.Errorf("at %v, which killed often enough", l)
	}
	if least := s.leastKilled(); least != 100 {
		t.Errorf("%d", least)
	}
	// Without a goal there is always something to aim at.
	if l, _ := aiming(1, Options{Before: before}).aim(r); l != crash.Filled && l != crash.Stamped {
		t.Errorf("at %v, while others killed less often", l)
	}
}

// TestPick: nobody is killed from outside who is on its way to a step, or is safe.
func TestPick(t *testing.T) {
	s := aiming(1, Options{Steps: true})
	r := &role{steps: []crash.Label{crash.Filled}}
	sent := &proc{role: r, step: crash.Filled, since: time.Now()}
	sent.spared = s.spare(sent, true)
	s.procs = []*proc{sent, {role: &role{safe: true}}, {role: r, empty: true}}
	if p := s.pick(s.canKill); p != nil {
		t.Errorf("picked %+v", p)
	}
	other := &proc{role: r, since: time.Now().Add(-time.Hour)}
	s.procs = append(s.procs, other)
	other.spared = s.spare(other, false)
	for range 20 {
		if p := s.pick(s.canKill); p != nil && p != other {
			t.Errorf("picked %+v", p)
		}
	}
	sent.since = other.since
	if !s.canKill(sent) {
		t.Error("one that does not get to its step lives for ever")
	}
}
