package torture

import (
	"time"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/crash"
)

// examineShare is the share of its time, as one of so many, for which the supervisor examines.
const examineShare = 10

// examine checks all that has a name while it is as a death at a step left it: what shmctl check
// says of objects is to hold at every moment, whoever is in the middle of what.
func (s *supervisor) examine(p *proc) {
	begin := time.Now()
	if p.shot || p.step == crash.None || begin.Before(s.examined) {
		return
	}
	r, err := ctl.Check(ctl.CheckOptions{}, s.base+"/"+queuesDir)
	s.examined = time.Now().Add((examineShare - 1) * time.Since(begin))
	s.mu.Lock()
	s.report.Checked += uint64(r.Objects)
	s.mu.Unlock()
	for _, f := range r.Findings {
		s.broken(p.role.name, kindBroken, 1, "after %s %d died at %v: %s %s: %s is %s, want %s",
			p.role.name, p.index, p.step, f.Path, f.Section, f.Invariant, f.Got, f.Want)
	}
	if err != nil {
		s.broken(p.role.name, kindBroken, 1, "after %s %d died at %v: %v", p.role.name, p.index,
			p.step, err)
	}
}
