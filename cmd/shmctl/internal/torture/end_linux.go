package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// newReport begins the report of a run.
func newReport(o Options, roles []*role) *Report {
	r := &Report{Roles: map[string]*RoleReport{}}
	var steps []crash.Label
	if o.Steps {
		steps = []crash.Label{}
	}
	for _, role := range roles {
		r.Roles[role.name] = &RoleReport{Places: role.places, Counts: map[string]uint64{}}
		if o.Steps {
			steps = append(steps, role.steps...)
		}
	}
	r.Outcome = NewOutcome(o.Seed, o.UntilSteps, steps)
	return r
}

// stop stops a process, kills others meanwhile, and looks whether it still has what it had.
func (s *supervisor) stop(p *proc) error {
	pid := p.PID()
	s.mu.Lock()
	ended := s.notes.stopped(p.process(), spin.Now())
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		ended(spin.Now())
		s.mu.Unlock()
	}()
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return nil
	}
	for state := ""; state != "T"; state, _ = stat(pid) { // else it could still give something up
		select {
		case <-p.Done():
			return nil
		case <-time.After(time.Millisecond):
		}
	}
	s.mu.Lock()
	s.report.Stops++
	s.report.Roles[p.role.name].Stops++
	s.mu.Unlock()
	s.frozen = p
	defer func() { s.frozen = nil }()
	var check func() string
	if p.role.possession != nil {
		check = p.role.possession(s, p)
	}
	until := time.Now().Add(time.Duration(s.rnd.Int64N(int64(stopLongest))))
	var err error
	for time.Now().Before(until) && err == nil {
		select {
		case <-s.died: // at a step: others go on without it
		case <-time.After(s.pause()):
			if other := s.pick(s.canKill); other != nil {
				err = s.kill(other)
			}
		}
		err = errors.Join(err, s.reviveAll())
	}
	if check != nil {
		if what := check(); what != "" && !p.Over() {
			s.broken(p.role.name, kindUsurped, 1, "%s %d was stopped, and %s", p.role.name, p.index,
				what)
		}
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	return err
}

// end has everybody finish, or kills them.
func (s *supervisor) end(good bool) {
	if good {
		for _, phase := range []uint64{phaseStop, phaseDrain} {
			s.ledger.word(wordPhase).Store(phase)
			for _, p := range s.procs {
				if p.role.drains == (phase == phaseDrain) {
					s.finish(p)
				}
			}
		}
	}
	for _, p := range s.procs {
		if p.Process != nil {
			p.Kill()
		}
	}
}

// finish waits for a process to end by itself. Those that others wait for have successors, should
// they die at a step.
func (s *supervisor) finish(p *proc) {
	for !p.empty {
		if !s.awaitEnd(p) {
			// What its goroutines do goes to standard error.
			p.Signal(syscall.SIGQUIT)
			s.broken(p.role.name, kindHung, 1, "%s %d (pid %d) did not end in %v", p.role.name,
				p.index, p.PID(), 2*patience)
			return
		}
		if p.State().Success() {
			s.mu.Lock()
			s.notes.closed[p.process()] = true
			s.mu.Unlock()
			return
		}
		if !s.succeed(p) {
			return
		}
	}
}

// succeed counts the end of a process, and starts the next if others wait for it.
func (s *supervisor) succeed(p *proc) bool {
	if s.ended(p); !p.role.drains || p.step == crash.None {
		return false
	}
	s.o.Steps = false // those that end the run are to reach the end
	if err := s.start(p); err != nil {
		s.broken(p.role.name, kindFailed, 1, "%v", err)
		return false
	}
	return true
}

// awaitEnd waits for the end of a process, for a while, and has those that read go on reading.
func (s *supervisor) awaitEnd(p *proc) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for since := stage.Lifetime(); stage.Lifetime()-since < 2*patience; {
		select {
		case <-p.Done():
			return true
		case <-tick.C:
		}
		s.dumpHung()
		for _, q := range s.procs {
			if q != p && q.role.drains && q.step != crash.None && q.fell() && q.Killed() {
				s.succeed(q)
			}
		}
	}
	return false
}

// check looks at the end whether what must hold does, and what is left.
func (s *supervisor) check() {
	s.sum()
	for _, r := range s.roles {
		if r.check != nil {
			r.check(s, r)
		}
		if r.leftovers == nil {
			continue
		}
		for _, what := range r.leftovers(s) {
			s.broken(r.name, kindLeaked, 1, "%s", what)
		}
	}
	for _, what := range s.leftovers() {
		s.broken("", kindLeaked, 1, "%s", what)
	}
	s.unfounded()
	s.close()
}

// close completes the report with what is known so far.
func (s *supervisor) close() {
	s.sum()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.notes.due {
		s.notes.count(key.kind, func(c *Duties) { c.Open++ })
	}
	s.report.Noticed.Add(&Noticed{AllNs: s.notes.ns, Duties: s.notes.duties})
	if s.o.UntilSteps > 0 {
		total := map[string]uint64{}
		for step, n := range s.report.Steps {
			total[step] = n + s.o.Before[step]
		}
		s.report.Below = Below(total, s.o.UntilSteps)
	}
	s.report.Machine = stage.Here()
}

// sum takes into the report what the ledger and others counted. The caller has the mutex, or is
// alone.
func (s *supervisor) sum() {
	for _, r := range s.roles {
		report := s.report.Roles[r.name]
		report.Tally = Tally{Found: s.found[r.name]}
		for name, at := range r.counts {
			report.Counts[name] = s.ledger.region(r.name)[at].Load()
		}
		if r.sum != nil {
			r.sum(s, r, report)
		}
	}
	s.report.total()
}

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

// leftovers collects what the dead left, and returns what is there beside.
func (s *supervisor) leftovers() (left []string) {
	all, err := ctl.Collect(s.dir, ctl.CollectOptions{Remove: true})
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range all {
		if r.Fate != ctl.FateRemoved {
			left = append(left, fmt.Sprintf("%s, which is %s: %s", r.Name, r.Fate, r.Reason))
		}
	}
	entries, err := os.ReadDir(s.dir.Path())
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, "file "+e.Name())
	}
	return left
}

// scratchLeft collects what churners made.
func scratchLeft(s *supervisor) (left []string) {
	for i := range scratchNames {
		left = append(left, collect(s.dir, scratchName(i))...)
	}
	for i := range churners {
		left = append(left, removeOwn(s.dir, i)...)
		left = append(left, collect(s.dir, crowdedName(i))...)
	}
	return left
}

// collect removes a queue that the dead left. One that was persistent, or left to a successor, has
// to be adopted and destroyed.
func collect(d *shm.Dir, name string) []string {
	if cq.Remove(cq.Named(d, name)) == nil {
		return nil
	}
	q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
	if err == nil {
		err = q.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cq.ErrClosed) {
		err = nil
	}
	if err = errors.Join(err, cq.Remove(cq.Named(d, name))); err != nil {
		return []string{fmt.Sprintf("%s cannot be collected: %v", name, err)}
	}
	return nil
}
