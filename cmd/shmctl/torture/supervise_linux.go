package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/shm/crash"
)

const (
	readers   = 2
	runPrefix = "torture-"
	// killEvery is the longest time between two kills.
	killEvery = 60 * time.Millisecond
	// stopLongest is how long a process is stopped at most: longer than any time that the library
	// waits before it looks again.
	stopLongest = 1500 * time.Millisecond
)

type supervisor struct {
	o       Options
	report  *Report
	ledger  *ledger
	base    string
	rnd     *rand.Rand
	procs   []*proc
	mu      sync.Mutex // of what listeners write: report and steps
	waiting sync.WaitGroup
	started uint64
	notices []int64
	killed  killed // the last reader that had the queue
	frozen  bool   // a reader is stopped
	aimed   map[crash.Label]uint64
	exact   map[uint64]bool // sessions of which nothing may come beyond what is known as published
}

// killed is a death that a survivor has to notice.
type killed struct {
	atNs      int64
	adoptions uint64
}

// proc is a place in the run, and the process that has it now.
type proc struct {
	role  string
	index int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	step  crash.Label // at which it dies by itself
	shot  bool        // by us
	// want is what has to be seen of the session of a writer that died before the next one may
	// come: its lane would be looked at for that one's sake. 0 is nothing.
	want    uint64
	dead    session
	waiting time.Time // since when; the place is empty
}

// Run runs a torture. The report is not nil if it came to an end; the error is ErrViolation if
// anything was found.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Steps && !crash.On {
		return nil, errors.New("torture: this program has no steps: build it with -tags shmring_steps")
	}
	switch o.Trust {
	case "":
		o.Trust = TrustBoth
	case TrustBoth, TrustUser, TrustOthers:
	default:
		return nil, fmt.Errorf("torture: trust %q is none of both, user and others", o.Trust)
	}
	d, err := shm.OpenDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	sweepRuns(d.Path())
	s := &supervisor{o: o, report: &Report{Seed: o.Seed, Violations: []string{}},
		rnd: rand.New(rand.NewPCG(o.Seed, 0)), aimed: map[crash.Label]uint64{},
		exact: map[uint64]bool{}}
	if o.Steps {
		s.report.Steps = map[string]uint64{}
	}
	if s.base, err = os.MkdirTemp(d.Path(), runPrefix); err != nil {
		return nil, err
	}
	defer os.RemoveAll(s.base)
	if err := os.Mkdir(s.base+"/"+queuesDir, 0o700); err != nil {
		return nil, err
	}
	if s.ledger, err = openLedger(s.base + "/" + ledgerFile); err != nil {
		return nil, err
	}
	defer s.ledger.close()
	// Whoever finds the directory later sees by the lock whether its run lives.
	if err := unix.Flock(int(s.ledger.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	begin := time.Now()
	err = s.run(ctx, begin)
	s.end(err == nil)
	if err != nil {
		return nil, err
	}
	s.check()
	s.report.DurationNs = int64(time.Since(begin))
	s.report.measure(s.notices)
	if !s.report.Good() {
		return s.report, ErrViolation
	}
	return s.report, nil
}

// sweepRuns removes what runs left of which every process was killed at once.
func sweepRuns(path string) {
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), runPrefix) {
			continue
		}
		f, err := os.Open(path + "/" + e.Name() + "/" + ledgerFile)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(path + "/" + e.Name())
		}
		_ = f.Close()
	}
}

// run starts everybody and does harm until it is time.
func (s *supervisor) run(ctx context.Context, begin time.Time) error {
	for _, r := range []struct {
		role string
		n    int
	}{{"reader", readers}, {"writer", writers}, {"churner", churners}} {
		for i := range r.n {
			p := &proc{role: r.role, index: i}
			s.procs = append(s.procs, p)
			if err := s.start(p); err != nil {
				return err
			}
		}
	}
	for last := begin; ; {
		if s.o.Duration > 0 && time.Since(begin) >= s.o.Duration ||
			s.o.Kills > 0 && s.report.Kills >= s.o.Kills || s.o.spoil != "" && s.found() {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(s.rnd.Int64N(int64(killEvery)))):
		}
		s.noticed()
		p := s.procs[s.rnd.IntN(len(s.procs))]
		var err error
		if p.want > 0 {
			p = s.procs[0]
		}
		if stop := s.rnd.IntN(50) == 0; stop && p.role != "churner" {
			err = s.stop(p)
		} else {
			err = s.kill(p)
		}
		if err != nil {
			return err
		}
		if err := s.reviveAll(); err != nil {
			return err
		}
		if s.o.Progress != nil && time.Since(last) > 100*time.Millisecond {
			last = time.Now()
			s.mu.Lock()
			s.sum()
			s.o.Progress(time.Since(begin), s.report)
			s.mu.Unlock()
		}
	}
}

