package shm

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// socketTestDir returns a directory that nobody has locked, as the one of all tests is.
func socketTestDir(t testing.TB) *Dir {
	t.Helper()
	d, err := OpenDir(filepath.Join(openTestDir(t).Path(), "sockets"))
	noErr(t, err)
	t.Cleanup(func() { noErr(t, errors.Join(os.RemoveAll(d.Path()), d.Close())) })
	return d
}

// bindSocket returns the descriptor of a socket that is bound to a path.
func bindSocket(t testing.TB, kind int, path string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestBound: a socket is somebody's from bind to the last close, whatever its kind and whether it
// listens; and asking does not reach whoever accepts.
func TestBound(t *testing.T) {
	shmtest.Conforms(t)
	d := socketTestDir(t)
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET,
		"datagrams": unix.SOCK_DGRAM} {
		path := filepath.Join(d.Path(), name)
		fd := bindSocket(t, kind, path)
		look := func(what string, want bool) {
			t.Helper()
			if got, err := d.Bound(name); err != nil || got != want {
				t.Errorf("%s, %s: bound %v, %v", name, what, got, err)
			}
		}
		look("bound", true)
		if err := d.RemoveUnbound(name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", name, err)
		}
		if kind != unix.SOCK_DGRAM {
			if err := unix.Listen(fd, 1); err != nil {
				t.Fatal(err)
			}
			look("listening", true)
			if err := unix.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			if _, _, err := unix.Accept(fd); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%s: the look came in: %v", name, err)
			}
			if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
				t.Fatal(err)
			}
			look("shut down", true)
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		look("closed", false)
		if err := d.RemoveUnbound(name); err != nil {
			t.Error(err)
		}
		if _, err := d.Bound(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, removed: %v", name, err)
		}
	}
	noErr(t, os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600))
	if err := d.RemoveUnbound("file"); !errors.Is(err, ErrKind) {
		t.Errorf("a file: %v", err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b"} {
		if _, err := d.Bound(name); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestBoundByLock: who has the lock of a name may be about to bind it.
func TestBoundByLock(t *testing.T) {
	shmtest.Conforms(t)
	d := socketTestDir(t)
	path := filepath.Join(d.Path(), "s")
	noErr(t, unix.Close(bindSocket(t, unix.SOCK_SEQPACKET, path)))
	lock, err := unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	noErr(t, err)
	l := unix.Flock_t{Type: unix.F_WRLCK}
	noErr(t, unix.FcntlFlock(uintptr(lock), unix.F_OFD_SETLK, &l))
	if bound, err := d.Bound("s"); !bound || err != nil {
		t.Errorf("locked: %v, %v", bound, err)
	}
	if err := d.RemoveUnbound("s"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("locked: %v", err)
	}
	noErr(t, unix.Close(lock))
	noErr(t, d.RemoveUnbound("s"))
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the lock file: %v", err)
	}
}

// TestSocketAside: what a collector moved aside before it died is removed, and given its name back
// if somebody has it.
func TestSocketAside(t *testing.T) {
	shmtest.Conforms(t)
	const aside = "s~collected"
	d := socketTestDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	fd := bindSocket(t, unix.SOCK_STREAM, at("s"))
	noErr(t, os.Rename(at("s"), at(aside)))
	if bound, err := d.Bound(aside); bound || err != nil {
		t.Errorf("aside: %v, %v", bound, err)
	}
	if err := d.RemoveUnbound(aside); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("aside, of one that lives: %v", err)
	}
	if bound, err := d.Bound("s"); !bound || err != nil {
		t.Errorf("given back: %v, %v", bound, err)
	}
	noErr(t, unix.Close(fd))
	noErr(t, os.Rename(at("s"), at(aside)))
	noErr(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, at("s"))))
	noErr(t, d.RemoveUnbound("s")) // both
	if names, err := d.List(); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestSocketCollectedOnlyDead: listeners that take over from dead ones come and go while others
// collect. None of those that live loses its name.
func TestSocketCollectedOnlyDead(t *testing.T) {
	shmtest.Conforms(t)
	d := socketTestDir(t)
	path := filepath.Join(d.Path(), "s")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var removed atomic.Int64
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				switch err := d.RemoveUnbound("s"); {
				case err == nil:
					removed.Add(1)
				case !errors.Is(err, syscall.EBUSY) && !errors.Is(err, fs.ErrNotExist):
					t.Error(err)
					return
				}
			}
		})
	}
	for range 300 {
		// As programs do: what stands there is taken for dead, and replaced.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // the last one was aside, alive, when we removed it, and is back
		}
		noErr(t, err)
		l.SetUnlinkOnClose(false)
		// A collector may have it aside for a moment, or have died there, as this test does not.
		for by := time.Now().Add(30 * time.Second); ; {
			c, err := net.Dial("unix", path)
			if err == nil {
				_ = c.Close()
				break
			}
			if !errors.Is(err, fs.ErrNotExist) || time.Now().After(by) {
				t.Errorf("a listener that lives: %v", err)
				break
			}
		}
		noErr(t, l.Close())
	}
	stop()
	wg.Wait()
	if err := d.RemoveUnbound("s"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	names, err := d.List()
	noErr(t, err)
	for _, n := range names {
		if strings.HasPrefix(n.Name, "s") {
			t.Errorf("%s is left", n.Name)
		}
	}
	t.Logf("%d removed while 300 came", removed.Load())
}
