// Package stage runs the processes of tools: this program again, each time in a role.
//
// A [Tool] is what its processes do. Who wants one says what it needs in a [Spec] and starts it.
// The [Process] has what can be done to it: tell it something, stop it, kill it, wait for its end.
// In the process itself [Enter] finds out what it is to be, and the tool plays it as a [Child].
//
// Both sides speak in lines: the child in JSON on its standard output, the one who started it on
// the child's standard input. The end of its input is the child's order to end; so nobody outlives
// a supervisor that was killed.
//
// The processes of tests are started by package shmtest, which looks after the test binary and its
// directory. Package command starts one for each user, which gets nothing of ours.
package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Spec says what to start, and as whom.
type Spec struct {
	Tool   string // its name
	Role   string
	Script any // told to the child as JSON, see [Child.Script]
	// Program is the command line of another program that gets role and script, in place of this one.
	Program []string
	Files   []*os.File // that the child has as descriptors 3 and on
	Env     []string   // "KEY=value", added to ours
	User    uint32     // 0 is ours; else its group has the same number
	Stderr  io.Writer  // nil is nobody; [os.Stderr] is ours
	// Attr is what the system has to know beside the user; nil is nothing.
	Attr *syscall.SysProcAttr
	// Within calls its argument where the process is to be started; nil is here.
	Within func(start func() error) error
	// Hear gets each line that the process says, without its end, from one goroutine. It may not
	// keep the line. Nil is a process that says nothing.
	Hear func(line []byte)
	// Ended is called after the last line, when the process is gone. It may be nil.
	Ended func()
}

// Process is one that was started. All methods may be called concurrently.
type Process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{}
}

// Pretend returns a process that is only said to be there, for tests of supervisors, and ends it.
func Pretend(pid int) (p *Process, end func()) {
	p = &Process{cmd: &exec.Cmd{Process: &os.Process{Pid: pid}}, done: make(chan struct{})}
	return p, func() { close(p.done) }
}

// maxLine bounds what a process can make us keep.
const maxLine = 1 << 20

// self is a path of this program that holds for every user: its directory need not be open to all.
func self() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// Start starts the process.
func (s Spec) Start() (*Process, error) {
	script, err := json.Marshal(s.Script)
	if err != nil {
		return nil, err
	}
	argv := s.Program
	if argv == nil {
		exe, err := self()
		if err != nil {
			return nil, err
		}
		argv = []string{exe, verb(s.Tool)}
	}
	cmd := exec.Command(argv[0], append(argv[1:len(argv):len(argv)], s.Role, string(script))...)
	cmd.ExtraFiles, cmd.Stderr, cmd.SysProcAttr = s.Files, s.Stderr, s.attr()
	if len(s.Env) > 0 {
		cmd.Env = append(os.Environ(), s.Env...)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		_ = in.Close()
		return nil, err
	}
	start := cmd.Start
	if s.Within != nil {
		start = func() error { return s.Within(cmd.Start) }
	}
	p := &Process{cmd: cmd, in: in, done: make(chan struct{})}
	if err := start(); err != nil {
		_, _ = in.Close(), out.Close() // it may never have come to that
		return nil, fmt.Errorf("%s: start %s: %w", s.Tool, s.Role, err)
	}
	go s.follow(p, out)
	return p, nil
}

// attr puts each process in a group of its own: what a terminal sends to the group of its
// supervisor is for that one to decide about.
func (s Spec) attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{}
	if s.Attr != nil {
		*a = *s.Attr
	}
	a.Setpgid = true
	if s.User != 0 {
		a.Credential = &syscall.Credential{Uid: s.User, Gid: s.User}
	}
	return a
}

// reaping is held by whoever waits for a dead child: some threads at once that take what is left of
// children of the kernel have been seen to spin there on each other's entries of /proc, all
// processors with them, until somebody else died.
var reaping sync.Mutex

// follow hears the process until it ends.
func (s Spec) follow(p *Process, out io.Reader) {
	hear(out, s.Hear)
	reaping.Lock()
	_ = p.cmd.Wait()
	reaping.Unlock()
	_ = p.in.Close()
	close(p.done)
	if s.Ended != nil {
		s.Ended()
	}
}

