package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/scratch"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

const (
	// killEvery is the longest time between two kills from outside.
	killEvery = 60 * time.Millisecond
	// calmEvery says that one in so many is a calm instead, of each role that has some.
	calmEvery = 30
	// spareOther is how long one is spared, at most, that is not sent to a step where others are,
	// and spareHelper one that has no step to go to, without which others do not get to theirs.
	spareOther  = 400 * time.Millisecond
	spareHelper = 5 * time.Second
	// stopLongest is how long a process is stopped at most: longer than any time that the library
	// waits before it looks again.
	stopLongest = 1500 * time.Millisecond
)

// supervisor starts, kills and decides. What is not guarded belongs to the goroutine of Run.
type supervisor struct {
	o       Options
	roles   []*role // that take part
	ledger  *ledger
	base    string
	dir     *shm.Dir          // of objects with names
	share   map[string]string // what roles tell their processes
	ends    wire.Ends
	spaces  []*os.File // the namespaces of both ends, the device's first
	rnd     *rand.Rand
	procs   []*proc
	died    chan struct{} // of size 1: somebody died
	started uint64
	frozen  *proc       // is stopped
	counter *cq.Counter // of the role counter, only to look
	counted uint64      // what it said last
	// looked are, of each endpoint, the talks before which all is seen, or its receiver has ended.
	looked [endpoints]uint64
	// examined is when objects may be checked again.
	examined time.Time
	dumped   bool

	mu     sync.Mutex // of what those write that listen to processes
	report *Report
	// found is what processes told and the supervisor saw, by role, beside what the ledger counts.
	found map[string]Found
	hung  string // role of a process that hung last
	notes notices
}

// Run runs a torture. The error is ErrViolation if anything was found. If the context ends first,
// the error is its cause and the report, which says so, has what was found until then; after any
// other error it is nil.
func Run(ctx context.Context, o Options) (*Report, error) {
	if (o.Steps || o.UntilSteps > 0) && !crash.On {
		return nil, errors.New("torture: this program has no steps: build it with -tags shmring_steps")
	}
	roles := choose(o.Roles)
	d, err := shm.OpenDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	s := &supervisor{o: o, roles: roles, report: newReport(o, roles), share: map[string]string{},
		rnd:  rand.New(rand.NewPCG(o.Seed, 0)),
		died: make(chan struct{}, 1), notes: newNotices(),
		found: map[string]Found{}}
	var remove func()
	if s.base, remove, err = scratch.Make(d.Path(), toolName); err != nil {
		return nil, err
	}
	defer remove()
	if s.ledger, err = makeLedger(s.base + "/" + ledgerFile); err != nil {
		return nil, err
	}
	defer s.ledger.close()
	if s.dir, err = shm.OpenDir(s.base + "/" + queuesDir); err != nil {
		return nil, err
	}
	defer s.dir.Close()
	return s.whole(ctx)
}

// whole is a run from what roles prepare to the report.
func (s *supervisor) whole(ctx context.Context) (*Report, error) {
	for _, r := range s.roles {
		if r.prepare == nil {
			continue
		}
		undo, err := r.prepare(s)
		if undo != nil {
			defer undo()
		}
		if err != nil {
			return nil, fmt.Errorf("torture: prepare %s: %w", r.name, err)
		}
	}
	begin := time.Now()
	err := s.run(ctx, begin)
	s.end(err == nil)
	switch {
	case err == nil:
		s.check()
	case ctx.Err() == nil || !errors.Is(err, context.Cause(ctx)):
		return nil, err
	default: // everybody was killed in the middle: nothing is said about what is left
		s.report.Interrupted = true
		s.close()
	}
	s.report.DurationNs = int64(time.Since(begin))
	if !s.report.Good() {
		err = errors.Join(ErrViolation, err)
	}
	return s.report, err
}

// run starts everybody and does harm until it is time.
func (s *supervisor) run(ctx context.Context, begin time.Time) error {
	for _, r := range s.roles {
		for i := range r.places {
			p := &proc{role: r, index: i, place: len(s.procs)}
			if s.procs = append(s.procs, p); len(s.procs) > maxPlaces {
				return fmt.Errorf("torture: more than %d processes", maxPlaces)
			}
			if err := s.start(p); err != nil {
				return err
			}
		}
	}
	tick := time.NewTimer(s.pause())
	defer tick.Stop()
	for last := begin; !s.enough(begin); {
		var err error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.died:
		case <-tick.C:
			err = s.harm()
			tick.Reset(s.pause())
		}
		if err = errors.Join(err, s.reviveAll()); err != nil {
			return err
		}
		s.overdue(stage.Lifetime())
		s.dumpHung()
		if s.o.Progress != nil && time.Since(last) > 100*time.Millisecond {
			last = time.Now()
			s.progress(time.Since(begin))
		}
	}
	return nil
}

