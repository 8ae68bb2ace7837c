package torture

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
)

// proc is a place in the run, and the process that has it now.
type proc struct {
	role  *role
	index int // of the place among those of its role
	place int // among all
	*stage.Process
	start uint64      // of the process, in clock ticks
	since time.Time   // of the start
	step  crash.Label // at which it dies by itself
	// spared is how long it is not killed from outside.
	spared time.Duration
	shot   bool    // by us
	buried bool    // it is gone, and its end is counted
	empty  bool    // nobody is there: what the dead one left is not settled
	left   bequest // of the one that died last
}

func (p *proc) process() process { return process{p.PID(), p.start} }

// fell tells whether it is gone and nobody has seen to that. Who sees to one death may come across
// the same one again, when it waits for others meanwhile.
func (p *proc) fell() bool { return !p.empty && !p.buried && p.Over() }

// start starts the process of a place, perhaps one that dies at a step.
func (s *supervisor) start(p *proc) error {
	if p.role.starting != nil {
		p.role.starting(s, p)
	}
	s.started++
	c := config{Index: p.index, Place: p.place, Base: s.base,
		Seed: s.o.Seed ^ s.started<<32, Trust: s.o.Trust, Spoil: s.o.spoil, Share: s.share}
	p.shot, p.step, p.empty, p.buried = false, crash.None, false, false
	nth, aimed := 0, s.o.Steps && s.rnd.IntN(s.sent()) > 0
	if aimed {
		p.step, nth = s.aim(p.role)
		c.Step = p.step.String()
	}
	p.spared = s.spare(p, aimed)
	spec := stage.Spec{Tool: toolName, Role: p.role.name, Script: c, Files: []*os.File{s.ledger.f},
		Stderr: os.Stderr, User: p.role.uid, Ended: func() {
			select {
			case s.died <- struct{}{}:
			default:
			}
		}}
	if p.step != crash.None {
		spec.Env = []string{fmt.Sprintf("%s=%v:%d", crash.Env, p.step, nth)}
	}
	p.since = time.Now()
	s.ledger.word(wordDeath + p.place).Store(0)
	s.ledger.word(wordLived + p.place).Store(0)
	s.ledger.word(wordBound + p.place).Store(0)
	s.ledger.word(wordOwes + p.place).Store(0)
	var by process // set before anything is heard
	s.mu.Lock()
	defer s.mu.Unlock()
	spec.Hear = stage.JSON(func(e event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Kind == kindNotice {
			s.notes.came(by, e)
		} else {
			s.count(e.Role, e.Kind, max(e.N, 1), "%s", strings.TrimSpace(e.Kind+" "+e.Text))
		}
	})
	var err error
	if p.Process, err = spec.Start(); err != nil {
		return err
	}
	p.start = startTicks(p.PID()) // it is there until it is waited for
	by = p.process()
	s.report.Roles[p.role.name].Starts++
	s.notes.born(by, fmt.Sprintf("%s %d, to die at %v", p.role.name, p.index, p.step))
	return nil
}

// broken counts n breaches of a promise, of a role and in all, and says the first ones in words.
func (s *supervisor) broken(role, kind string, n uint64, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(role, kind, n, kind+": "+format, args...)
}

func (s *supervisor) count(role, kind string, n uint64, format string, args ...any) {
	if s.report.Roles[role] == nil { // nobody's in particular
		role = s.roles[0].name
	}
	if kind == kindHung {
		s.hung = role
	}
	found := s.found[role]
	found.add(kind, n)
	s.found[role] = found
	s.report.note(format, args...)
}

// dumpHung has those whom a hung process waits for say on standard error what their goroutines do,
// once in a run.
func (s *supervisor) dumpHung() {
	s.mu.Lock()
	hung, dumped := s.hung, s.dumped
	s.dumped = hung != ""
	s.mu.Unlock()
	if hung == "" || dumped {
		return
	}
	for _, p := range s.procs {
		if slices.Contains(roleOf(hung).with, p.role.name) && !p.empty && !p.Over() {
			p.shot = true
			p.Signal(syscall.SIGQUIT)
		}
	}
}

// kill kills a process and starts the next one in its place.
func (s *supervisor) kill(p *proc) error {
	if p.role.dying != nil {
		p.role.dying(s, p)
	}
	p.shot = true
	s.dooms(p)
	p.Kill()
	return s.revive(p)
}

// dooms notes when a process is killed. It may be dead by then, at its step, and others may have
// come since, who owe nothing for it.
func (s *supervisor) dooms(p *proc) {
	s.ledger.word(wordDeath+p.place).CompareAndSwap(0, uint64(spin.Now()))
}

// diedAt returns when the process of a place died, or was told to.
func (s *supervisor) diedAt(p *proc) int64 {
	return int64(s.ledger.word(wordDeath + p.place).Load())
}

// revive counts a death and starts the next process in its place.
func (s *supervisor) revive(p *proc) error {
	s.buried(p)
	s.examine(p)
	if p.role.died != nil {
		if err := p.role.died(s, p); err != nil {
			return err
		}
	}
	return s.next(p)
}

// buried counts the end of a process.
func (s *supervisor) buried(p *proc) {
	p.buried = true
	if p.Killed() {
		s.mu.Lock()
		s.report.Kills++
		s.report.Roles[p.role.name].Kills++
		if !p.shot && p.step != crash.None {
			s.report.Steps[p.step.String()]++
		}
		s.notes.dead(p.process(), death{p.role.name, s.diedAt(p)})
		s.mu.Unlock()
	} else if !p.shot || !p.State().Exited() {
		s.broken(p.role.name, kindFailed, 1, "%s %d ended by itself: %v", p.role.name, p.index,
			p.State())
	}
}

// next starts the next process in a place, or leaves it empty as long as its role wants that.
func (s *supervisor) next(p *proc) error {
	if p.role.settled != nil && !p.role.settled(s, p) {
		p.empty = true
		return nil
	}
	return s.start(p)
}
