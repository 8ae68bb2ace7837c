package torture

import (
	"math"

	"github.com/shmring/shmring/shm/crash"
)

// often are steps that a process passes many times a second.
var often = map[crash.Label]bool{crash.Filled: true, crash.Stamped: true,
	crash.PublishStored: true, crash.PublishEnded: true, crash.TakeMarks: true,
	crash.PeekChosen: true, crash.PeekStored: true, crash.Releasing: true, crash.Released: true}

// aim chooses where a process of a role is to die, and at which passage: at the step that killed
// least often, counting a little how often it was aimed at, as most who were sent to a step that is
// passed seldom die of something else. None is a process that dies from outside.
func (s *supervisor) aim(r *role) (crash.Label, int) {
	if len(r.steps) == 0 {
		return crash.None, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	score := func(l crash.Label) uint64 {
		return 8*(s.report.Steps[l.String()]+s.o.Before[l.String()]) + s.aimed[l]
	}
	best, from := crash.None, s.rnd.IntN(len(r.steps))
	for i := range r.steps {
		l := r.steps[(from+i)%len(r.steps)]
		if best == crash.None || score(l) < score(best) {
			best = l
		}
	}
	if s.o.UntilSteps > 0 && s.report.Steps[best.String()] >= s.o.UntilSteps {
		return crash.None, 0 // room for those that lag behind
	}
	s.aimed[best]++
	if often[best] {
		return best, 1 + s.rnd.IntN(500)
	}
	return best, 1 + s.rnd.IntN(3)
}

// leastKilled returns how often the step has killed that killed least often, among those at which
// anybody can die. The caller has the mutex.
func (s *supervisor) leastKilled() uint64 {
	least := uint64(math.MaxUint64)
	for _, r := range s.roles {
		for _, l := range r.steps {
			least = min(least, s.report.Steps[l.String()])
		}
	}
	return least
}
