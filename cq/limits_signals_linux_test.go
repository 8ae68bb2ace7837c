package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["stormed"] = childStormed }

// stormy are calls that wait, each in a process that gets signals all the time.
var stormy = []limitedUse{
	{"read with a timeout", func(d *shm.Dir) error {
		return createsQueue(d, cq.Options{Spin: -1}, func(q *cq.Queue) error {
			_, err := cq.ReadTimeout(q, make([]cq.Context, 1), 5*time.Millisecond)
			return instead(err, cq.ErrTimeout)
		})
	}},
	{"read until somebody posts", func(d *shm.Dir) error {
		return createsQueue(d, cq.Options{Spin: -1}, func(q *cq.Queue) error {
			return attachesTo(d, func(w *cq.Writer) error {
				wait := later(func() { need(w.Post(&cq.Entry{Context: 7})) })
				defer wait()
				dst := make([]cq.Context, 1)
				n, err := cq.ReadContext(context.Background(), q, dst)
				if err == nil && (n != 1 || dst[0].Context != 7) {
					err = fmt.Errorf("read %d, %v", n, dst)
				}
				return err
			})
		})
	}},
	{"wait for a counter", func(d *shm.Dir) error {
		return makes(func() (*cq.Counter, error) {
			return cq.CreateCounter(d, "limited", cq.CounterOptions{Spin: -1})
		}, func(c *cq.Counter) error {
			wait := later(func() { need(c.Add(3)) })
			defer wait()
			return errors.Join(c.Wait(context.Background(), 3),
				instead(c.WaitTimeout(4, 5*time.Millisecond), cq.ErrTimedOut))
		})
	}},
	{"wait in a set", func(d *shm.Dir) error {
		return makes(func() (*cq.WaitSet, error) {
			return cq.NewWaitSet(d, cq.WaitSetOptions{})
		}, func(s *cq.WaitSet) error {
			return createsQueue(d, cq.Options{Shared: true}, func(q *cq.Queue) error {
				if err := s.Add(q); err != nil {
					return err
				}
				_, err := s.WaitTimeout(make([]cq.Waitable, 1), 5*time.Millisecond)
				return errors.Join(instead(err, cq.ErrTimedOut), s.Remove(q))
			})
		})
	}},
	{"meet over a socket", func(*shm.Dir) error {
		return makes(func() (*cq.Queue, error) {
			return cq.CreateAnonymous("stormed", cq.Options{Size: 8})
		}, meets)
	}},
}

// instead turns the error that was wanted into none, and any other into one.
func instead(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%v in place of %w", err, want)
}

// meets attaches a writer over a pair of sockets.
func meets(q *cq.Queue) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	need(err)
	a, err := socket(fds[0])
	need(err)
	b, err := socket(fds[1])
	need(err)
	done := make(chan error, 1)
	go func() { done <- q.Accept(context.Background(), a) }()
	w, err := cq.AttachConn(context.Background(), b, cq.WriterOptions{})
	if err = errors.Join(err, <-done); err == nil {
		err = errors.Join(passes(q, w), w.Close())
	}
	return errors.Join(err, a.Close(), b.Close())
}

// childStormed does everything again and again until it is told to stop.
func childStormed() {
	got := make(chan os.Signal, 1)
	var signals atomic.Uint64
	signal.Notify(got, syscall.SIGUSR1)
	go func() {
		for range got {
			signals.Add(1)
		}
	}()
	base, err := shm.OpenDir("")
	need(err)
	stop := toldToStop()
	say("ready")
	lifted = func(f func() error) error { return f() }
	var all sync.WaitGroup
	var rounds atomic.Uint64
	for i, uses := range [][]limitedUse{limitedUses, stormy} {
		all.Go(func() {
			d, err := shm.OpenDir(base.Path() + "/" + strconv.Itoa(i))
			need(err)
			for done := false; !done; done = stop.Load() {
				for _, u := range uses {
					if err := u.do(d); err != nil {
						say("%s: %v", u.what, err)
					}
				}
				rounds.Add(1)
			}
			need(d.Close())
		})
	}
	all.Wait()
	need(os.RemoveAll(base.Path()))
	for n := 0; signals.Load() == 0 && n < 60_000; n++ { // another goroutine counts them
		time.Sleep(time.Millisecond)
	}
	if signals.Load() == 0 || rounds.Load() == 0 {
		say("%d rounds, %d signals", rounds.Load(), signals.Load())
	}
	say("done")
}

// TestSignalStorm: calls that are interrupted thousands of times in a second go on as if nothing
// were.
func TestSignalStorm(t *testing.T) {
	c := startChild(t, "stormed", "SHMRING_DIR="+openDir(t).Path()+"/storm")
	if got := c.line(t); got != "ready" {
		t.Fatal(got)
	}
	pid, sent := c.Process.Pid, 0
	for end := time.Now().Add(time.Second); sent == 0 || time.Now().Before(end); {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		must(t, err)
		for _, e := range threads {
			tid, _ := strconv.Atoi(e.Name())
			if unix.Tgkill(pid, tid, unix.SIGUSR1) == nil {
				sent++
			}
		}
		time.Sleep(50 * time.Microsecond)
	}
	t.Logf("%d signals", sent)
	must(t, c.in.Close())
	complaints(t, c)
	_ = c.stop(t)
}
