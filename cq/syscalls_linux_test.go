package cq_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/syscalls"
	"github.com/shmring/shmring/shm"
)

// quiet fails if a round of f makes system calls. The runtime makes some of its own on any thread,
// so many rounds are looked at: a call by the library would be in every one. It takes a thread away
// from who has had it for ten milliseconds, and calls the system for that: a round is shorter.
func quiet(t *testing.T, what string, calls func() uint64, f func()) {
	t.Helper()
	const most, lasts = 50, 2 * time.Millisecond
	once := time.Duration(math.MaxInt64)
	for range 5 {
		begin := time.Now()
		f()
		once = min(once, time.Since(begin))
	}
	times := int(min(most, max(1, lasts/max(1, once))))
	var each []uint64
	for range 100 * most / times {
		before := calls()
		for range times {
			f()
		}
		each = append(each, calls()-before)
	}
	slices.Sort(each)
	if median := each[len(each)/2]; median != 0 {
		t.Errorf("%s: %d times make %d system calls", what, times, median)
	}
}

// calls counts the system calls of this thread, to which the caller is locked, until the test ends.
func calls(t *testing.T) func() uint64 {
	t.Helper()
	c := shmtest.Have(syscalls.Thread()).Where(t, "bpf")
	return func() uint64 { return c.All() }
}

// TestNoSyscalls: while the reader is awake neither side makes a system call, nor does a reader
// that looks at an empty queue.
func TestNoSyscalls(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls := calls(t)
	for _, o := range []cq.Options{{}, {WritersPay: true}, {Wait: cq.WaitFD}, {Shared: true}} {
		o.Size = 64
		d := openDir(t)
		q := shmtest.Got(cq.Create(cq.Named(d, "quiet"), o)).Or(t)
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "quiet"), cq.WriterOptions{})).Or(t)
		batch, dst := make([]cq.Entry, 8), make([]cq.Msg, 8)
		_, _ = cq.Read(q, dst)
		quiet(t, "post and read", calls, func() {
			_ = w.Post(&batch[0])
			_, _ = cq.Read(q, dst)
		})
		quiet(t, "batch and peek", calls, func() {
			_, _ = w.PostBatch(batch)
			es, _ := q.Peek(8)
			_ = q.Release(len(es))
		})
		quiet(t, "blocking read with entries", calls, func() {
			_ = w.Post(&batch[0])
			_, _ = cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{})
		})
		quiet(t, "nothing there", calls, func() { _, _ = cq.Read(q, dst) })
		quiet(t, "full", calls, func() {
			for w.Post(&batch[0]) == nil {
			}
			for n := 1; n > 0; {
				n, _ = cq.Read(q, dst)
			}
		})
		// A reader that is awake parks idle lanes now and then, which it pays for.
		if s := q.Stats(); s.Sleeps != 0 || s.Barriers > s.Read/1000 {
			t.Errorf("%+v", s)
		}
		must(t, w.Close())
		must(t, q.Close())
	}
}

// TestWriterSyscalls has the reader awake in another process.
func TestWriterSyscalls(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls := calls(t)
	for _, wait := range blocking {
		name := queueName(t) + wait.String()
		c := startChild(t, "spinner", envQueue+"="+name, envCount+"="+string(rune('0'+wait)))
		_ = c.Line(t)
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(openDir(t), name), cq.WriterOptions{})).Or(t)
		must(t, w.Post(&cq.Entry{}))
		eventually(t, "it is awake", func() bool { return w.Free() == w.Stats().Size })
		before := w.Stats().Wakes
		quiet(t, wait.String(), calls, func() {
			for w.Post(&cq.Entry{}) == cq.ErrFull {
			}
		})
		if s := w.Stats(); s.Wakes != before {
			t.Errorf("%v: %+v", wait, s)
		}
		_ = c.Stop(t)
		must(t, w.Close())
	}
}

// TestWriterRegisters: the reader's membarrier(2) reaches a process whose publishes are release
// stores. A process of its own shows it, since nothing undoes the registration.
func TestWriterRegisters(t *testing.T) {
	if _, err := shmtest.Fenced(); err != nil {
		shmtest.Require(t, "membarrier", err)
	}
	d, name := openDir(t), queueName(t)
	for pays, want := range map[bool]string{true: "false <nil>", false: "true <nil>"} {
		q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{WritersPay: pays})).Or(t)
		c := startChild(t, "registered", envQueue+"="+name)
		c.Says(t, want)
		_ = c.Stop(t)
		must(t, q.Close())
	}
}

