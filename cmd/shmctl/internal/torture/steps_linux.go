package torture

import (
	"math"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// often are steps that a process passes many times a second.
var often = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true,
	crash.PublishStored: true, crash.PublishEnded: true, crash.TakeMarks: true,
	crash.PeekChosen: true, crash.PeekStored: true, crash.Releasing: true, crash.Released: true}

// aim chooses where a process of a role is to die, and at which passage: most likely at a step that
// lags far behind, in this run and those before. None is a process that dies from outside; there is
// nothing left to do at its steps, then.
func (s *supervisor) aim(r *role) (crash.Label, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.o.Enough
	if want == 0 { // nobody lags behind those that killed most, by more than they did
		for _, l := range r.steps {
			want = max(want, s.killed(l)+1)
		}
	}
	chosen, sum := crash.None, uint64(0)
	for _, l := range r.steps {
		if n := s.killed(l); n < want {
			weight := (want - n) * (want - n)
			if sum += weight; s.rnd.Uint64N(sum) < weight {
				chosen = l
			}
		}
	}
	switch {
	case chosen == crash.None:
		return chosen, 0
	case often[chosen] && chosen >= crash.AppHello: // packets come less often than entries
		return chosen, 1 + s.rnd.IntN(100)
	case often[chosen]:
		return chosen, 1 + s.rnd.IntN(500)
	}
	return chosen, 1 + s.rnd.IntN(3)
}

// sent says that all but one in so many are sent to steps: more of them while there is a number of
// deaths that steps lack.
func (s *supervisor) sent() int {
	if s.o.Enough > 0 {
		return 8
	}
	return 4
}

// killed returns how often a step killed, in this run and those before. The caller has the mutex.
func (s *supervisor) killed(l crash.Label) uint64 {
	return s.report.Steps[l.String()] + s.o.Before[l.String()]
}

// leastKilled returns how often the step has killed that killed least often, among those at which
// anybody can die. The caller has the mutex.
func (s *supervisor) leastKilled() uint64 {
	least := uint64(math.MaxUint64)
	for _, r := range s.roles {
		for _, l := range r.steps {
			least = min(least, s.killed(l))
		}
	}
	return least
}

// spare returns how long a process that has just been started is not killed from outside.
func (s *supervisor) spare(p *proc, aimed bool) time.Duration {
	switch {
	case !s.o.Steps:
		return 0
	case p.step != crash.None:
		return p.role.patience()
	case aimed || len(p.role.steps) == 0: // others need what it does
		return time.Duration(s.rnd.Int64N(int64(spareHelper)))
	}
	return time.Duration(s.rnd.Int64N(int64(spareOther)))
}
