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

	"github.com/shmring/shmring/shm/shmtest"
	"github.com/shmring/shmring/xdp/veth"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waiting is a bind that has found its queue busy.
func waiting(timeout time.Duration, holder func(int, uint32) (int, error)) *busyWait {
	w := (&Socket{ifname: "eth7", ifindex: 7, queue: 3}).newBusyWait(Options{BusyTimeout: timeout})
	w.holder = holder
	return w
}

// TestBusyWait: a bind waits for what is dead or not known, and for nobody who lives unless it was
// told to.
func TestBusyWait(t *testing.T) {
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
		var by *QueueBusyError
		if !errors.As(err, &by) || by.PID != os.Getpid() || by.Command == "" || by.Queue != 3 ||
			!errors.Is(err, ErrQueueBusy) || !errors.Is(err, unix.EBUSY) ||
			!strings.Contains(err.Error(), by.Command) {
			t.Errorf("%v", err)
		}
	}
	living(waiting(0, answers(os.Getpid(), nil)).again(t.Context(), busy))
	w := waiting(time.Hour, answers(os.Getpid(), nil))
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
		if err := w.again(t.Context(), busy); err != nil {
			t.Error(err)
		}
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

// TestDying: a process is about to end from the moment on that it is killed, also while it cannot
// run, and is not because it is stopped.
func TestDying(t *testing.T) {
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
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
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

// TestQueueHolder: the kernel names who has a queue, or says that it does not know.
func TestQueueHolder(t *testing.T) {
	pair, err := veth.Open(veth.Config{})
	shmtest.Require(t, "xdp", err)
	var pid, other int
	err = pair.B.Do(func() error {
		umem, err := NewUMEM(UMEMOptions{Frames: 16})
		if err != nil {
			return err
		}
		s, err := Open(pair.B.Name, 0, umem, Options{})
		if err == nil {
			if pid, err = queueHolder(pair.B.Index, 0); err == nil {
				other, err = queueHolder(pair.B.Index, 1)
			}
			err = errors.Join(err, s.Close())
		}
		return errors.Join(err, umem.Close(t.Context()))
	})
	must(t, pair.Close())
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		t.Logf("a kernel without CONFIG_XDP_SOCKETS_DIAG: %v", err)
	case err != nil || pid != os.Getpid() || other != 0:
		t.Errorf("queue 0 is held by %d, queue 1 by %d: %v", pid, other, err)
	}
}
