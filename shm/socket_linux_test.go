package shm

import (
	"errors"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestSendAndReceiveFDs(t *testing.T) {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		a, b := shmtest.Connected(t, kind)
		o := shmtest.Have(CreateMemfd(specFor("sent"), nil)).In(t)
		must(t, SendFDs(a, []byte("two"), o.FD(), o.FD()))
		buf := make([]byte, 16)
		n, fds, err := RecvFDs(b, buf, 2)
		if err != nil || string(buf[:n]) != "two" || len(fds) != 2 {
			t.Fatal(n, fds, err)
		}
		p := shmtest.Got(OpenFD(fds[0], "sent", ReadOnly)).Or(t)
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
			must(t, SendFDs(a, []byte("x"), sent...))
			if _, fds, err := RecvFDs(b, buf, 1); !errors.Is(err, ErrTruncated) || fds != nil {
				t.Errorf("%d descriptors where 1 was agreed: %v, %v", len(sent), fds, err)
			}
		}
		must(t, SendFDs(a, []byte("plain")))
		if n, fds, err := RecvFDs(b, buf, 0); err != nil || n != 5 || len(fds) != 0 {
			t.Error(n, fds, err)
		}
	}
	a, b := shmtest.Connected(t, unix.SOCK_SEQPACKET)
	must(t, SendFDs(a, make([]byte, 32)))
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
func identify(t *testing.T, c *shmtest.Proc) Owner {
	t.Helper()
	st, ok := readStat("/proc/" + strconv.Itoa(c.Process.Pid) + "/stat")
	if !ok {
		t.Fatal("the child has no stat")
	}
	w := Self()
	w.PID, w.StartTicks = c.Process.Pid, st.startTicks
	return w
}

// TestFollowOwner: whoever follows a process is told of its death once, however many do so, by one
// descriptor.
func TestFollowOwner(t *testing.T) {
	c := startChild(t, "sleeper")
	w := identify(t, c)
	var calls, stopped atomic.Int32
	died := make(chan struct{})
	stop := shmtest.Got(FollowOwner(w, func() {
		if calls.Add(1) == 1 {
			close(died)
		}
	})).Or(t)
	before := len(shmtest.Descriptors())
	stop2 := shmtest.Got(FollowOwner(w, func() { stopped.Add(1) })).Or(t)
	if n := len(shmtest.Descriptors()); n != before {
		t.Errorf("%d descriptors for one process more", n-before)
	}
	stop2()
	stop2()
	select {
	case <-died:
		t.Fatal("a living process is reported dead")
	case <-time.After(20 * time.Millisecond):
	}
	c.Kill()
	<-died
	stop()
	stop()
	if n := len(shmtest.Descriptors()); n >= before {
		t.Errorf("%d descriptors after the process, %d while it was followed", n, before)
	}
	if calls.Load() != 1 || stopped.Load() != 0 {
		t.Errorf("%d notices, %d after stop", calls.Load(), stopped.Load())
	}

	again := make(chan struct{})
	stop = shmtest.Got(FollowOwner(w, func() { close(again) })).Or(t)
	<-again
	stop()

	w = Self()
	w.StartTicks++ // another process had our number
	once := make(chan struct{})
	stop = shmtest.Got(FollowOwner(w, func() { close(once) })).Or(t)
	<-once
	stop()

	w = Self()
	w.PIDNS++
	if _, err := FollowOwner(w, func() {}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another namespace: %v", err)
	}
}

// TestOpenPassed refuses whatever is not a memfd with just the right seals and all its memory.
func TestOpenPassed(t *testing.T) {
	spec := Spec{Kind: KindRegion, Sections: []Section{{Kind: 1, Length: 1 << 20}}}
	size := shmtest.Got(Plan(spec)).Or(t)
	object := func(seals Seals) *Object {
		o := shmtest.Have(CreateMemfd(spec, nil)).In(t)
		if seals != 0 {
			must(t, o.Seal(seals))
		}
		return o
	}
	good := object(SealOthers)
	fd := shmtest.Got(good.ShareFD()).Or(t)
	o := shmtest.Got(OpenPassed(fd, "good", size)).Or(t)
	if o.Header().UUID != good.Header().UUID {
		t.Error("another object")
	}
	if _, err := o.MapWritable(1, 0); err == nil {
		t.Error("a section was mapped for writing")
	}
	must(t, o.Close())
	_, err := OpenPassed(fd, "large", size-1)
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
	sparse := shmtest.Got(unix.MemfdCreate("sparse", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)).Or(t)
	defer unix.Close(sparse)
	shmtest.Got(unix.Pwrite(sparse, good.Bytes()[:8192], 0)).Or(t)
	must(t, unix.Ftruncate(sparse, int64(size)))
	shmtest.Got(unix.FcntlInt(uintptr(sparse), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|
		unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE)).Or(t)
	if _, err = OpenPassed(sparse, "sparse", size); !errors.Is(err, ErrTruncated) {
		t.Error("sparse:", err)
	}
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	if _, err = OpenPassed(int(r.Fd()), "pipe", size); !errors.Is(err, ErrOwner) {
		t.Error("pipe:", err)
	}
	if _, err = OpenPassed(-1, "none", size); !errors.Is(err, syscall.EBADF) {
		t.Error("none:", err)
	}
}
