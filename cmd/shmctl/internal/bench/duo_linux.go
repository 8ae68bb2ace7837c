package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/stage"
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
	procs [2]*stage.Process
	said  [2]chan string // closed at the end of the process
	dir   string         // of their queues
}

// startDuo starts both processes, each with its command line, nil for ours, followed by role and
// processor. The caller's goroutine must be locked to its thread until close.
func startDuo(s *shared, cpus [2]int, programs ...[]string) (*duo, error) {
	dir, err := os.MkdirTemp(s.dir, "side-")
	if err != nil {
		return nil, fmt.Errorf("bench: directory for queues: %w", err)
	}
	d := &duo{dir: dir}
	for role, program := range programs {
		said := make(chan string, 1)
		d.said[role] = said
		d.procs[role], err = stage.Spec{Tool: toolName, Role: strconv.Itoa(role), Script: cpus[role],
			Program: program, Files: s.files, Env: []string{shm.EnvDir + "=" + d.dir},
			Stderr: os.Stderr,
			// A process whose partner died spins: it must not outlive us.
			Attr:  &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
			Hear:  func(line []byte) { said <- string(line) },
			Ended: func() { close(said) }}.Start()
		if err != nil {
			d.close()
			return nil, err
		}
	}
	return d, nil
}

// run gives both processes a command and returns their answers. After an error the duo is of no
// use: one of the two may spin, waiting for the other.
func (d *duo) run(ctx context.Context, command string) (answers [2]answer, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundLimit,
		errors.New("a round did not end; is a processor overcommitted or stopped?"))
	defer cancel()
	for role, p := range d.procs {
		if err := p.Tell(command); err != nil {
			return answers, fmt.Errorf("command to process %d: %w", role, err)
		}
	}
	said := d.said
	for range answers {
		var line string
		var role int
		var lives bool
		select {
		case <-ctx.Done():
			return answers, context.Cause(ctx)
		case line, lives = <-said[0]:
		case line, lives = <-said[1]:
			role = 1
		}
		said[role] = nil
		if !lives {
			return answers, fmt.Errorf("process %d ended during a round: %v", role,
				d.procs[role].State())
		}
		a := &answers[role]
		// Programs in C do not say how much they allocate.
		n, err := fmt.Sscan(line, &a.ns, &a.checksum, &a.before, &a.after, &a.share, &a.cpuNs,
			&a.allocs)
		if n < 6 {
			return answers, fmt.Errorf("answer %q of process %d: %w", line, role, err)
		}
	}
	return answers, nil
}

// patience is how long a process may take to clean up. One whose partner died spins instead.
const patience = time.Second

// close ends both processes: libfabric's files go only if it may remove them itself. What does not
// end is killed.
func (d *duo) close() {
	stage.End(patience, d.procs[:]...)
	_ = os.RemoveAll(d.dir)
}
