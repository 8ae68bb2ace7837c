package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// roundLimit is when a round is given up: thousands of times what one takes.
const roundLimit = 60 * time.Second

// shared is the memory, the two eventfds and the socket pair that all processes of a run share. All
// are anonymous, so nothing is left behind however the run ends; but for the directory in which
// each pair of processes has one for its queues.
type shared struct {
	files []*os.File
	dir   string
}

func newShared() (*shared, error) {
	fd, err := unix.MemfdCreate("shmring-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("bench: memfd_create: %w", err)
	}
	s := &shared{files: []*os.File{os.NewFile(uintptr(fd), "shmring-bench")}}
	// Beside the default directory: there memory is, and the bench is no queue in it.
	if s.dir, err = os.MkdirTemp(filepath.Dir(shm.DefaultPath()), "shmring-bench-"); err != nil {
		s.close()
		return nil, fmt.Errorf("bench: directory for queues: %w", err)
	}
	if err := unix.Fallocate(fd, 0, 0, areas*areaBytes); err != nil {
		s.close()
		return nil, fmt.Errorf("bench: allocate %d bytes: %w", areas*areaBytes, err)
	}
	for range 2 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("bench: eventfd: %w", err)
		}
		s.files = append(s.files, os.NewFile(uintptr(fd), "eventfd"))
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("bench: socketpair: %w", err)
	}
	for _, fd := range ends {
		s.files = append(s.files, os.NewFile(uintptr(fd), "socket"))
	}
	return s, nil
}

func (s *shared) close() {
	for _, f := range s.files {
		_ = f.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// answer is what one process says after a round; zero is what it did not measure.
type answer struct {
	ns, checksum  uint64
	before, after float64 // probes
	share         float64 // of the round, during which the process was running
	cpuNs         uint64  // that all threads of the process ran
	allocs        uint64  // of the process, where it is counted
}

// duo is the two processes of a side, role 0 and role 1, each pinned to a processor.
type duo struct {
	procs [2]*exec.Cmd
	in    [2]io.WriteCloser
	out   [2]chan answerLine
	dir   string // of their queues
}

type answerLine struct {
	text string
	err  error
}

// startDuo starts both processes, each with its command line followed by role and processor. The
// caller's goroutine must be locked to its thread until close.
func startDuo(s *shared, cpus [2]int, argv0, argv1 []string) (*duo, error) {
	dir, err := os.MkdirTemp(s.dir, "side-")
	if err != nil {
		return nil, fmt.Errorf("bench: directory for queues: %w", err)
	}
	d := &duo{dir: dir}
	for role, argv := range [2][]string{argv0, argv1} {
		if err := d.start(role, cpus[role], s, argv); err != nil {
			d.close()
			return nil, fmt.Errorf("bench: start %s: %w", argv[0], err)
		}
	}
	return d, nil
}

func (d *duo) start(role, cpu int, s *shared, argv []string) error {
	args := append(argv[1:len(argv):len(argv)], strconv.Itoa(role), strconv.Itoa(cpu))
	cmd := exec.Command(argv[0], args...)
	cmd.ExtraFiles = s.files
	cmd.Env = append(os.Environ(), shm.EnvDir+"="+d.dir)
	cmd.Stderr = os.Stderr
	// A process whose partner died spins: it must not outlive us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	d.procs[role], d.in[role] = cmd, in
	lines := make(chan answerLine, 1)
	d.out[role] = lines
	go func() {
		defer close(lines)
		r := bufio.NewReader(out)
		for {
			text, err := r.ReadString('\n')
			lines <- answerLine{text, err}
			if err != nil {
				return
			}
		}
	}()
	return nil
}

// run gives both processes a command and returns their answers. After an error the duo is of no
// use: one of the two may spin, waiting for the other.
func (d *duo) run(ctx context.Context, command string) (answers [2]answer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundLimit,
		errors.New("a round did not end; is a processor overcommitted or stopped?"))
	defer cancel()
	for role := range d.in {
		if _, err := io.WriteString(d.in[role], command); err != nil {
			return answers, fmt.Errorf("command to process %d: %w", role, err)
		}
	}
	out := d.out
	for range answers {
		var l answerLine
		var role int
		select {
		case <-ctx.Done():
			return answers, context.Cause(ctx)
		case l = <-out[0]:
			role = 0
		case l = <-out[1]:
			role = 1
		}
		out[role] = nil
		if l.err != nil {
			return answers, fmt.Errorf("process %d ended during a round: %w", role, l.err)
		}
		a := &answers[role]
		// Programs in C do not say how much they allocate.
		n, err := fmt.Sscan(l.text, &a.ns, &a.checksum, &a.before, &a.after, &a.share, &a.cpuNs,
			&a.allocs)
		if n < 6 {
			return answers, fmt.Errorf("answer %q of process %d: %w", l.text, role, err)
		}
	}
	return answers, nil
}

// patience is how long a process may take to clean up. One whose partner died spins instead.
const patience = time.Second

// close ends both processes: libfabric's files go only if it may remove them itself. What does not
// end is killed.
func (d *duo) close() {
	for _, in := range d.in {
		if in != nil {
			_ = in.Close()
		}
	}
	limit := time.AfterFunc(patience, func() {
		for _, cmd := range d.procs {
			if cmd != nil {
				_ = cmd.Process.Kill()
			}
		}
	})
	defer limit.Stop()
	for role, cmd := range d.procs {
		if cmd == nil {
			continue
		}
		// The reader of the answers ends with the pipe; it must, before Wait closes the pipe.
		for range d.out[role] {
		}
		_ = cmd.Wait()
	}
	_ = os.RemoveAll(d.dir)
}