// childRegistered attaches, and says whether a reader's membarrier orders this process.
func childRegistered() {
	d := shmtest.Needs(shm.OpenDir(""))
	w, err := cq.Attach(context.Background(), cq.Named(d, os.Getenv(envQueue)), cq.WriterOptions{})
	need(err)
	fenced, err := shmtest.Fenced()
	say("%v %v", fenced, err)
	need(w.Close())
}

// childSpinner reads a queue without ever blocking.
func childSpinner() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Create(cq.Named(d, os.Getenv(envQueue)),
		cq.Options{Wait: cq.WaitObject(number(envCount, 0))}))
	stop := toldToStop()
	say("ready")
	dst := make([]cq.Msg, 64)
	for !stop.Load() {
		if n, _ := cq.Read(q, dst); n == 0 {
			runtime.Gosched()
		}
	}
	need(q.Close())
}

func init() {
	roles["spinner"], roles["registered"] = childSpinner, childRegistered
}

func init() { roles["late filter"] = childLateFilter }

// lateWaiter waits until something is there, by one of the ways that park lanes, and takes it.
type lateWaiter struct {
	name string
	take func() error
}

func lateWaiters(d *shm.Dir, q *cq.Queue, e *cq.EventQueue) (ways []lateWaiter, end func() error) {
	dst, ready, ev := make([]cq.Context, 8), make([]cq.Waitable, 2), &cq.Event{}
	set := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD}))
	need(set.Add(q))
	c := shmtest.Needs(cq.NewChannel(d))
	need(c.Attach(q))
	just := func(want, n int, err error) error {
		if err == nil && n != want {
			err = fmt.Errorf("%d in place of %d", n, want)
		}
		return err
	}
	one := func(n int, err error) error { return just(1, n, err) }
	read := func() error { return one(cq.Read(q, dst)) }
	end = func() error {
		for c.Ack(q, 1) == nil {
		}
		return errors.Join(set.Remove(q), set.Close(), c.Detach(context.Background(), q), c.Close())
	}
	return []lateWaiter{
		{"read", func() error { return one(sread(q, dst, tooLong)) }},
		{"threshold", func() error {
			n, err := sread(q, dst, tooLong, 2)
			return just(2, n, err)
		}},
		{"set", func() error {
			if err := one(setWait(set, ready, tooLong)); err != nil {
				return err
			}
			return read()
		}},
		{"descriptor", func() error { return lateDescriptor(q.TryWait, waitFD(q), read) }},
		{"descriptor of a set", func() error { return lateDescriptor(set.TryWait, waitFD(set), read) }},
		{"channel", func() error {
			if err := c.RequestNotify(q, cq.NotifyAny); err != nil {
				return err
			}
			err := read() // what came before the arming
			for err == cq.ErrWouldBlock {
				// It may be the event of an earlier round, whose entry was read without it.
				if _, err = getEvent(c, tooLong); err == nil {
					err = c.RequestNotify(q, cq.NotifyAny)
				}
				if err == nil {
					err = read()
				}
			}
			return err
		}},
		{"event queue", func() error { _, err := eqSread(e, ev, tooLong); return err }},
	}, end
}

// lateDescriptor is trywait, poll and read.
func lateDescriptor(tryWait func() error, fd int, read func() error) error {
	for {
		err := tryWait()
		if err == nil {
			_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		}
		if err != nil && !errors.Is(err, cq.ErrWouldBlock) && err != unix.EINTR {
			return err
		}
		if err = read(); err != cq.ErrWouldBlock {
			return err
		}
	}
}

