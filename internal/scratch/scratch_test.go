package scratch

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestSweepSparesTheLiving(t *testing.T) {
	base := t.TempDir()
	dead, alive := filepath.Join(base, prefix+"x-1"), filepath.Join(base, prefix+"x-2")
	for _, dir := range []string{dead, alive} {
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := lockDir(alive, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Mkfifo(filepath.Join(base, prefix+"x-3"), 0o600); err != nil {
		t.Fatal(err)
	}
	sweep(base, "x")
	if _, err := os.Stat(dead); err == nil {
		t.Error("the dead one is still there")
	}
	if _, err := os.Stat(alive); err != nil {
		t.Error("the living one is gone")
	}
}
