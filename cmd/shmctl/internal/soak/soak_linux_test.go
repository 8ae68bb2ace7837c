package soak

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
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
		r := played(1, 1000)
		r.Steps[l.String()] = 0
		roles, chosen := r.cast(1)
		if steps := torture.Steps(roles); !chosen || !slices.Contains(steps, l) {
			t.Errorf("%v lacks, played: %v, chosen: %v", l, roles, chosen)
		}
	}
	if roles, chosen := played(1, 1000).cast(1); chosen {
		t.Errorf("nothing lacks, and %v was chosen", roles)
	}
}

// TestSeedReplaysCasts: with the same deaths before.
func TestSeedReplaysCasts(t *testing.T) {
	differ := 0
	for seed := range uint64(50) {
		a, _ := played(1, 3).cast(seed)
		b, _ := played(1, 3).cast(seed)
		other, _ := played(1, 3).cast(seed + 1)
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
		if rounds%castTurn == 0 && !slices.Equal(roles, all[len(all)-1].roles) {
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

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){
		"sleeper": func() { _, _ = io.Copy(io.Discard, os.Stdin) },
	})
}

// TestFreezeGivesBack: a process that was frozen is in the control group that it was in before.
func TestFreezeGivesBack(t *testing.T) {
	freezer, err := makeFreezer()
	if err != nil {
		shmtest.Require(t, "cgroups", err)
	}
	own := freezer + "-own"
	shmtest.Must(t, os.Mkdir(own, 0o700))
	child := shmtest.Start(t, shmtest.Child(t, "sleeper"))
	defer func() {
		child.Stop(t)
		if err := errors.Join(os.Remove(own), os.Remove(freezer)); err != nil {
			t.Error(err)
		}
	}()
	pid := child.Process.Pid
	if err := os.WriteFile(own+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0); err != nil {
		shmtest.Require(t, "cgroups", err)
	}
	f := &faults{rnd: rand.New(rand.NewPCG(1, 1)), freezer: freezer}
	f.freeze(pid)
	group, err := groupOf(pid, filepath.Dir(freezer))
	if group != own || err != nil || f.done.Freezes != 1 {
		t.Errorf("in %s, was in %s: %v; %d freezes", group, own, err, f.done.Freezes)
	}
}

// TestLeftOut: what the machine lacks is left out and said, once for each reason.
func TestLeftOut(t *testing.T) {
	lacks := func(name string) error {
		switch name {
		case "device", "app":
			return errors.New("no device")
		case "others-writer":
			return errors.New("not root")
		}
		return nil
	}
	played, said := torture.Able([]string{"reader", "device", "app", "others-writer"}, lacks)
	want := []string{"device, app: no device", "others-writer: not root"}
	if !slices.Equal(said, want) || !slices.Equal(played, []string{"reader"}) {
		t.Errorf("played %q, said %q, want %q", played, said, want)
	}
}

// TestNoticesAssessed: two late notices of a hundred are too many, one is not, and a short run has
// too few to say; of many some must have been demanded.
func TestNoticesAssessed(t *testing.T) {
	for _, c := range []struct {
		notices, late int
		told          uint64
		good          bool
	}{{1000, 20, 1, false}, {1000, 9, 1, true}, {100, 50, 1, true}, {1000, 9, 0, false},
		{100, 9, 0, true}} {
		ns := make([]int64, c.notices)
		for i := range ns {
			if ns[i] = int64(30 * time.Millisecond); i < c.late {
				ns[i] = int64(2 * time.Second)
			}
		}
		var r Report
		r.Noticed.Add(&torture.Noticed{AllNs: map[string][]int64{"writer-death": ns},
			Duties: map[string]torture.Duties{"writer-death": {Demanded: c.told, Told: c.told}}})
		if r.assessNotices(); r.Good() != c.good {
			t.Errorf("%d late of %d: %v", c.late, c.notices, r.Violations)
		}
	}
}
