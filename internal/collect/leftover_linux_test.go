package collect_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// bindSocket returns the descriptor of a socket that is bound to a path.
func bindSocket(t *testing.T, kind int, path string) int {
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
	d := openDir(t)
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET,
		"datagrams": unix.SOCK_DGRAM} {
		path := filepath.Join(d.Path(), name)
		fd := bindSocket(t, kind, path)
		look := func(what string, want bool) {
			t.Helper()
			if got, err := collect.Bound(d, name); err != nil || got != want {
				t.Errorf("%s, %s: bound %v, %v", name, what, got, err)
			}
		}
		look("bound", true)
		if err := collect.RemoveUnbound(d, name); !errors.Is(err, syscall.EBUSY) {
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
		if err := collect.RemoveUnbound(d, name); err != nil {
			t.Error(err)
		}
		if _, err := collect.Bound(d, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, removed: %v", name, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600))
	if err := collect.RemoveUnbound(d, "file"); !errors.Is(err, shm.ErrKind) {
		t.Errorf("a file: %v", err)
	}
	for _, name := range []string{"", "..", "../x", "a/b"} {
		if _, err := collect.Bound(d, name); !errors.Is(err, shm.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := collect.Bound(d, "."); !errors.Is(err, shm.ErrKind) {
		t.Errorf("the directory: %v", err)
	}
}

// TestBoundByLock: who has the lock of a name may be about to bind it.
func TestBoundByLock(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	path := filepath.Join(d.Path(), "s")
	must(t, unix.Close(bindSocket(t, unix.SOCK_SEQPACKET, path)))
	lock := shmtest.Got(unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)).Or(t)
	l := unix.Flock_t{Type: unix.F_WRLCK}
	must(t, unix.FcntlFlock(uintptr(lock), unix.F_OFD_SETLK, &l))
	if bound, err := collect.Bound(d, "s"); !bound || err != nil {
		t.Errorf("locked: %v, %v", bound, err)
	}
	if err := collect.RemoveUnbound(d, "s"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("locked: %v", err)
	}
	must(t, unix.Close(lock))
	must(t, collect.RemoveUnbound(d, "s"))
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the lock file: %v", err)
	}
}

// TestSocketAside: what a collector moved aside before it died is removed, and given its name back
// if somebody has it.
func TestSocketAside(t *testing.T) {
	shmtest.Conforms(t)
	const aside = "s~collected"
	d := openDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	fd := bindSocket(t, unix.SOCK_STREAM, at("s"))
	must(t, os.Rename(at("s"), at(aside)))
	if bound, err := collect.Bound(d, aside); bound || err != nil {
		t.Errorf("aside: %v, %v", bound, err)
	}
	if err := collect.RemoveUnbound(d, aside); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("aside, of one that lives: %v", err)
	}
	if bound, err := collect.Bound(d, "s"); !bound || err != nil {
		t.Errorf("given back: %v, %v", bound, err)
	}
	must(t, unix.Close(fd))
	must(t, os.Rename(at("s"), at(aside)))
	must(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, at("s"))))
	must(t, collect.RemoveUnbound(d, "s")) // both
	if names, err := d.List(); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestSocketCollectedOnlyDead: listeners that take over from dead ones come and go while others
// collect. None of those that live loses its name.
func TestSocketCollectedOnlyDead(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	path := filepath.Join(d.Path(), "s")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var removed atomic.Int64
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				switch err := collect.RemoveUnbound(d, "s"); {
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
		must(t, err)
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
		must(t, l.Close())
	}
	stop()
	wg.Wait()
	if err := collect.RemoveUnbound(d, "s"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	names := shmtest.Got(d.List()).Or(t)
	for _, n := range names {
		if strings.HasPrefix(n.Name(), "s") {
			t.Errorf("%s is left", n.Name())
		}
	}
	t.Logf("%d removed while 300 came", removed.Load())
}

// TestLooksKeepNoLock: who looks at what may be garbage has it locked for the time of that look,
// and no longer, whatever programs this process starts meanwhile: until such a child calls exec it
// has what its parent has.
func TestLooksKeepNoLock(t *testing.T) {
	const rounds = 300
	d := openDir(t)
	must(t, os.WriteFile(filepath.Join(d.Path(), "cut"), nil, 0o600))
	for i := range rounds {
		path := filepath.Join(d.Path(), strconv.Itoa(i))
		must(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, path)))
		must(t, os.WriteFile(path+shm.LockSuffix, nil, 0o600))
	}
	end := make(chan struct{})
	var forks sync.WaitGroup
	forks.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = exec.CommandContext(t.Context(), "true").Run()
			}
		}
	})
	defer forks.Wait()
	defer close(end)
	for range 20 {
		if _, err := collect.Truncated(d, "cut"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		if err := collect.RemoveUnbound(d, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNamesDirectory: a name means what was opened by it until that is moved or removed.
func TestNamesDirectory(t *testing.T) {
	d := openDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	sub := shmtest.Have(d.Sub("one", true)).In(t)
	means := func(name string, want bool) {
		t.Helper()
		if got, err := collect.LeadsTo(d, name, sub); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	means("one", true)
	means("two", false)
	must(t, os.Rename(at("one"), at("two")))
	must(t, os.Mkdir(at("one"), 0o700))
	means("one", false)
	means("two", true)
	must(t, errors.Join(d.RemoveSub("one"), d.RemoveSub("two")))
	means("two", false)
	if _, err := collect.LeadsTo(d, "a/b", sub); !errors.Is(err, shm.ErrName) {
		t.Errorf("a path: %v", err)
	}
}