// progress tells how far the run is. Whoever is told may take long, be it a terminal that somebody
// stopped, and those who listen to processes go on meanwhile.
func (s *supervisor) progress(done time.Duration) {
	s.mu.Lock()
	s.sum()
	r := s.report.clone()
	s.mu.Unlock()
	s.o.Progress(done, r)
}

// pause is how long it takes until the next harm. Where processes die at steps by themselves, there
// is less of it: some steps are a long way off.
func (s *supervisor) pause() time.Duration {
	most := killEvery
	if s.o.Steps {
		most *= 3
	}
	return time.Duration(s.rnd.Int64N(int64(most)))
}

// enough tells whether the run has come to its end.
func (s *supervisor) enough(begin time.Time) bool {
	if s.o.Duration > 0 && time.Since(begin) >= s.o.Duration {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.o.spoil != "" {
		s.sum()
		return !s.report.Good()
	}
	if s.o.Kills == 0 && s.o.UntilSteps == 0 || s.report.Kills < s.o.Kills {
		return false
	}
	return s.o.UntilSteps == 0 || len(s.below()) == 0
}

// harm kills or stops a process, or leaves some in peace for a moment, or all if there is none that
// it may harm.
func (s *supervisor) harm() error {
	for _, r := range s.roles {
		if r.calm != nil && s.rnd.IntN(calmEvery) == 0 {
			return r.calm(s, r)
		}
	}
	if s.rnd.IntN(50) == 0 {
		if p := s.pick(s.canStop); p != nil {
			return s.stop(p)
		}
	}
	if p := s.pick(s.canKill); p != nil {
		return s.kill(p)
	}
	return nil
}

// pick draws one of the processes that may be harmed so; nil if it finds none.
func (s *supervisor) pick(may func(*proc) bool) *proc {
	for range 2 * len(s.procs) {
		if p := s.procs[s.rnd.IntN(len(s.procs))]; may(p) {
			return p
		}
	}
	return nil
}

func (s *supervisor) canStop(p *proc) bool {
	return !p.empty && !p.role.safe && p.role.stops && !s.young(p)
}

// canKill spares one that is on its way to a step for a while, else nobody would ever get to those
// that come seldom; and others, for a time that was drawn when they started, so that they get
// anywhere at all where there are few. One that is late to tell a death is left to show whether it
// ever does: few live for as long as that may take.
func (s *supervisor) canKill(p *proc) bool {
	return !p.empty && !p.role.safe && p != s.frozen && !s.young(p) &&
		time.Since(p.since) > p.spared && !s.late(p)
}

// grownUp is how long a process has to come so far that its death shows anything.
const grownUp = 5 * time.Second

// young tells that it has not, on a machine where starting takes longer than two kills are apart.
func (s *supervisor) young(p *proc) bool {
	return p.role.grows && time.Since(p.since) < grownUp &&
		s.ledger.word(wordGrown+p.place).Load() == 0
}

// reviveAll starts those again that died by themselves, or had something left to be settled.
func (s *supervisor) reviveAll() error {
	for _, p := range s.procs {
		if p == s.frozen {
			continue // whoever stopped it looks whether it lives
		}
		if p.empty {
			if err := s.next(p); err != nil {
				return err
			}
		} else if p.fell() {
			if err := s.revive(p); err != nil {
				return err
			}
		}
	}
	return nil
}

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
	spared  time.Duration
	shot    bool   // by us
	counted bool   // it is gone, and its end is counted
	empty   bool   // nobody is there: what the dead one left is not settled
	left    unread // of the one that died last
}

func (p *proc) process() process { return process{p.PID(), p.start} }

// fell tells whether it is gone and nobody has seen to that. Who sees to one death may come across
// the same one again, when it waits for others meanwhile.
func (p *proc) fell() bool { return !p.empty && !p.counted && p.Over() }

