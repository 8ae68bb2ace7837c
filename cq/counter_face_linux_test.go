package cq_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// readable polls a descriptor; it does not wait if ms is 0.
func readable(t testing.TB, fd, ms int) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, ms)
		if err != unix.EINTR {
			must(t, err)
			return n > 0
		}
	}
}

// TestCounterDescriptorBeside: the descriptor and blocked goroutines of one handle do not take each
// other's wakes, whoever of them sleeps for the others.
func TestCounterDescriptorBeside(t *testing.T) {
	t.Parallel()
	d, c := counter(t, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{})
	for round := range uint64(200) {
		wantCounter(t, c, 2*round, 0)
		var waits []func()
		wait := func() {
			done := make(chan error, 1)
			go func() { done <- cntrWait(c, 2*round+2, time.Minute) }()
			waits = append(waits, func() { must(t, <-done) })
		}
		if round%2 == 0 {
			wait()
			if round%4 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		must(t, c.TryWait())
		wait()
		if round%8 < 4 {
			time.Sleep(100 * time.Microsecond)
		}
		must(t, other.Add(1))
		if !readable(t, waitFD(c), 60_000) {
			t.Fatalf("round %d: not readable: %+v", round, c.Stats())
		}
		must(t, other.Add(1))
		for _, w := range waits {
			w()
		}
	}
}

// TestCounterDescriptorClosed: Close ends a wait on the descriptor before it takes it away.
func TestCounterDescriptorClosed(t *testing.T) {
	d := openDir(t)
	c, err := cq.CreateCounter(d, queueName(t), cq.CounterOptions{Wait: cq.WaitFD})
	must(t, err)
	fd, err := unix.FcntlInt(uintptr(waitFD(c)), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, c.TryWait())
	must(t, c.Close())
	wantErr(t, "trywait", c.TryWait(), cq.ErrClosed, os.ErrClosed)
}
