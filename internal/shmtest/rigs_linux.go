package shmtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/crash"
)

// Halted reports whether all threads of the child are stopped: the first one says nothing of the
// others, which may be in the middle of something.
func (p *Proc) Halted() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Process.Pid))
	for _, path := range threads {
		if b, _ := os.ReadFile(path); !strings.Contains(string(b), ") T ") {
			return false
		}
	}
	return err == nil && len(threads) > 0
}

// Halt stops the child, until GoOn.
func (p *Proc) Halt(t testing.TB) {
	t.Helper()
	Must(t, p.Process.Signal(unix.SIGSTOP))
	Eventually(t, "the child stops", p.Halted)
}

// GoOn has a child that is stopped go on.
func (p *Proc) GoOn(t testing.TB) {
	t.Helper()
	Must(t, p.Process.Signal(unix.SIGCONT))
}

// HaltAt stops this process when it passes a step for the n-th time, after first. The signal is for
// the thread that passes, so that it does not pass before the process has it.
func HaltAt(step string, n uint64, first func()) {
	l, ok := crash.Parse(step)
	if !ok {
		Need(fmt.Errorf("no step %q", step))
	}
	crash.Passing(l, n, func() {
		first()
		runtime.LockOSThread()
		Need(unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP))
		runtime.UnlockOSThread()
	})
}

// LimitFiles has this process get no descriptors from that number on, until restore. It may be
// called again before.
func LimitFiles(most uint64) (restore func()) {
	var had unix.Rlimit
	Need(unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	set := func(most uint64) {
		Need(unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(most, had.Cur), Max: had.Max},
			nil))
	}
	set(most)
	return func() { set(had.Cur) }
}

// Sockets returns a connected pair of sockets of a type.
func Sockets(kind int) (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if a, err = Socket(fds[0]); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fds[1]))
	}
	if b, err = Socket(fds[1]); err != nil {
		return nil, nil, errors.Join(err, a.Close())
	}
	return a, b, nil
}

// Socket takes a descriptor over.
func Socket(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
