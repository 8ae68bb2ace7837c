package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["stormed"] = childStormed }

// stormy are meetings, each in a process that gets signals all the time.
var stormy = map[string]func() error{
	"meet over a socket": func() error { return meetsBy(cq.SameUser, meets) },
	"meet another user":  func() error { return meetsBy(cq.CrossUser, meets) },
	"read from another user": func() error {
		return meetsBy(cq.CrossUser, func(q *cq.Queue) error {
			return joins(q, func(w *cq.Writer) error {
				defer later(func() { need(w.Post(&cq.Entry{Context: 7})) })()
				n, err := cq.ReadContext(context.Background(), q, make([]cq.Context, 1), cq.ReadOptions{})
				if err == nil && n != 1 {
					err = fmt.Errorf("read %d", n)
				}
				return err
			})
		})
	},
}

// meetsBy gives f a queue without a name.
func meetsBy(trust cq.Trust, f func(*cq.Queue) error) error {
	q, err := cq.Create(cq.Unnamed("stormed"), cq.Options{Size: 8, Spin: -1, Trust: trust})
	if err != nil {
		return err
	}
	return errors.Join(f(q), q.Close())
}

// instead turns the error that was wanted into none, and any other into one.
func instead(err, want error) error {
	if errors.Is(err, want) {
		return nil
	}
	return fmt.Errorf("%v in place of %w", err, want)
}

// meets attaches a writer and passes something on.
func meets(q *cq.Queue) error {
	return joins(q, func(w *cq.Writer) error { return passes(q, w) })
}

// joins attaches a writer over a pair of sockets.
func joins(q *cq.Queue, f func(*cq.Writer) error) error {
	a, b, err := shmtest.Sockets(unix.SOCK_STREAM)
	need(err)
	done := accept(context.Background(), q, a)
	w, err := cq.Attach(context.Background(), cq.Over(b), cq.WriterOptions{Trust: q.Options().Trust})
	if err = errors.Join(err, <-done); err == nil {
		err = errors.Join(f(w), w.Close())
	}
	return errors.Join(err, a.Close(), b.Close())
}

// interrupted reads from a pipe that stays empty until a signal comes.
func interrupted() error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer shm.CloseFDs(p[:])
	if _, err := unix.Read(p[0], make([]byte, 1)); err != unix.EINTR {
		return fmt.Errorf("a read that a signal interrupted says %v", err)
	}
	return nil
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
	need(interrupts(syscall.SIGUSR1))
	base := shmtest.Needs(shm.OpenDir(""))
	stop := toldToStop()
	say("ready")
	need(interrupted())
	say("interrupted")
	var all sync.WaitGroup
	var rounds atomic.Uint64
	unlimited := scarce{begin: func() {}, limit: func(int) {}, left: func() string { return "" }}
	for i, use := range []func(*shm.Dir){func(d *shm.Dir) {
		s := unlimited
		s.d, s.root = d, d.Path()
		s.use()
	}, func(*shm.Dir) {
		for what, meets := range stormy {
			if err := meets(); err != nil {
				say("%s: %v", what, err)
			}
		}
	}} {
		all.Go(func() {
			d := shmtest.Needs(shm.OpenDir(base.Path() + "/" + strconv.Itoa(i)))
			for done := false; !done; done = stop.Load() {
				use(d)
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
	shmtest.Conforms(t)
	shmtest.Long(t)
	c := startChild(t, "stormed", "SHMRING_DIR="+openDir(t).Path()+"/storm")
	c.Says(t, "ready")
	sent := stormUntil(t, c, "interrupted")
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		sent += interruptAll(t, c.Process.Pid)
	}
	t.Logf("%d signals", sent)
	must(t, c.In.Close())
	complaints(t, c)
	_ = c.Stop(t)
}

// stormUntil sends signals until a child has said something: what it waits for may be one of them,
// and those that came before it waited are lost.
func stormUntil(t *testing.T, c *child, what string) (sent int) {
	t.Helper()
	said := make(chan string, 1)
	go func() {
		line, _ := c.Out.ReadString('\n') // nothing if it has died
		said <- strings.TrimSpace(line)
	}()
	for {
		select {
		case got := <-said:
			if got != what {
				t.Fatalf("child says %q, want %q", got, what)
			}
			return sent
		default:
			sent += interruptAll(t, c.Process.Pid)
		}
	}
}

// interruptAll sends a signal to each thread of a process, and says to how many.
func interruptAll(t *testing.T, pid int) (sent int) {
	t.Helper()
	threads := shmtest.Got(os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))).Or(t)
	for _, e := range threads {
		tid, _ := strconv.Atoi(e.Name())
		if unix.Tgkill(pid, tid, unix.SIGUSR1) == nil {
			sent++
		}
	}
	time.Sleep(50 * time.Microsecond)
	return sent
}
