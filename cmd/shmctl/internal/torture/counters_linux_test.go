package torture

import (
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/internal/crash"
)

// TestDoubtStays: that a process died when it had added says nothing of what the one before in its
// place was going to add.
func TestDoubtStays(t *testing.T) {
	l, err := makeLedger(filepath.Join(t.TempDir(), ledgerFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	s := &supervisor{ledger: l, frozen: &proc{}} // so that nobody is waited for
	p := &proc{index: 1, shot: true}
	mine := s.tally().place(p.index)
	die := func(adds uint64, added bool, want uint64) {
		t.Helper()
		startCounter(s, p)
		mine[countIntent].Add(adds)
		if p.shot = !added; added {
			p.step = crash.CountAdded
		}
		if err := counterDied(s, p); err != nil {
			t.Fatal(err)
		}
		if low := s.tally().added(); low != want {
			t.Errorf("%d are surely added, want %d", low, want)
		}
	}
	die(2, false, 0)
	die(1, true, 1)
	die(3, false, 1)
	die(4, true, 5)
	if high := s.tally().intended(); high != 10 {
		t.Errorf("%d are added at most, want 10", high)
	}
}
