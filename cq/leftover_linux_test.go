package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestNothingLeft closes the two sides of a queue in every order, by choice and by death.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		newQueue := func() (*cq.Queue, *child) {
			q, err := cq.Create(cq.Named(d, "gone"), cq.Options{Size: 4, Wait: wait})
			must(t, err)
			c := startChild(t, "writer", envQueue+"=gone", envLanes+"=2", envCount+"=1")
			_, _ = c.line(t), c.line(t)
			return q, c
		}
		t.Run("writer, then queue "+wait.String(), func(t *testing.T) {
			q, c := newQueue()
			_ = c.stop(t)
			must(t, q.Close())
			nothingLeft(t, d)
		})
		t.Run("dead writer, then queue "+wait.String(), func(t *testing.T) {
			q, c := newQueue()
			c.kill()
			must(t, q.Close())
			nothingLeft(t, d)
		})
		t.Run("queue, then writer "+wait.String(), func(t *testing.T) {
			q, c := newQueue()
			must(t, q.Close())
			_ = c.stop(t)
			nothingLeft(t, d)
		})
		t.Run("queue, then dead writer "+wait.String(), func(t *testing.T) {
			q, c := newQueue()
			must(t, q.Close())
			wantErr(t, "remove with a living writer", collect.Remove(d, "gone", collect.Options{}),
				cq.ErrBusy)
			c.kill() // its lanes are nobody's business now
			must(t, collect.Remove(d, "gone", collect.Options{}))
			nothingLeft(t, d)
		})
		t.Run("queue with a new one over it "+wait.String(), func(t *testing.T) {
			q, old := newQueue()
			must(t, q.Close())
			q, c := newQueue() // beside the lanes of the old one's living writer
			if n := len(drain(t, q)); n == 0 {
				eventually(t, "the new writers are heard", func() bool { return len(drain(t, q)) > 0 })
			}
			old.kill()
			_ = c.stop(t)
			must(t, q.Close())
			nothingLeft(t, d)
		})
	}
}

// TestCloseTogether closes both sides at the same moment: whoever is last tidies up.
func TestCloseTogether(t *testing.T) {
	shmtest.Long(t)
	d := openDir(t)
	for range 1000 {
		q, err := cq.Create(cq.Named(d, "together"), cq.Options{Size: 4, MaxLanes: 3})
		must(t, err)
		var all sync.WaitGroup
		for range 3 {
			w, err := cq.Attach(t.Context(), cq.Named(d, "together"), cq.WriterOptions{})
			must(t, err)
			all.Go(func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		must(t, q.Close())
		all.Wait()
		if left, _ := d.List(); len(left) != 0 {
			sub, err := d.Sub("together", false)
			must(t, err)
			names, _ := sub.List()
			must(t, sub.Close())
			must(t, collect.Remove(d, "together", collect.Options{}))
			t.Fatalf("left behind: %v with %v", left, names)
		}
	}
}

// TestCreateTogether has several goroutines create and destroy one queue all the time: one has it
// at a time, and nobody sees anything but that.
func TestCreateTogether(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				q, err := cq.Create(cq.Named(d, "contested"), cq.Options{Size: 4, Wait: cq.WaitFD})
				if err == nil {
					err = q.Close()
				} else if errors.Is(err, syscall.EEXIST) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	nothingLeft(t, d)
}

// TestFewDescriptors lets each call fail at each place where it wants a descriptor: it says so and
// leaves nothing behind, in the process and on disk.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	c := startChild(t, "poor", envQueue+"="+queueName(t))
	for {
		line := c.line(t)
		if line == "done" {
			break
		}
		t.Error(line)
	}
	_ = c.stop(t)
}

// childPoor tries every call with one descriptor more each time.
func childPoor() {
	d, err := shm.OpenDir("")
	need(err)
	time.Sleep(time.Millisecond) // the runtime gets the descriptors that it cannot do without
	name := os.Getenv(envQueue)
	o := cq.Options{Size: 4, Wait: cq.WaitFD}
	var q *cq.Queue
	var w *cq.Writer
	sweep("create", func() (err error) { q, err = cq.Create(cq.Named(d, name), o); return err },
		func() {
			if left, _ := d.List(); len(left) != 0 {
				sub, err := d.Sub(name, false)
				need(err)
				names, _ := sub.List()
				need(sub.Close())
				say("create: left behind: %v", names)
				need(os.RemoveAll(filepath.Join(d.Path(), name)))
			}
		})
	sweep("attach", func() (err error) {
		w, err = cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{})
		return err
	}, func() {})
	if w.Lane() != 1 || w.Post(&cq.Entry{Context: 5}) != nil {
		say("attach: lane %d", w.Lane())
	}
	need(q.Detach())
	sweep("adopt", func() (err error) {
		q, err = cq.Open(cq.Named(d, name), cq.Options{Existing: true})
		return err
	}, func() {})
	dst := make([]cq.Msg, 2)
	if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != 5 {
		say("adopt: read %d, %v", n, err)
	}
	need(errors.Join(w.Close(), q.Close()))
	poorBeside(d)
	need(d.Close())
	say("done")
}

