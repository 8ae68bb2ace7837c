package soak

import (
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
)

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
