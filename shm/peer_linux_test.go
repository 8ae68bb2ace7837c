package shm

import (
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm/shmtest"
)

func TestCheckSealed(t *testing.T) {
	const all = SealShrink | SealGrow | SealSeal
	make := func(seals ...Seals) *Object {
		o, err := CreateMemfd(specFor("sealed"), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = o.Close() })
		for _, s := range seals {
			if err := o.Seal(s); err != nil {
				t.Fatal(err)
			}
		}
		return o
	}
	if err := make(all).CheckSealed(all); err != nil {
		t.Error(err)
	}
	for name, o := range map[string]*Object{"none": make(), "some": make(SealShrink | SealGrow),
		"more": make(SealFutureWrite, all)} {
		if err := o.CheckSealed(all); !errors.Is(err, ErrOwner) {
			t.Error(name, err)
		}
	}
	d := openTestDir(t)
	file, err := d.Create("file", specFor("file"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(file.Unlink(), file.Close()) }()
	if err := file.CheckSealed(all); !errors.Is(err, ErrOwner) {
		t.Error("a file with a name:", err)
	}
	cut := make()
	o, err := OpenFD(cut.FD(), "cut", ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := errors.Join(unix.Ftruncate(cut.FD(), 4096), cut.Seal(all)); err != nil {
		t.Fatal(err)
	}
	if err := o.CheckSealed(all); !errors.Is(err, ErrTruncated) {
		t.Error("cut before it was sealed:", err)
	}
	closed := make(all)
	closed.Close()
	if err := closed.CheckSealed(all); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestCheckPeer: a connection made by another user is refused.
func TestCheckPeer(t *testing.T) {
	a, b := socketPair(t, unix.SOCK_STREAM)
	if err := errors.Join(CheckPeer(a), CheckPeer(b)); err != nil {
		t.Error(err)
	}
	a.Close()
	if err := CheckPeer(a); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("nobody else may be another user"))
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@shmring-peer-test", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := dialAs(65534, "@shmring-peer-test")
	if err != nil {
		t.Fatal(err)
	}
	defer sysClose(fd)
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := CheckPeer(c); !errors.Is(err, ErrOwner) || !errors.Is(err, syscall.EPERM) {
		t.Errorf("another user: %v", err)
	}
}

// dialAs connects a socket as another user: credentials belong to threads.
func dialAs(uid uintptr, name string) (fd int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	keep := ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uid, keep); e != 0 {
		return -1, e
	}
	defer unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep)
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	return fd, err
}
