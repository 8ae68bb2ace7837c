package cq_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// TestConformanceInterrupted: signals interrupt the system calls of a wait, and not the wait.
func TestConformanceInterrupted(t *testing.T) {
	o := cq.Options{Size: 8, Spin: -1, UserContext: 0}
	conform(t, "every-blocking-call", o, func(t *testing.T, r *rig) {
		e, err := cq.CreateEvents(r.d, "events", cq.EventOptions{Size: 4, Write: true, Spin: -1})
		must(t, err)
		t.Cleanup(func() { must(t, e.Close()) })
		count, err := cq.CreateCounter(r.d, "counter", cq.CounterOptions{Spin: -1})
		must(t, err)
		t.Cleanup(func() { must(t, count.Close()) })
		c, s := channel(t, r.d), waitSet(t, r.d, cq.WaitSetOptions{})
		attachTo(t, c, r.q)
		addTo(t, s, r.q)
		must(t, c.Arm(r.q, cq.NotifyAny))
		post := func() { r.post(t, 1, 2) }
		for _, call := range []struct {
			name string
			end  func()
			wait func() error
		}{
			{"wait set", post, func() error {
				_, err := s.WaitTimeout(make([]cq.Waitable, 1), -1)
				return err
			}},
			{"channel", func() {}, func() error { _, err := c.GetTimeout(-1); return err }},
			{"sread", func() {}, func() error {
				_, err := cq.ReadTimeout(r.q, make([]cq.Msg, 1), -1)
				return err
			}},
			{"sread that sleeps", post, func() error {
				_, err := cq.ReadTimeout(r.q, make([]cq.Msg, 1), tooLong)
				return err
			}},
			{"eq", func() { writeEvents(t, e, 1, 2) }, func() error {
				_, err := e.ReadTimeout(&cq.Event{}, -1)
				return err
			}},
			{"counter", func() { must(t, count.Add(1)) }, func() error {
				return count.WaitTimeout(1, -1)
			}},
		} {
			done := later(func() {
				interrupt(t)
				call.end()
			})
			if err := call.wait(); err != nil {
				t.Errorf("%s: %v", call.name, err)
			}
			done()
		}
	})
}

// interrupt sends every thread of this process some signals that the runtime handles.
func interrupt(t *testing.T) {
	for range 20 {
		threads, err := os.ReadDir("/proc/self/task")
		must(t, err)
		for _, thread := range threads {
			if tid, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGURG) // it may have ended
			}
		}
		time.Sleep(100 * time.Microsecond)
	}
}
