package xdp

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

var must = shmtest.Must

// waiting is a bind that has found its queue busy.
func waiting(timeout time.Duration, holder func(int, uint32) (int, error)) *busyWait {
	w := (&Socket{ifname: "eth7", ifindex: 7, queue: 3}).newBusyWait(Options{BusyTimeout: timeout})
	w.holder = holder
	return w
}

// TestBusyWait: a bind waits for what is dead or not known, and for nobody who lives unless it was
// told to.
func TestBusyWait(t *testing.T) {
	t.Parallel()
	busy := refine(ErrQueueBusy, unix.EBUSY)
	asked := 0
	answers := func(pid int, err error) func(int, uint32) (int, error) {
		return func(ifindex int, queue uint32) (int, error) {
			if asked++; ifindex != 7 || queue != 3 {
				t.Errorf("asked for queue %d of %d", queue, ifindex)
			}
			return pid, err
		}
	}
	living := func(err error) {
		t.Helper()
		var by *BusyError
		if !errors.As(err, &by) || by.PID != os.Getpid() || by.Command == "" || by.Queue != 3 ||
			!errors.Is(err, ErrQueueBusy) || !errors.Is(err, unix.EBUSY) ||
			!strings.Contains(err.Error(), by.Command) {
			t.Errorf("%v", err)
		}
	}
	w := waiting(0, answers(os.Getpid(), nil))
	if err := w.again(t.Context(), busy); err != nil {
		t.Errorf("not known to stay: %v", err)
	}
	later(w, firstLook)
	living(w.again(t.Context(), busy))
	w = waiting(time.Hour, answers(os.Getpid(), nil))
	if err := w.again(t.Context(), busy); err != nil {
		t.Errorf("told to wait: %v", err)
	}
	w.deadline = time.Now()
	living(w.again(t.Context(), busy))

	for _, nobody := range []int{0, 1<<22 + 1} { // of which the second has no process
		w = waiting(0, answers(nobody, nil))
		for range 3 {
			if err := w.again(t.Context(), busy); err != nil {
				t.Errorf("held by %d: %v", nobody, err)
			}
		}
		w.deadline = time.Now()
		if err := w.again(t.Context(), busy); err != busy {
			t.Errorf("in the end: %v", err)
		}
	}
	asked = 0
	w = waiting(0, answers(0, unix.ENOENT))
	for range 3 {
		must(t, w.again(t.Context(), busy))
		later(w, 4*firstLook)
	}
	if asked != 1 {
		t.Errorf("a kernel that does not know was asked %d times", asked)
	}
	if err := waiting(-1, answers(0, nil)).again(t.Context(), busy); err != busy {
		t.Errorf("told not to wait: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w = waiting(0, answers(0, nil))
	w.pause = time.Hour
	if err := w.again(ctx, busy); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrQueueBusy) {
		t.Errorf("canceled: %v", err)
	}
}

// later has a bind find that so much time has passed.
func later(w *busyWait, d time.Duration) {
	now := w.now().Add(d)
	w.now = func() time.Time { return now }
}

// TestBusyLooks: only who has the queue at two looks, between which there is time to execute a
// program, or to end, keeps it; and where nobody is seen the looks become rare.
func TestBusyLooks(t *testing.T) {
	t.Parallel()
	busy := refine(ErrQueueBusy, unix.EBUSY)
	for name, c := range map[string]struct {
		pids  []int
		stays bool
	}{
		"the same":          {[]int{os.Getpid(), os.Getpid()}, true},
		"another one":       {[]int{os.Getpid(), os.Getppid()}, false},
		"nobody any more":   {[]int{os.Getpid(), 0}, false},
		"somebody":          {[]int{0, os.Getpid()}, false},
		"another one, then": {[]int{1, os.Getpid(), os.Getpid()}, true},
	} {
		looks := 0
		w := waiting(0, func(int, uint32) (int, error) { looks++; return c.pids[looks-1], nil })
		w.deadline = w.deadline.Add(time.Hour)
		later(w, 0)
		for i := range c.pids {
			err := w.again(t.Context(), busy)
			if last := i == len(c.pids)-1; errors.Is(err, ErrQueueBusy) != (c.stays && last) {
				t.Errorf("%s, look %d: %v", name, i+1, err)
			}
			if err := w.again(t.Context(), busy); !c.stays && err != nil || looks != i+1 {
				t.Errorf("%s: %d looks at once, %v", name, looks-i, err)
			}
			later(w, w.gap)
		}
	}
	looks := 0
	w := waiting(0, func(int, uint32) (int, error) { looks++; return 0, nil })
	for later(w, 0); w.again(t.Context(), busy) == nil; later(w, lastBusyPause) {
		w.pause = 0
	}
	if most := 2 + int(busyBound/firstLook); looks > 12 || looks < 3 {
		t.Errorf("%d looks in %v, of %d at equal intervals", looks, busyBound, most)
	}
}

// TestDying: a process is about to end from the moment on that it is killed, also while it cannot
// run, and is not because it is stopped.
func TestDying(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "1000")
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	pid := cmd.Process.Pid
	if dying(pid) || dying(os.Getpid()) {
		t.Error("it lives")
	}
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	if dying(pid) {
		t.Error("it is stopped")
	}
	must(t, cmd.Process.Kill())
	if !dying(pid) {
		t.Error("it was killed")
	}
	_ = cmd.Wait()
	if !dying(pid) {
		t.Error("it is gone")
	}
}

// TestSocketOwner: the process is found that has a socket.
func TestSocketOwner(t *testing.T) {
	t.Parallel()
	syscall.ForkLock.RLock() // a child of another test has the socket until it executes
	defer syscall.ForkLock.RUnlock()
	fd := shmtest.Got(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)).Or(t)
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	if pid := socketOwner(uint32(st.Ino)); pid != os.Getpid() {
		t.Errorf("found %d", pid)
	}
	must(t, unix.Close(fd))
	if pid := socketOwner(uint32(st.Ino)); pid != 0 {
		t.Errorf("nobody has it, found %d", pid)
	}
}
