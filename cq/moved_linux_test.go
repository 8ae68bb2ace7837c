package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["mover"] = childMover }

// A path leads to a directory once. TestPathsAreLookedUpOnce has other things stand there from then
// on: a stranger's directory with all the names that ours has, where the parent is one that others
// may rename in; or nothing, for a relative path and a process that goes elsewhere. Each verb works
// on the directory that was opened, leaves nothing there, and the stranger's as it is.
func TestPathsAreLookedUpOnce(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"swapped", "relative"} {
		t.Run(how, func(t *testing.T) {
			base := shmtest.Got(os.MkdirTemp(openDir(t).Path(), "moved-")).Or(t)
			t.Cleanup(func() { must(t, os.RemoveAll(base)) })
			c := startChild(t, "mover", envLog+"="+base, envQueue+"="+how)
			complaints(t, c)
			_ = c.Stop(t)
		})
	}
}

// movedVerbs each begin with a directory, have it moved, and go on.
var movedVerbs = []struct {
	name string
	run  func(d *shm.Dir, moved func()) error
}{
	{"create", func(d *shm.Dir, moved func()) error {
		moved()
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD})
		return errors.Join(err, closed(q))
	}},
	{"close", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD}))
		moved()
		return closed(q)
	}},
	{"close, the directory closed", func(d *shm.Dir, moved func()) error {
		again := d.Dup()
		q, err := cq.Create(cq.Named(again, "q"), cq.Options{Size: 4, Wait: cq.WaitFD})
		need(errors.Join(err, again.Close()))
		moved()
		return closed(q)
	}},
	{"detach and open", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD,
			Lifetime: cq.Persistent}))
		moved()
		need(q.Detach())
		q, err := cq.Open(cq.Named(d, "q"), cq.Options{})
		return errors.Join(err, closed(q))
	}},
	{"attach and ring", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD}))
		moved()
		w, err := cq.Attach(context.Background(), cq.Named(d, "q"), cq.WriterOptions{})
		if err != nil {
			return errors.Join(err, closed(q))
		}
		for q.TryWait() != nil {
			_, err := cq.Read(q, make([]cq.Msg, 4))
			if err != nil && !errors.Is(err, syscall.EAGAIN) {
				return err
			}
		}
		err = w.Post(&cq.Entry{})
		if n, e := unix.Poll([]unix.PollFd{{Fd: int32(waitFD(q)), Events: unix.POLLIN}}, 0); n != 1 {
			err = errors.Join(err, fmt.Errorf("the descriptor stays quiet: %d, %v", n, e))
		}
		return errors.Join(err, w.Close(), closed(q))
	}},
	{"the last writer", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "empty"), cq.Options{Size: 4, Wait: cq.WaitFD}))
		w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "empty"), cq.WriterOptions{}))
		moved()
		return errors.Join(closed(q), w.Close())
	}},
	{"set", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4}))
		s := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
		moved()
		w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "q"), cq.WriterOptions{}))
		err := s.Add(q)
		_, _ = setWait(s, nil, 0)
		err = errors.Join(err, w.Post(&cq.Entry{}))
		if n, e := setWait(s, make([]cq.Waitable, 1), time.Minute); n != 1 {
			err = errors.Join(err, fmt.Errorf("the set stays quiet: %d, %v", n, e))
		}
		return errors.Join(err, s.Remove(q), w.Close(), closed(q), s.Close())
	}},
	{"set of an unnamed queue", func(d *shm.Dir, moved func()) error {
		s := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
		moved()
		return s.Close()
	}},
	{"event queue", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.CreateEvents(cq.Named(d, "q"), cq.EventOptions{Wait: cq.WaitFD}))
		moved()
		return q.Close()
	}},
	{"signal", func(d *shm.Dir, moved func()) error {
		q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD}))
		moved()
		return errors.Join(cq.SignalQueue(cq.Named(d, "q")), closed(q))
	}},
	{"remove", func(d *shm.Dir, moved func()) error {
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD,
			Lifetime: cq.Persistent})
		need(errors.Join(err, q.Detach()))
		moved()
		return collect.Remove(d, "q", collect.Options{Waiting: true})
	}},
	{"remove what is aside", func(d *shm.Dir, moved func()) error {
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Lifetime: cq.Persistent})
		need(errors.Join(err, q.Detach()))
		aside := "new-" + shm.NewUUID().String()
		at := func(name string) string { return filepath.Join(d.Path(), name, "reader") }
		need(os.Mkdir(filepath.Dir(at(aside)), 0o700))
		need(os.Link(at("q"), at(aside)))
		moved()
		return errors.Join(collect.Remove(d, aside, collect.Options{}),
			collect.Remove(d, "q", collect.Options{Waiting: true}))
	}},
	{"counter", func(d *shm.Dir, moved func()) error {
		c := shmtest.Needs(cq.CreateCounter(cq.Named(d, "c"), cq.CounterOptions{}))
		moved()
		return c.Close()
	}},
	{"address vector", func(d *shm.Dir, moved func()) error {
		v := shmtest.Needs(cq.CreateAddresses(cq.Named(d, "v"), cq.AddressOptions{Count: 8}))
		moved()
		return v.Close()
	}},
}

func closed(q *cq.Queue) error {
	if q == nil {
		return nil
	}
	return q.Close()
}

// childMover may not take descriptors from processes, so that writers need the FIFO.
func childMover() {
	need(shmtest.Forbid(unix.SYS_PIDFD_GETFD, unix.EPERM))
	base, how := os.Getenv(envLog), os.Getenv(envQueue)
	for i, v := range movedVerbs {
		home := filepath.Join(base, fmt.Sprint(i))
		need(os.Mkdir(home, 0o700))
		need(os.Chdir(home))
		path, ours, before := filepath.Join(home, "d"), filepath.Join(home, "d"), []string(nil)
		moved := func() { need(os.Chdir("/")) }
		if how == "swapped" {
			ours = filepath.Join(home, "ours")
			moved = func() {
				need(os.Rename(path, ours))
				stranger(ours, path)
				before = tree(path)
			}
		} else {
			path = "d"
		}
		d := shmtest.Needs(shm.OpenDir(path))
		if err := v.run(d, moved); err != nil {
			say("%s: %v", v.name, err)
		}
		need(d.Close())
		if left := tree(ours); len(left) > 1 {
			say("%s: leaves %q", v.name, left[1:])
		}
		if how == "swapped" && !slices.Equal(before, tree(path)) {
			say("%s: the stranger had %q, and has %q", v.name, before, tree(path))
		}
	}
	say("done")
	untilTold()
}

// stranger makes what has all names that ours has or may get.
func stranger(ours, path string) {
	need(os.MkdirAll(filepath.Join(path, "empty"), 0o700))
	need(os.MkdirAll(filepath.Join(path, "q"), 0o700))
	for _, name := range []string{"q/reader", "q/wake", "q/lane-0001", "c", "v"} {
		need(os.WriteFile(filepath.Join(path, name), nil, 0o600))
	}
	need(filepath.WalkDir(ours, func(at string, e fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(ours, at)
		if err != nil || e.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(path, rel), 0o700))
		}
		return os.WriteFile(filepath.Join(path, rel), nil, 0o600)
	}))
}

// tree lists what there is, and which files it is.
func tree(path string) (out []string) {
	need(filepath.WalkDir(path, func(at string, _ fs.DirEntry, err error) error {
		var st syscall.Stat_t
		rel, _ := filepath.Rel(path, at)
		err = errors.Join(err, syscall.Lstat(at, &st))
		out = append(out, fmt.Sprint(rel, " ", st.Ino))
		return err
	}))
	return out
}
