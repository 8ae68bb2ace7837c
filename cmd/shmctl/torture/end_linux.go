package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/shm/crash"
)

// stop stops a process, kills others meanwhile, and looks whether it still has what it had.
func (s *supervisor) stop(p *proc) error {
	pid := p.cmd.Process.Pid
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return nil
	}
	for !stopped(pid) { // else it could still give up what we are going to look at
		select {
		case <-p.done:
			return nil
		case <-time.After(time.Millisecond):
		}
	}
	s.report.Stops++
	s.frozen = p.role == "reader"
	defer func() { s.frozen = false }()
	check := s.possession(p)
	until := time.Now().Add(time.Duration(s.rnd.Int64N(int64(stopLongest))))
	var err error
	for time.Now().Before(until) && err == nil {
		time.Sleep(time.Duration(s.rnd.Int64N(int64(killEvery))))
		if other := s.procs[s.rnd.IntN(len(s.procs))]; other != p && other.want == 0 {
			s.noticed()
			err = s.kill(other)
		}
	}
	if what := check(); what != "" {
		s.mu.Lock()
		s.count("usurped", 1, "usurped: %s %d was stopped, and %s", p.role, p.index, what)
		s.mu.Unlock()
	}
	_ = syscall.Kill(pid, syscall.SIGCONT)
	return err
}

func stopped(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && state(text) == "T"
}

// possession returns a check that what a stopped process surely has is still its own.
func (s *supervisor) possession(p *proc) func() string {
	word := func(i int) uint64 { return s.ledger.word(i).Load() }
	if p.role == "reader" && word(wordHolder) == uint64(p.cmd.Process.Pid) {
		had := word(wordAdoptions)
		return func() string {
			if word(wordHolder) != uint64(p.cmd.Process.Pid) || word(wordAdoptions) > had+1 {
				return "another reader got the queue"
			}
			return ""
		}
	}
	if p.role == "writer" && word(wordLane+p.index) != 0 {
		lane := word(wordLane+p.index) - 1
		had := word(wordLaneOwner + int(lane))
		if writer, _, ok := splitSession(had); ok && writer == p.index {
			return func() string {
				if word(wordLaneOwner+int(lane)) != had {
					return "another writer got its lane"
				}
				return ""
			}
		}
	}
	return func() string { return "" }
}

// end has everybody finish, or kills them.
func (s *supervisor) end(good bool) {
	defer s.waiting.Wait()
	if good {
		for _, phase := range []uint64{phaseStop, phaseDrain} {
			s.ledger.word(wordPhase).Store(phase)
			for _, p := range s.procs {
				if (p.role == "reader") == (phase == phaseDrain) {
					s.finish(p)
				}
			}
		}
	}
	for _, p := range s.procs {
		select {
		case <-p.done:
		default:
			_ = p.cmd.Process.Kill()
		}
		if p.stdin != nil {
			_ = p.stdin.Close()
		}
	}
}

// finish waits for a process to end by itself. A reader that dies at a step has successors.
func (s *supervisor) finish(p *proc) {
	if p.want > 0 { // nobody is there
		return
	}
	for {
		select {
		case <-p.done:
		case <-time.After(2 * patience):
			// What its goroutines do goes to standard error.
			_ = p.cmd.Process.Signal(syscall.SIGQUIT)
			s.mu.Lock()
			s.count("hung", 1, "hung: %s %d (pid %d) did not end in %v", p.role, p.index,
				p.cmd.Process.Pid, 2*patience)
			s.mu.Unlock()
			return
		}
		ws, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		switch {
		case ws.Signaled() && ws.Signal() == syscall.SIGKILL && p.step != crash.None:
			s.report.Kills++
			s.report.Steps[p.step.String()]++
		case ws.ExitStatus() != 0:
			s.mu.Lock()
			s.count("failed", 1, "failed: %s %d: %v", p.role, p.index, p.cmd.ProcessState)
			s.mu.Unlock()
			return
		default:
			return
		}
		if p.role != "reader" {
			return
		}
		s.o.Steps = false // those that end the run are to reach the end
		if err := s.start(p); err != nil {
			s.report.note("%v", err)
			return
		}
	}
}

