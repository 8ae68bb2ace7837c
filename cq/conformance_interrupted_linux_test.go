package cq_test

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestConformanceInterrupted: signals interrupt the system calls of a wait, and not the wait.
func TestConformanceInterrupted(t *testing.T) {
	shmtest.Long(t)
	o := cq.Options{Size: 8, Spin: -1, UserContext: 0}
	conform(t, "every-blocking-call", o, interruptedEveryBlockingCall)
	// With a deadline the kernel does not restart the system call of a sleep after a signal: the call
	// returns, which the library counts as one more sleep when it goes on. Of a sleep on several
	// words, as a reader of other users does, it is restarted all the same.
	conform(t, "sleeps-again", o, func(t *testing.T, r *rig) {
		before := r.q.Stats().Sleeps
		done := later(func() {
			interruptUntil(t, "signals end a system call", func() bool {
				return r.others || r.q.Stats().Sleeps >= before+5
			})
			r.post(t, 1, 2)
		})
		if n, err := sread(r.q, make([]cq.Msg, 1), tooLong); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		done()
	})
	eo := cq.EventOptions{Size: 4, Spin: -1}
	conformEQ(t, "event-queue-sleeps-again", eo, func(t *testing.T, r *eqRig) {
		before := r.e.Stats().Sleeps
		done := later(func() {
			interruptUntil(t, "signals end a system call", func() bool {
				return r.others || r.e.Stats().Sleeps >= before+5
			})
			writeEvents(t, r.w, 1, 2)
		})
		var ev cq.Event
		if _, err := eqSread(r.e, &ev, tooLong); err != nil || ev.Context != 1 {
			t.Errorf("%+v, %v", ev, err)
		}
		done()
	})
}

func interruptedEveryBlockingCall(t *testing.T, r *rig) {
	e, err := cq.CreateEvents(r.d, "events", cq.EventOptions{Size: 4, Write: true, Spin: -1})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	count, err := cq.CreateCounter(r.d, "counter", cq.CounterOptions{Spin: -1})
	must(t, err)
	t.Cleanup(func() { must(t, count.Close()) })
	c, s := channel(t, r.d), waitSet(t, r.d, cq.WaitSetOptions{})
	attachTo(t, c, r.q)
	addTo(t, s, r.q)
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	post := func() { r.post(t, 1, 2) }
	for _, call := range []struct {
		name string
		end  func()
		wait func() error
	}{
		{"wait set", post, func() error {
			_, err := setWait(s, make([]cq.Waitable, 1), -1)
			return err
		}},
		{"channel", func() {}, func() error { _, err := getEvent(c, -1); return err }},
		{"sread", func() {}, func() error {
			_, err := sread(r.q, make([]cq.Msg, 1), -1)
			return err
		}},
		{"sread that sleeps", post, func() error {
			_, err := sread(r.q, make([]cq.Msg, 1), tooLong)
			return err
		}},
		{"eq", func() { writeEvents(t, e, 1, 2) }, func() error {
			_, err := eqSread(e, &cq.Event{}, -1)
			return err
		}},
		{"counter", func() { must(t, count.Add(1)) }, func() error {
			return cntrWait(count, 1, -1)
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
}

// interruptUntil sends signals until something has come of it.
func interruptUntil(t *testing.T, what string, ok func() bool) {
	eventually(t, what, func() bool {
		interrupt(t)
		return ok()
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
