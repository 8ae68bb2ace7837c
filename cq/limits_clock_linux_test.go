package cq_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

var setClock = flag.Bool("limits.clock", false,
	"let TestClockJumps set the clock of the machine, for a second or two")

// wallOffset is what the wall clock has more than the monotonic one, in ns.
func wallOffset(t *testing.T) int64 {
	var wall, mono unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono))
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &wall))
	return wall.Nano() - mono.Nano()
}

// jump sets the wall clock to what it has without any jump, and so many seconds more.
func jump(offset int64, seconds int) error {
	var mono unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		return err
	}
	to := unix.NsecToTimespec(mono.Nano() + offset + int64(seconds)*1e9)
	return unix.ClockSettime(unix.CLOCK_REALTIME, &to)
}

// TestClockJumps: a blocking read takes as long as it should, wherever the wall clock jumps
// meanwhile. It runs alone, as it does that to everybody on the machine.
func TestClockJumps(t *testing.T) {
	if !*setClock {
		t.Skip("sets the clock of the machine: run it alone, with -limits.clock")
	}
	offset := wallOffset(t)
	shmtest.Require(t, "clock", jump(offset, 0))
	t.Cleanup(func() { must(t, jump(offset, 0)) })
	const far = 40 // seconds, either way
	jumping := func() (stop func()) {
		end, done := make(chan struct{}), make(chan error)
		go func() {
			for sign := far; ; sign = -sign {
				select {
				case <-end:
					done <- jump(offset, 0)
					return
				case <-time.After(5 * time.Millisecond):
					_ = jump(offset, sign)
				}
			}
		}()
		return func() {
			close(end)
			must(t, <-done)
		}
	}
	q, w := pair(t, cq.Options{Spin: -1})
	dst := make([]cq.Context, 1)
	const wait = 150 * time.Millisecond
	for name, read := range map[string]func() error{
		"timeout": func() error {
			_, err := sread(q, dst, wait)
			return instead(err, cq.ErrTimedOut)
		},
		"context": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
			return instead(err, context.DeadlineExceeded)
		},
	} {
		stop, begin := jumping(), time.Now()
		err := read()
		took := time.Since(begin) // by the monotonic clock
		stop()
		must(t, err)
		if took < wait || took > far/2*time.Second {
			t.Errorf("%s: %v, want %v", name, took, wait)
		}
	}
	stop := jumping()
	for i := range uint64(50) {
		done := later(func() { post(t, w, i, i+1) })
		n, err := sread(q, dst, time.Minute)
		done()
		if n != 1 || err != nil || dst[0].Context != i {
			t.Errorf("read %d, %v, %v", n, dst, err)
		}
	}
	stop()
}

// TestTimeNamespace: processes whose monotonic clocks differ by a day share a queue, and neither is
// taken for dead while it lives, nor for living when it is dead.
func TestTimeNamespace(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 1, Format: cq.FormatTagged, Spin: -1})
	buf := make([]cq.Tagged, 8)
	for _, day := range []string{"86400", "-5"} {
		cmd := shmtest.Child(t, "writer", envQueue+"="+q.Name())
		shmtest.Unshared(t, "timens", cmd, "--time", "--monotonic", day, "--boottime", day,
			"--fork", "--kill-child")
		c := start(t, cmd)
		if got := c.line(t); got != "lane 1" {
			t.Fatal(got)
		}
		for next := uint64(0); next < 100; {
			n, err := sread(q, buf, time.Minute)
			must(t, err)
			for _, e := range buf[:n] {
				if e.Data != ^e.Tag {
					t.Fatalf("%+v", e)
				}
			}
			next += uint64(n)
		}
		_, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
		wantErr(t, "attach while it lives", err, cq.ErrLanes)
		c.kill() // and with it its child
		eventually(t, fmt.Sprint("its lane is free, ", day), func() bool {
			w, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
			return err == nil && w.Close() == nil
		})
		_ = drain(t, q)
	}
}
