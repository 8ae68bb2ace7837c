package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

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

// noMoreFiles waits until no more descriptors are open than there were: who watches a peer lets go
// of it in a goroutine, also such that were watched before.
func noMoreFiles(t testing.TB, before int) {
	t.Helper()
	eventually(t, fmt.Sprint("no more than ", before, " descriptors"), func() bool {
		return len(openFiles()) <= before
	})
}

func init() { roles["tiny"] = childTiny }

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
