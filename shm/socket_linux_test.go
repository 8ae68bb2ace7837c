package shm

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
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
		if strings.HasPrefix(n.Name(), "s") {
			t.Errorf("%s is left", n.Name())
		}
	}
	t.Logf("%d removed while 300 came", removed.Load())
}

// socketPair returns two connected sockets of this type.
func socketPair(t *testing.T, kind int) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

func TestSendAndReceiveFDs(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		a, b := socketPair(t, kind)
		o, err := CreateMemfd(specFor("sent"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer o.Close()
		if err := SendFDs(a, []byte("two"), o.FD(), o.FD()); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		n, fds, err := RecvFDs(b, buf, 2)
		if err != nil || string(buf[:n]) != "two" || len(fds) != 2 {
			t.Fatal(n, fds, err)
		}
		p, err := OpenFD(fds[0], "sent", ReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		wantLife(t, p, Alive)
		if p.Header().UUID != o.Header().UUID {
			t.Error("another object")
		}
		for _, fd := range fds {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil ||
				flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d is not close-on-exec, %v", fd, err)
			}
			sysClose(fd)
		}
		p.Close()

		// What does not fit is an error, and the leak gate sees that nothing stays open.
		for _, sent := range [][]int{{o.FD(), o.FD()}, {o.FD(), o.FD(), o.FD(), o.FD()}} {
			if err := SendFDs(a, []byte("x"), sent...); err != nil {
				t.Fatal(err)
			}
			if _, fds, err := RecvFDs(b, buf, 1); !errors.Is(err, ErrTruncated) || fds != nil {
				t.Errorf("%d descriptors where 1 was agreed: %v, %v", len(sent), fds, err)
			}
		}
		if err := SendFDs(a, []byte("plain")); err != nil {
			t.Fatal(err)
		}
		if n, fds, err := RecvFDs(b, buf, 0); err != nil || n != 5 || len(fds) != 0 {
			t.Error(n, fds, err)
		}
	}
	a, b := socketPair(t, unix.SOCK_SEQPACKET)
	if err := SendFDs(a, make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := RecvFDs(b, make([]byte, 8), 0); !errors.Is(err, ErrTruncated) {
		t.Errorf("long message: %v", err)
	}
	if err := SendFDs(a, nil, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("empty message: %v", err)
	}
	if err := SendFDs(a, []byte("x"), make([]int, 254)...); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("254 descriptors: %v", err)
	}
	if _, _, err := RecvFDs(b, nil, -1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("-1 descriptors: %v", err)
	}
}

// identify returns the identity of a child.
func identify(t *testing.T, c *child) Owner {
	t.Helper()
	st, ok := readStat("/proc/" + strconv.Itoa(c.Process.Pid) + "/stat")
	if !ok {
		t.Fatal("the child has no stat")
	}
	w := Self()
	w.PID, w.StartTicks = c.Process.Pid, st.startTicks
	return w
}

// openFDs counts the descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestFollowOwner: whoever follows a process is told of its death once, however many do so, by one
// descriptor.
func TestFollowOwner(t *testing.T) {
	c := startChild(t, "sleeper")
	w := identify(t, c)
	var calls, stopped atomic.Int32
	died := make(chan struct{})
	stop, err := FollowOwner(w, func() {
		if calls.Add(1) == 1 {
			close(died)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	before := openFDs(t)
	stop2, err := FollowOwner(w, func() { stopped.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors for one process more", n-before)
	}
	stop2()
	stop2()
	select {
	case <-died:
		t.Fatal("a living process is reported dead")
	case <-time.After(20 * time.Millisecond):
	}
	c.kill()
	<-died
	stop()
	stop()
	if n := openFDs(t); n >= before {
		t.Errorf("%d descriptors after the process, %d while it was followed", n, before)
	}
	if calls.Load() != 1 || stopped.Load() != 0 {
		t.Errorf("%d notices, %d after stop", calls.Load(), stopped.Load())
	}

	again := make(chan struct{})
	stop, err = FollowOwner(w, func() { close(again) })
	if err != nil {
		t.Fatal(err)
	}
	<-again
	stop()

	w = Self()
	w.StartTicks++ // another process had our number
	once := make(chan struct{})
	stop, err = FollowOwner(w, func() { close(once) })
	if err != nil {
		t.Fatal(err)
	}
	<-once
	stop()

	w = Self()
	w.PIDNS++
	if _, err := FollowOwner(w, func() {}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another namespace: %v", err)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestOpenPassed refuses whatever is not a memfd with just the right seals and all its memory.
func TestOpenPassed(t *testing.T) {
	spec := Spec{Kind: KindRegion, Sections: []Section{{Kind: 1, Length: 1 << 20}}}
	size, err := Plan(spec)
	check(t, err)
	object := func(seals Seals) *Object {
		o, err := CreateMemfd(spec, nil)
		check(t, err)
		t.Cleanup(func() { o.Close() })
		if seals != 0 {
			check(t, o.Seal(seals))
		}
		return o
	}
	good := object(SealOthers)
	fd, err := good.ShareFD()
	check(t, err)
	o, err := OpenPassed(fd, "good", size)
	check(t, err)
	if o.Header().UUID != good.Header().UUID {
		t.Error("another object")
	}
	if _, err := o.MapWritable(1, 0); err == nil {
		t.Error("a section was mapped for writing")
	}
	check(t, o.Close())
	_, err = OpenPassed(fd, "large", size-1)
	if !errors.Is(err, ErrNoSpace) {
		t.Error("too large:", err)
	}
	CloseFDs([]int{fd})
	for name, seals := range map[string]Seals{"none": 0, "all but one": SealShrink |
		SealGrow | SealSeal, "not final": SealOthers &^ SealSeal,
		"can shrink": SealOthers &^ SealShrink} {
		if _, err := OpenPassed(object(seals).FD(), name, size); !errors.Is(err, ErrOwner) {
			t.Errorf("seals: %s: %v", name, err)
		}
	}
	sparse, err := unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	check(t, err)
	defer unix.Close(sparse)
	_, err = unix.Pwrite(sparse, good.Bytes()[:8192], 0)
	check(t, err)
	check(t, unix.Ftruncate(sparse, int64(size)))
	_, err = unix.FcntlInt(uintptr(sparse), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|
		unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)
	check(t, err)
	if _, err = OpenPassed(sparse, "sparse", size); !errors.Is(err, ErrTruncated) {
		t.Error("sparse:", err)
	}
	r, w, err := os.Pipe()
	check(t, err)
	defer r.Close()
	defer w.Close()
	if _, err = OpenPassed(int(r.Fd()), "pipe", size); !errors.Is(err, ErrOwner) {
		t.Error("pipe:", err)
	}
	if _, err = OpenPassed(-1, "none", size); !errors.Is(err, syscall.EBADF) {
		t.Error("none:", err)
	}
}
