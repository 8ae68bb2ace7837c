package shmtest

import (
	"fmt"
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
