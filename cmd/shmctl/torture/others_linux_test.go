package torture

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/shm/crash"
	"github.com/shmring/shmring/shm/shmtest"
)

// needUsers skips where processes of other users cannot be had.
func needUsers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "processes of other users", syscall.EPERM)
	}
}

// TestReadersAreFollowed: between users, with readers that have successors.
func TestReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	needUsers(t)
	played := map[string]uint64{}
	for seed := uint64(3); ; seed++ { // whom kills hit, and how readers wait, is chance
		r, err := Run(t.Context(), Options{Roles: []string{"others-writer"}, Kills: 60,
			Duration: time.Minute, Seed: seed, Steps: crash.On})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		counts, missing := r.Roles["others-reader"].Counts, 0
		for _, way := range othersWayNames {
			if played[way] += counts[way]; played[way] == 0 {
				missing++
			}
		}
		if r.Kills > 0 && r.Read > 0 && counts["turns"] >= 2 && missing == 0 {
			return
		}
		if seed == 13 {
			t.Fatalf("not much of a torture: %+v; ways of waiting: %v", r, played)
		}
	}
}

// TestFindsForgottenMarks: the ledger finds entries that come again as if they were new.
func TestFindsForgottenMarks(t *testing.T) {
	needUsers(t)
	r, err := Run(t.Context(), Options{Roles: []string{"others-writer"},
		Duration: 5 * time.Minute, Seed: 2, spoil: spoilMark})
	if !errors.Is(err, ErrViolation) || r.Duplicate == 0 {
		t.Errorf("%v; report %+v", err, r)
	}
}