// reviveAll starts those again that died by themselves, or had something left to be read.
func (s *supervisor) reviveAll() error {
	for _, p := range s.procs {
		if p.want > 0 {
			if s.settled(p) {
				if err := s.start(p); err != nil {
					return err
				}
			}
			continue
		}
		select {
		case <-p.done:
			if p.role == "reader" {
				s.watch(false)
			}
			if err := s.revive(p); err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

// start starts the process of a place, perhaps one that dies at a step.
func (s *supervisor) start(p *proc) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if p.role == "writer" { // what its predecessor had is anybody's
		s.ledger.word(wordLane + p.index).Store(0)
	}
	s.started++
	c := config{Role: p.role, Index: p.index, Dir: s.base, Seed: s.o.Seed ^ s.started<<32,
		Trust: s.o.Trust, Spoil: s.o.spoil}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	p.cmd = exec.Command(self, ChildCommand, string(text))
	p.cmd.Stderr = os.Stderr
	p.shot, p.step, p.done = false, crash.None, make(chan struct{})
	if s.o.Steps && s.rnd.IntN(4) > 0 {
		p.step = s.aim(p.role)
		p.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%v:%d", crash.Env, p.step, 1+s.passage(p.step)))
	}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("torture: start %s: %w", p.role, err)
	}
	cmd, done := p.cmd, p.done
	s.waiting.Go(func() {
		s.listen(out)
		_ = cmd.Wait()
		close(done)
	})
	return nil
}

// listen counts what a child tells.
func (s *supervisor) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		s.mu.Lock()
		s.count(e.Kind, 1, "%s", strings.TrimSpace(e.Kind+" "+e.Text))
		s.mu.Unlock()
	}
}

func (s *supervisor) count(kind string, n uint64, format string, args ...any) {
	switch kind {
	case "hung":
		s.report.Hung += n
	case "leaked":
		s.report.Leaked += n
	case "usurped":
		s.report.Usurped += n
	case "failed":
		s.report.Failed += n
	}
	s.report.note(format, args...)
}

// kill kills a process and starts the next one in its place.
func (s *supervisor) kill(p *proc) error {
	pid := uint64(p.cmd.Process.Pid)
	if p.role == "reader" {
		s.watch(s.ledger.word(wordHolder).Load() == pid)
	}
	p.shot = true
	_ = p.cmd.Process.Kill()
	<-p.done
	return s.revive(p)
}

// watch notes when a reader dies. If it has the queue the other one is to notice, unless that is
// stopped; if not there may be nobody to notice the death before.
func (s *supervisor) watch(has bool) {
	s.noticed()
	s.killed = killed{}
	if has && !s.frozen {
		s.killed = killed{doorbell.Now(), s.ledger.word(wordAdoptions).Load()}
	}
}

// noticed notes how long it took until a successor had the queue.
func (s *supervisor) noticed() {
	if s.killed.atNs == 0 || s.ledger.word(wordAdoptions).Load() == s.killed.adoptions {
		return
	}
	s.notices = append(s.notices, max(0, int64(s.ledger.word(wordAdopted).Load())-s.killed.atNs))
	s.killed = killed{}
}

// revive counts a death and starts the next process in its place.
func (s *supervisor) revive(p *proc) error {
	_ = p.stdin.Close()
	ws, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		s.mu.Lock()
		s.report.Kills++
		if !p.shot && p.step != crash.None {
			s.report.Steps[p.step.String()]++
		}
		s.mu.Unlock()
	} else if !p.shot || ws.Signaled() {
		s.mu.Lock()
		s.count("failed", 1, "failed %s %d ended by itself: %v", p.role, p.index,
			p.cmd.ProcessState)
		s.mu.Unlock()
	}
	if s.bequeathed(p); p.want == 0 {
		return s.start(p)
	}
	quiet := s.rnd.IntN(8) == 0 || !p.shot && afterPublish[p.step] && s.rnd.IntN(2) == 0
	if quiet && !s.frozen { // a reader that is stopped sees nothing
		if err := s.hush(); err != nil {
			return err
		}
	}
	if !s.settled(p) {
		return nil
	}
	return s.start(p)
}