// start starts the process of a place, perhaps one that dies at a step.
func (s *supervisor) start(p *proc) error {
	if p.role.starting != nil {
		p.role.starting(s, p)
	}
	s.started++
	c := config{Index: p.index, Place: p.place, Base: s.base,
		Seed: s.o.Seed ^ s.started<<32, Spoil: s.o.spoil, Share: s.share, Ends: s.ends}
	p.shot, p.step, p.empty, p.counted = false, crash.None, false, false
	nth, aimed := 0, s.o.Steps && s.rnd.IntN(s.sent()) > 0
	if aimed {
		p.step, nth = s.aim(p.role)
		c.Step = p.step.String()
	}
	p.spared = s.spare(p, aimed)
	spec := stage.Spec{Tool: toolName, Role: p.role.name, Script: c,
		Files:  append([]*os.File{s.ledger.f}, s.spaces...),
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
	for _, word := range []int{wordDeath, wordLived, wordBound, wordOwes, wordHas, wordHad,
		wordOwns, wordGrown} {
		s.ledger.word(word + p.place).Store(0)
	}
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
	_, p.start = stat(p.PID()) // it is there until it is waited for
	by = p.process()
	s.report.Roles[p.role.name].Starts++
	s.notes.born(by, fmt.Sprintf("%s %d, to die at %v", p.role.name, p.index, p.step))
	return nil
}

// dumpHung has those whom a hung process waits for say what they do.
func (s *supervisor) dumpHung() {
	s.mu.Lock()
	hung := s.hung
	s.mu.Unlock()
	if hung == "" {
		return
	}
	var who []*proc
	for _, p := range s.procs {
		if slices.Contains(roleOf(hung).with, p.role.name) && !p.empty && !p.Over() {
			who = append(who, p)
		}
	}
	s.dump(who...)
}

// dump has some say on standard error what their goroutines do, which ends them, once in a run.
func (s *supervisor) dump(who ...*proc) {
	for _, p := range who {
		if !s.dumped {
			p.shot = true
			p.Signal(syscall.SIGQUIT)
		}
	}
	s.dumped = true
}

// kill kills a process and starts the next one in its place.
func (s *supervisor) kill(p *proc) error {
	p.shot = true
	s.noteDeath(p)
	p.Kill()
	return s.revive(p)
}

// noteDeath notes when a process is killed. It may be dead by then, at its step; others may have
// come since, who owe nothing for it.
func (s *supervisor) noteDeath(p *proc) {
	s.ledger.word(wordDeath+p.place).CompareAndSwap(0, uint64(spin.Now()))
}

// diedAt returns when the process of a place died, or was told to.
func (s *supervisor) diedAt(p *proc) int64 {
	return int64(s.ledger.word(wordDeath + p.place).Load())
}

// revive counts a death and starts the next process in its place.
func (s *supervisor) revive(p *proc) error {
	s.ended(p)
	s.examine(p)
	s.demand(p)
	if p.role.died != nil {
		if err := p.role.died(s, p); err != nil {
			return err
		}
	}
	return s.next(p)
}

// ended counts the end of a process.
func (s *supervisor) ended(p *proc) {
	p.counted = true
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
	owns := int(s.ledger.word(wordOwns + p.place).Load())
	owner := s.ledger.word(owns)
	had := owner.Load()
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
	if is := owner.Load(); owns != 0 && is != had && !p.Over() {
		s.broken(p.role.name, kindUsurped, 1, "%s %d was stopped, and another one (%#x) got what it "+
			"has (%#x)", p.role.name, p.index, is, had)
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	return err
}

// end has everybody finish, or kills them.
func (s *supervisor) end(good bool) {
	if good {
		for _, phase := range []uint64{phaseStop, phaseDrain} {
			s.ledger.word(wordPhase).Store(phase)
			s.finish(phase == phaseDrain)
		}
	}
	for _, p := range s.procs {
		if p.Process != nil {
			p.Kill()
		}
	}
}

// finish waits until those end by themselves that drain, or those that do not. Meanwhile those that
// drain, as others need them, have successors, should they die at a step.
func (s *supervisor) finish(drain bool) {
	for since := stage.Lifetime(); ; nap(5 * time.Millisecond) {
		late := stage.Lifetime()-since > 2*patience
		s.dumpHung()
		left := false
		for _, p := range s.procs {
			switch mine := p.role.drains == drain && !p.empty && !p.counted; {
			case p.fell():
				s.finished(p)
				left = left || mine && !p.counted
			case mine && late:
				// What its goroutines do goes to standard error.
				p.Signal(syscall.SIGQUIT)
				s.broken(p.role.name, kindHung, 1, "%s %d (pid %d) did not end in %v", p.role.name,
					p.index, p.PID(), 2*patience)
			default:
				left = left || mine
			}
		}
		if !left {
			return
		}
	}
}

// finished counts the end of a process, and starts the next if others wait for it.
func (s *supervisor) finished(p *proc) {
	if p.State().Success() {
		p.counted = true
		s.mu.Lock()
		defer s.mu.Unlock()
		s.notes.closed[p.process()] = true
		return
	}
	if s.ended(p); !p.role.drains || p.step == crash.None {
		return
	}
	s.o.Steps = false // those that end the run are to reach the end
	if err := s.start(p); err != nil {
		p.empty = true
		s.broken(p.role.name, kindFailed, 1, "%v", err)
	}
}