// poorBeside makes what stands beside queues.
func poorBeside(d *shm.Dir) {
	const name = "poor"
	close := func(c io.Closer) func() error { return c.Close }
	for _, tt := range []struct {
		what string
		make func() (end func() error, err error)
	}{
		{"counter", func() (func() error, error) {
			c, err := cq.CreateCounter(cq.Named(d, name),
				cq.CounterOptions{Wait: cq.WaitFD, Lifetime: cq.Persistent})
			return func() error { return errors.Join(c.Close(), cq.Remove(cq.Named(d, name))) }, err
		}},
		{"event queue", func() (func() error, error) {
			e, err := cq.CreateEvents(cq.Named(d, name), cq.EventOptions{Size: 4, Wait: cq.WaitFD})
			return close(e), err
		}},
		{"address vector", func() (func() error, error) {
			v, err := cq.CreateAddresses(cq.Named(d, name), cq.AddressOptions{Format: cq.AddrOpaque})
			return close(v), err
		}},
		{"wait set", func() (func() error, error) {
			s, err := cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD})
			return close(s), err
		}},
		{"channel", func() (func() error, error) {
			c, err := cq.NewChannel(d)
			return close(c), err
		}},
	} {
		var end func() error
		sweep(tt.what, func() (err error) { end, err = tt.make(); return err }, func() {
			path := filepath.Join(d.Path(), name)
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				say("%s: left behind, %v", tt.what, err)
				need(os.RemoveAll(path))
			}
		})
		need(end())
	}
}

// sweep calls f with ever more descriptors until it succeeds. What was closed before it must not
// serve f beneath the limit, or f would need none.
func sweep(what string, f func() error, after func()) {
	if needs(what, f, after) == 0 {
		say("%s needs no descriptor", what)
	}
}

// needs finds out how many descriptors f needs. Each failure says that it is for want of one.
func needs(what string, f func() error, after func()) int {
	fillGaps()
	for more := range 100 {
		before := openFiles()
		limit(uint64(slices.Max(before) + 1 + more))
		err := f()
		limit(4096)
		if err == nil {
			return more
		}
		if !errors.Is(err, syscall.EMFILE) || errors.Is(err, cq.ErrCorrupt) {
			say("%s with %d descriptors: %v", what, more, err)
		}
		if now := openFiles(); !slices.Equal(now, before) {
			say("%s with %d descriptors leaves open %v, before %v", what, more, now, before)
		}
		after()
	}
	say("%s never succeeds", what)
	return 100
}

func limit(n uint64) {
	need(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: 4096}))
}

// fillGaps makes the number of open descriptors what the limit counts. So what a sweep makes has
// higher numbers than all before it.
func fillGaps() {
	top := slices.Max(openFiles())
	for {
		fd, err := syscall.Open("/dev/null", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		need(err)
		if fd > top {
			need(syscall.Close(fd))
			return
		}
	}
}

// openFiles lists this process's descriptors, without asking for one while there are none.
func openFiles() (fds []int) {
	for fd := range 1024 {
		_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}

// noMoreFiles waits until no more descriptors are open than there were: who watches a peer lets go
// of it in a goroutine, also such that were watched before.
func noMoreFiles(t testing.TB, before int) {
	t.Helper()
	eventually(t, fmt.Sprint("no more than ", before, " descriptors"), func() bool {
		return len(openFiles()) <= before
	})
}

func init() { roles["poor"], roles["tiny"] = childPoor, childTiny }

// TestTooLarge: a queue that does not fit says with numbers what is missing, and leaves nothing.
func TestTooLarge(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "mount", errors.New("mounting needs root"))
	}
	cmd := shmtest.Child(t, "tiny")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	for {
		line := c.line(t)
		if line == "done" {
			break
		}
		t.Error(line)
	}
	_ = c.stop(t)
}

