package scratch

import (
	"errors"
	"io/fs"
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

// TestOthers: processes of other users are not started where they cannot get to.
func TestOthers(t *testing.T) {
	base := t.TempDir()
	inner, link := filepath.Join(base, "x"), filepath.Join(base, "to")
	if err := errors.Join(os.Chmod(filepath.Dir(base), 0o755), os.Mkdir(inner, 0o755),
		os.Symlink(inner, link)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if err := Others(inner); !errors.Is(err, fs.ErrPermission) {
			t.Error(err)
		}
		return
	}
	for _, mode := range []fs.FileMode{0o755, 0o710} {
		if err := os.Chmod(base, mode); err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{inner, link} {
			if err := Others(dir); (err == nil) != (mode == 0o755) {
				t.Errorf("%s below mode %v: %v", dir, mode, err)
			}
		}
	}
}