// JSON makes a [Spec.Hear] that decodes each line. A line that is none of T is left out: it comes
// of a process that was killed while it wrote.
func JSON[T any](hear func(T)) func(line []byte) {
	return func(line []byte) {
		var v T
		if json.Unmarshal(line, &v) == nil {
			hear(v)
		}
	}
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process is gone and all that it said was heard.
func (p *Process) Done() <-chan struct{} { return p.done }

// Over reports whether it is gone.
func (p *Process) Over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Wait waits so long for the end of the process, and reports whether it came.
func (p *Process) Wait(d time.Duration) bool {
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-p.done:
		return true
	case <-limit.C:
		return p.Over()
	}
}

// State is how the process ended; nil as long as it is not gone.
func (p *Process) State() *os.ProcessState {
	if !p.Over() {
		return nil
	}
	return p.cmd.ProcessState
}

// Killed reports whether it is gone and ended by SIGKILL, whoever sent it.
func (p *Process) Killed() bool {
	state := p.State()
	if state == nil {
		return false
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// Tell writes a line to the process.
func (p *Process) Tell(line string) error {
	_, err := io.WriteString(p.in, line+"\n")
	return err
}

// Dismiss orders the process to end, and returns at once.
func (p *Process) Dismiss() { _ = p.in.Close() }

// Signal sends it a signal, to be told of nothing if it is gone.
func (p *Process) Signal(sig os.Signal) { _ = p.cmd.Process.Signal(sig) }

// Kill kills the process and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// End dismisses all processes, those that are nil left out, and kills those that are not gone in
// time. It returns when all are.
func End(patience time.Duration, processes ...*Process) {
	for _, p := range processes {
		if p != nil {
			p.Dismiss()
		}
	}
	late := time.Now().Add(patience)
	for _, p := range processes {
		if p != nil && !p.Wait(time.Until(late)) {
			p.Kill()
		}
	}
}

// Tool is a kind of supervisor, with what its processes do.
type Tool struct {
	Name string
	// Play is the process, in whatever role. What it returns is its exit code: 1 after an error,
	// which it has told in its own way.
	Play func(*Child) error
}

// Of is the tool in another build of this program, for [Spec.Program].
func (t Tool) Of(program string) []string { return []string{program, verb(t.Name)} }

// verb is the hidden first argument of the processes of a tool.
func verb(tool string) string { return "__" + tool }

// Enter plays what args, without the program's name, ask for, if they are those of a process of one
// of the tools. A program calls it before anything else, and exits with the code if it was handled.
func Enter(args []string, tools ...Tool) (handled bool, code int) {
	for _, t := range tools {
		if len(args) != 3 || args[0] != verb(t.Name) {
			continue
		}
		// When to end is for the supervisor to decide. A SIGQUIT has it say what its goroutines do.
		signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
		c := NewChild(args[1], args[2], os.Stdout)
		if t.Play(c) != nil {
			return true, 1
		}
		return true, 0
	}
	return false, 0
}

// ErrGone is why a child's context ends.
var ErrGone = errors.New("supervisor ended the run")

// Child is this process, which was started in a role. All methods may be called concurrently.
type Child struct {
	Role   string
	script []byte
	mu     sync.Mutex
	out    *json.Encoder
}

// NewChild is one that was told a script, and says its lines to out, as a test may want to hear
// them.
func NewChild(role, script string, out io.Writer) *Child {
	return &Child{Role: role, script: []byte(script), out: json.NewEncoder(out)}
}

// Script decodes what the process was told when it was started.
func (c *Child) Script(into any) error { return json.Unmarshal(c.script, into) }

// Send says a line to the supervisor. One that is gone is noticed on the other pipe.
func (c *Child) Send(v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(v)
}

// Listen takes what the supervisor tells, a line at a time, and ends the context when there is
// nothing more to come, as when the supervisor is gone. Lines that nobody takes keep it from
// hearing that; a process that is told none has a nil channel. It is called once.
func (c *Child) Listen(orders chan<- string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		hear(os.Stdin, func(line []byte) {
			if orders != nil {
				orders <- string(line)
			}
		})
		cancel(ErrGone)
	}()
	return ctx
}

// hear calls f, which may be nil, with each line until there is no more. What comes after a line
// that is too long is read and not heard, so that nobody is kept from writing it.
func hear(r io.Reader, f func(line []byte)) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if f != nil {
			f(lines.Bytes())
		}
	}
	_, _ = io.Copy(io.Discard, r)
}