// childTiny works in a file system of 1 MiB that only it sees.
func childTiny() {
	path := os.Getenv(shm.EnvDir)
	need(syscall.Mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=0700"))
	d, err := shm.OpenDir("")
	need(err)
	o := cq.Options{Size: 1 << 14, Wait: cq.WaitFD}
	_, err = cq.Create(cq.Named(d, "big"), o)
	var no *shm.NoSpaceError
	if plan, _ := cq.Plan(o, 0); !errors.As(err, &no) || !errors.Is(err, syscall.ENOSPC) ||
		no.Needed < plan || no.Available > 1<<20 {
		say("create: %v, planned %d", err, plan)
	}
	if left, _ := d.List(); len(left) != 0 {
		say("create: left behind: %v", left)
	}
	// Here the queue fits, and only some of its lanes.
	q, err := cq.Create(cq.Named(d, "small"), cq.Options{Size: 2048})
	need(err)
	var ws []*cq.Writer
	for {
		w, err := cq.Attach(context.Background(), cq.Named(d, "small"), cq.WriterOptions{})
		if err != nil {
			if !errors.Is(err, shm.ErrNoSpace) || len(ws) == 0 {
				say("attach %d: %v", len(ws), err)
			}
			break
		}
		ws = append(ws, w)
	}
	for _, w := range ws {
		need(w.Post(&cq.Entry{}))
		need(w.Close())
	}
	dst := make([]cq.Msg, 100)
	if n, err := cq.Read(q, dst); n != len(ws) {
		say("read %d of %d, %v", n, len(ws), err)
	}
	need(q.Close())
	if left, _ := d.List(); len(left) != 0 {
		say("close: left behind: %v", left)
	}
	need(d.Close())
	need(syscall.Unmount(path, 0))
	say("done")
}

func init() { roles["poor opener"] = childPoorOpener }

// TestFewDescriptorsToOpen: a queue that cannot be made or adopted because the last descriptors
// went on the way leaves nobody behind who looks for its lanes later, in memory that is gone.
func TestFewDescriptorsToOpen(t *testing.T) {
	t.Parallel()
	poorChild(t, "poor opener")
}

func childPoorOpener() {
	d, err := shm.OpenDir("")
	need(err)
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	need(err)
	for _, o := range []cq.Options{
		{Wait: cq.WaitMutexCond}, {Wait: cq.WaitFD}, {Wait: cq.WaitInSet, WaitSet: set},
	} {
		o.Size, o.Lifetime = 8, cq.Persistent
		q, err := cq.Create(cq.Named(d, "q"), o)
		need(err)
		w, err := cq.Attach(context.Background(), cq.Named(d, "q"), cq.WriterOptions{})
		need(err)
		need(w.Post(&cq.Entry{Context: 7}))
		need(q.Detach()) // whoever adopts it has a lane to open
		o.Existing = true
		sweep("adopt with "+o.Wait.String(), func() (err error) {
			q, err = cq.Open(cq.Named(d, "q"), o)
			return err
		}, func() {})
		need(errors.Join(w.Close(), q.Close()))
	}
	time.Sleep(200 * time.Millisecond) // whoever was left behind comes now
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}

func init() { roles["poor reader"] = childPoorReader }

// TestLaneWithoutDescriptors: a reader that can open no file for the lane of a writer says so, and
// gets what is in it when it can, though nobody rings any more.
func TestLaneWithoutDescriptors(t *testing.T) {
	shmtest.Long(t)
	poorChild(t, "poor reader")
}

// poorChild reports what a child complains of that lacks descriptors, in a directory of its own.
func poorChild(t *testing.T, role string) {
	t.Helper()
	c := startChild(t, role, "SHMRING_DIR="+openDir(t).Path()+"/poor")
	complaints(t, c)
	_ = c.stop(t)
}

func childPoorReader() {
	d, err := shm.OpenDir("")
	need(err)
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	need(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for i, read := range []func(q *cq.Queue, dst []cq.Context) (int, error){
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			return cq.ReadContext(ctx, q, dst,
				cq.ReadOptions{})
		},
		func(q *cq.Queue, dst []cq.Context) (int, error) {
			_, err := set.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{})
			need(err)
			return cq.Read(q, dst)
		},
		func(q *cq.Queue, dst []cq.Context) (n int, err error) {
			for {
				n, err = cq.Read(q, dst)
				if !errors.Is(err, cq.ErrWouldBlock) || ctx.Err() != nil {
					return n, err
				}
				time.Sleep(time.Millisecond)
			}
		},
	} {
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})
		need(err)
		w, err := cq.Attach(ctx, cq.Named(d, "q"), cq.WriterOptions{})
		need(err)
		need(set.Add(q))
		need(w.Post(&cq.Entry{Context: 7}))
		dst := make([]cq.Context, 2)
		for range 3 { // it says so again and again
			fillGaps()
			limit(0)
			n, err := read(q, dst)
			limit(4096)
			if n != 0 || !errors.Is(err, syscall.EMFILE) || errors.Is(err, cq.ErrCorrupt) ||
				!errors.As(err, new(*cq.LaneError)) {
				say("way %d: without descriptors it read %d, %v", i, n, err)
			}
		}
		if n, err := read(q, dst); n != 1 || err != nil || dst[0].Context != 7 {
			say("way %d: with descriptors it read %d, %v", i, n, err)
		}
		if st := q.Stats(); st.GivenUp != 0 {
			say("way %d: %d lanes are given up", i, st.GivenUp)
		}
		need(errors.Join(set.Remove(q), w.Close(), q.Close()))
	}
	need(errors.Join(set.Close(), d.Close()))
	need(os.RemoveAll(d.Path()))
	say("done")
}