// check compares the ledger at the end, and looks at what is left.
func (s *supervisor) check() {
	s.sum()
	for i := range writers {
		for n := uint64(1); n <= s.ledger.word(wordSessions+i).Load() && n < maxSessions; n++ {
			e := s.ledger.session(i, n)
			published, seen := e.published.Load(), e.seen.Load()
			if s.exact[sessionName(i, n)] && seen > published {
				s.report.Unpublished += seen - published
				s.report.note("unpublished: of writer %d session %d, which died before it published "+
					"more than %d, %d were seen", i, n, published, seen)
			}
			if seen < published {
				s.report.Lost += published - seen
				s.report.note("lost: of writer %d session %d only %d of %d were seen", i, n, seen,
					published)
			}
		}
	}
	if s.ledger.word(wordEnded).Load() == 0 {
		s.report.note("no reader came to the end of the queue")
	}
	for _, what := range s.leftovers() {
		s.report.Leaked++
		s.report.note("leaked: %s", what)
	}
}

// found tells whether a reader has found anything so far.
func (s *supervisor) found() bool {
	word := func(i int) uint64 { return s.ledger.word(i).Load() }
	return word(wordDuplicate)+word(wordLost)+word(wordUnpublished) > 0
}

// sum takes what the ledger counts into the report.
func (s *supervisor) sum() {
	r, word := s.report, func(i int) uint64 { return s.ledger.word(i).Load() }
	r.Sessions, r.Published, r.Read, r.InDoubt = 0, 0, 0, 0
	for i := range writers {
		last := min(word(wordSessions+i), maxSessions-1)
		r.Sessions += last
		for n := uint64(1); n <= last; n++ {
			e := s.ledger.session(i, n)
			published := e.published.Load()
			r.Published += published
			r.InDoubt += max(published, e.intent.Load()) - published
			r.Read += e.seen.Load()
		}
	}
	r.Adoptions, r.Redelivered = word(wordAdoptions), word(wordRedelivered)
	r.Duplicate, r.Lost = word(wordDuplicate), word(wordLost)
	r.Unpublished = word(wordUnpublished)
	for l := range s.o.passed {
		s.o.passed[l] = word(wordPassed + int(l))
	}
}

// leftovers collects what the dead left, and returns what cannot be collected.
func (s *supervisor) leftovers() (left []string) {
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		return []string{err.Error()}
	}
	defer d.Close()
	for i := range scratchNames {
		left = append(left, s.collect(d, scratchName(i))...)
	}
	entries, err := os.ReadDir(d.Path())
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "bell-") && removeBell(d, e.Name()) == nil {
			continue
		}
		left = append(left, "file "+e.Name())
	}
	return left
}

// collect removes a queue that the dead left. One that was persistent, or left to a successor, has
// to be adopted and destroyed.
func (s *supervisor) collect(d *shm.Dir, name string) []string {
	if cq.RemoveDead(d, name) == nil {
		return nil
	}
	q, err := cq.Adopt(d, name, cq.Options{})
	if err == nil {
		err = q.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cq.ErrClosed) {
		err = nil
	}
	if err = errors.Join(err, cq.RemoveDead(d, name)); err != nil {
		return []string{fmt.Sprintf("%s cannot be collected: %v", name, err)}
	}
	return nil
}

// removeBell removes the bell of a process that is dead.
func removeBell(d *shm.Dir, name string) error {
	o, err := d.Open(name, shm.ReadWrite)
	if err != nil {
		return err
	}
	defer o.Close()
	if err := o.Claim(nil); err != nil {
		return err
	}
	return o.Unlink()
}
