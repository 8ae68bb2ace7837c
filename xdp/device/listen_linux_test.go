package device_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// TestListen: a path belongs to who holds its lock. What a dead process left there is replaced, and
// nothing else is.
func TestListen(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	path := socketPath(t)
	l, err := device.Listen(path)
	must(t, err)
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v: everybody may connect", info.Mode())
	}
	if _, err := device.Listen(path); !errors.Is(err, device.ErrServing) ||
		!errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second one: %v", err)
	}
	must(t, os.Remove(path+".lock")) // by somebody who tidies up
	if _, err := device.Listen(path); !errors.Is(err, device.ErrServing) {
		t.Errorf("a second one without the lock file: %v", err)
	}
	must(t, l.Close())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	dead, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	must(t, dead.Close())
	l, err = device.Listen(path)
	must(t, err)
	c, err := net.Dial("unixpacket", path)
	must(t, err)
	must(t, errors.Join(c.Close(), l.Close(), os.WriteFile(path, []byte("precious"), 0o600)))
	if _, err := device.Listen(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file: %q, %v", b, err)
	}
}

// TestListenMoved: a listener whose directory was moved removes its socket where it is, and nothing
// that stands at the path by now.
func TestListenMoved(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	dir := filepath.Join(filepath.Dir(path), "d")
	must(t, os.Mkdir(dir, 0o700))
	l, err := device.Listen(filepath.Join(dir, "s"))
	must(t, err)
	must(t, errors.Join(os.Rename(dir, dir+".moved"), os.Mkdir(dir, 0o700)))
	must(t, os.WriteFile(filepath.Join(dir, "s"), []byte("precious"), 0o600))
	must(t, l.Close())
	if b, err := os.ReadFile(filepath.Join(dir, "s")); err != nil || string(b) != "precious" {
		t.Errorf("the stranger's: %q, %v", b, err)
	}
	if _, err := os.Lstat(filepath.Join(dir+".moved", "s")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ours: %v", err)
	}
}