// childLateFilter has membarrier forbidden after it has opened all, and says how each way of
// waiting goes on.
func childLateFilter() {
	d := shmtest.Needs(shm.OpenDir(""))
	name := os.Getenv(envQueue)
	q := shmtest.Needs(cq.Create(cq.Named(d, name), cq.Options{Size: 8, Spin: -1, Wait: cq.WaitFD}))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{}))
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, name+"-events"),
		cq.EventOptions{Size: 8, Spin: -1, Write: true}))
	next := shmtest.Needs(cq.Create(cq.Named(d, name+"-next"), cq.Options{Size: 8, Spin: -1}))
	nw, err := cq.Attach(context.Background(), cq.Named(d, name+"-next"), cq.WriterOptions{})
	need(errors.Join(err, nw.Post(&cq.Entry{})))
	shmtest.Needs(cq.Read(next, make([]cq.Context, 1)))
	waiters, end := lateWaiters(d, q, e)
	need(shmtest.Forbid(unix.SYS_MEMBARRIER, unix.EPERM))
	for n := 0; n < 1000 && !next.Stats().NoBarrier; n++ { // a busy machine lets a wait pass awake
		_, _ = sread(next, make([]cq.Context, 1), time.Millisecond)
	}
	if !next.Stats().NoBarrier {
		say("the queue to be left knows nothing")
	}
	need(errors.Join(nw.Close(), next.Detach()))
	for _, way := range waiters {
		for i := range 20 {
			for range 2 { // at the second look the lane is one whose parking has to be paid for
				need(w.Post(&cq.Entry{}))
				shmtest.Needs(cq.Read(q, make([]cq.Context, 1)))
			}
			var posting sync.WaitGroup
			posting.Go(func() {
				time.Sleep(time.Duration(i%4) * 500 * time.Microsecond)
				shmtest.Needs(e.Write(&cq.Event{Event: cq.EventNotify, FID: e.FID()}))
				if way.name != "event queue" {
					need(w.Post(&cq.Entry{}))
				}
				if way.name == "threshold" {
					need(w.Post(&cq.Entry{}))
				}
			})
			err = way.take()
			if err == nil && way.name != "event queue" {
				_, err = eqSread(e, &cq.Event{}, tooLong)
			}
			posting.Wait() // a writer is one goroutine's at a time
			if err != nil {
				say("%s, %d: %v", way.name, i, err)
				break
			}
		}
	}
	before := q.Stats()
	_, err = sread(q, make([]cq.Context, 1), 350*time.Millisecond)
	after := q.Stats()
	say("idle: timed out %v, slices %v, barriers %d, refused %v, events %v, shown %v, %v, %v",
		errors.Is(err, cq.ErrTimedOut), after.Sleeps-before.Sleeps >= 2,
		after.Barriers-before.Barriers, after.NoBarrier, e.Stats().NoBarrier,
		shownNoBarrier(d, name), shownNoBarrier(d, name+"-events"), shownNoBarrier(d, name+"-next"))
	need(errors.Join(end(), w.Close(), q.Close(), e.Close()))
	say("done")
}

// shownNoBarrier is what tools say.
func shownNoBarrier(d *shm.Dir, name string) bool {
	q := shmtest.Needs(ctl.Show(d, name))
	return *q.NoBarrier
}

// TestLateFilter: a seccomp filter that takes membarrier away from a process whose queues are open
// ends no wait with an error and loses no wake: sleeps are cut into slices. Stats says so, and so
// do tools, until somebody else reads.
func TestLateFilter(t *testing.T) {
	t.Parallel()
	d, name := openDir(t), queueName(t)
	got := startChild(t, "late filter", envQueue+"="+name).Stop(t)
	want := "idle: timed out true, slices true, barriers 0, refused true, events true, " +
		"shown true, true, true\ndone"
	if strings.TrimSpace(got) != want {
		t.Errorf("the child says:\n%s", got)
	}
	shmtest.Have(cq.Open(cq.Named(d, name+"-next"), cq.Options{Existing: true})).In(t)
	if shownNoBarrier(d, name+"-next") {
		t.Error("a reader that was refused nothing has what was said of the one before")
	}
}

func init() { roles["no default"] = childNoDefault }

// childNoDefault makes sets of queues without names where the default directory cannot be had.
func childNoDefault() {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.EMFILE, unix.ENOSPC, unix.EIO, unix.EROFS,
		unix.EACCES, unix.ENOENT} {
		need(shmtest.Forbid(unix.SYS_MKDIRAT, errno)) // the last filter counts
		s, err := cq.NewWaitSet(nil, cq.WaitSetOptions{})
		if err == nil {
			say("%v: made", errno)
			need(s.Close())
		} else {
			say("%v: refused, as it should %v", errno, errors.Is(err, errno))
		}
	}
}

// TestNoDefault: the bell of a process has no name where there is no directory for it. For want of
// something that passes it is not made: queues with names could not be members for long.
func TestNoDefault(t *testing.T) {
	t.Parallel()
	got := startChild(t, "no default").Stop(t)
	want := `cannot allocate memory: refused, as it should true
too many open files: refused, as it should true
no space left on device: refused, as it should true
input/output error: refused, as it should true
read-only file system: made
permission denied: made
no such file or directory: made`
	if strings.TrimSpace(got) != want {
		t.Errorf("the child says:\n%s", got)
	}
}
