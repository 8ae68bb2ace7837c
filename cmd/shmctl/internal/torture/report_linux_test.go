package torture

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// TestProgressHoldsNobodyUp: while somebody is told how far a run is, what processes tell is heard,
// and changes nothing of what that one was given.
func TestProgressHoldsNobodyUp(t *testing.T) {
	l, err := makeLedger(filepath.Join(t.TempDir(), ledgerFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	o := Options{Steps: true}
	roles, step := []*role{eventReaderRole()}, crash.EventPinned.String()
	s := &supervisor{ledger: l, roles: roles, report: newReport(o, roles), found: map[string]Found{}}
	told := false
	s.o.Progress = func(_ time.Duration, r *Report) {
		if told = true; !s.mu.TryLock() {
			t.Error("nobody else is heard")
			return
		}
		defer s.mu.Unlock()
		l.region("event-reader")[heldTimes].Add(1)
		s.count("event-reader", kindLost, 3, "lost")
		s.report.Steps[step]++
		if s.sum(); s.report.Lost != 3 || s.report.Roles["event-reader"].Counts["adoptions"] != 1 {
			t.Errorf("%+v", s.report)
		}
		if r.Lost != 0 || len(r.Violations) != 0 || r.Steps[step] != 0 ||
			r.Roles["event-reader"].Lost != 0 || r.Roles["event-reader"].Counts["adoptions"] != 0 {
			t.Errorf("what it was told is now %+v", r)
		}
	}
	if s.progress(time.Second); !told {
		t.Error("it was not told")
	}
}
