package torture

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/shmtest"
)

// needUsers skips where processes of other users cannot be had.
func needUsers(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("only root starts processes of other users"))
	}
}

// TestReadersAreFollowed: between users, with readers that have successors.
func TestReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	areFollowed(t, &queuesBetween)
}

// TestEventReadersAreFollowed: likewise, with event queues.
func TestEventReadersAreFollowed(t *testing.T) {
	shmtest.Conforms(t)
	areFollowed(t, &eventsBetween)
}

func areFollowed(t *testing.T, b *between) {
	needUsers(t)
	played := map[string]uint64{}
	for seed := uint64(3); ; seed++ { // whom kills hit, and how readers wait, is chance
		r, err := Run(t.Context(), Options{Roles: []string{b.writer}, Kills: 60,
			Duration: time.Minute, Seed: seed, Steps: crash.On})
		if err != nil {
			t.Fatalf("%v; report %+v", err, r)
		}
		counts, missing := r.Roles[b.reader].Counts, 0
		for _, way := range b.ways {
			if played[way.name] += counts[way.name]; played[way.name] == 0 {
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

// TestFindsWhatIsBrokenBetweenUsers: what readers or writers do wrong on purpose is found, and
// counted where it belongs.
func TestFindsWhatIsBrokenBetweenUsers(t *testing.T) {
	shmtest.Long(t)
	needUsers(t)
	for _, c := range []struct {
		b     *between
		spoil string
		found func(*Found) uint64
	}{
		{&queuesBetween, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{&eventsBetween, spoilMark, func(f *Found) uint64 { return f.Duplicate }},
		{&eventsBetween, spoilSkip, func(f *Found) uint64 { return f.Lost }},
		{&eventsBetween, spoilText, func(f *Found) uint64 { return f.Unpublished }},
	} {
		t.Run(c.b.reader+": "+c.spoil, func(t *testing.T) {
			r, err := Run(t.Context(), Options{Roles: []string{c.b.reader},
				Duration: 5 * time.Minute, Seed: 2, spoil: c.spoil})
			if !errors.Is(err, ErrViolation) || c.found(&r.Roles[c.b.reader].Found) == 0 {
				t.Errorf("%v; report %+v", err, r)
			}
		})
	}
}
