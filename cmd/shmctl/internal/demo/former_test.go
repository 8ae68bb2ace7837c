package demo

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestFormerRunIsRemoved kills every process of a run at once, so that nobody is left to clean up;
// the next run does, and leaves alone what is alive.
func TestFormerRunIsRemoved(t *testing.T) {
	cmd, pids := start(t, PathShm)
	other, _ := start(t, PathShm)
	defer func(cmd *exec.Cmd) {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		leftNothing(t)
	}(other)
	_ = cmd.Process.Signal(syscall.SIGSTOP) // it must not see its children die first
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	var entries []os.DirEntry
	for range 50 { // until the kernel is done with the dead
		if _, err := Run(t.Context(), Options{Path: PathShm, Count: 1000}); err != nil {
			t.Fatal(err)
		}
		var err error
		if entries, err = os.ReadDir(os.Getenv("SHMRING_DIR")); err != nil {
			t.Fatal(err)
		}
		if len(entries) == 2 {
			return
		}
	}
	t.Errorf("%d queues, of which the run that goes on has two: %v", len(entries), entries)
}
