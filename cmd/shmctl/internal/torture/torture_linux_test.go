package torture

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
)

func TestMain(m *testing.M) {
	if ok, code := stage.Enter(os.Args[1:], Tool); ok {
		os.Exit(code)
	}
	shmtest.Main(m, confinedRoles)
}

func TestNothingIsLost(t *testing.T) {
	shmtest.Conforms(t)
	// By kills and not by time: a slow machine has to see as much. Whom they hit is chance.
	for seed := uint64(1); ; seed++ {
		r, err := Run(t.Context(), Options{Kills: 60, Duration: time.Minute, Seed: seed,
			Steps: crash.On})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		if r.Kills > 0 && r.Read > 0 && r.Read >= r.Published &&
			r.Roles["reader"].Counts["adoptions"] >= 2 {
			return
		}
		if seed == 5 {
			t.Fatalf("not much of a torture: %+v", r)
		}
	}
}

// TestFindsWhatIsBroken has readers report to the ledger as those of a library would that breaks a
// promise, and expects the count that it belongs to.
func TestFindsWhatIsBroken(t *testing.T) {
	shmtest.Long(t)
	for spoil, found := range map[string]func(r *Report) uint64{
		spoilMark: func(r *Report) uint64 { return r.Duplicate },
		spoilSkip: func(r *Report) uint64 { return r.Lost },
	} {
		t.Run(spoil, func(t *testing.T) {
			r, err := Run(t.Context(), Options{Duration: 5 * time.Minute, Seed: 2, spoil: spoil,
				Roles: []string{"reader"}})
			if !errors.Is(err, ErrViolation) || found(r) == 0 || len(r.Violations) == 0 {
				t.Errorf("%v; report %+v", err, r)
			}
		})
	}
}

// TestInterrupted: a run that is ended early tells what it found.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("seen enough")
	r, err := Run(ctx, Options{Duration: time.Hour, Seed: 4, Roles: []string{"reader", "writer"},
		Progress: func(_ time.Duration, r *Report) {
			if r.Read > 0 && r.Kills > 0 {
				cancel(enough)
			}
		}})
	if !errors.Is(err, enough) || errors.Is(err, ErrViolation) {
		t.Fatal(err)
	}
	if r == nil || !r.Interrupted || r.Kills == 0 || r.Read == 0 || r.DurationNs == 0 ||
		r.Machine.CPUs == 0 {
		t.Fatalf("report %+v", r)
	}
	var b strings.Builder
	r.Print(&b)
	if !strings.Contains(b.String(), "\ninterrupted") {
		t.Error(b.String())
	}
}
