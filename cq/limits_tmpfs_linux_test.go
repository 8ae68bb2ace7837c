package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["full tmpfs"] = childFullTmpfs
}

// limitedUse makes one kind of thing, uses it and takes it away again. What it made goes also
// when it fails.
type limitedUse struct {
	what string
	do   func(d *shm.Dir) error
}

// makes runs f with what open made, and closes that.
func makes[T interface{ Close() error }](open func() (T, error), f func(T) error) error {
	o, err := open()
	if err != nil {
		return err
	}
	return errors.Join(f(o), o.Close())
}

func createsQueue(d *shm.Dir, o cq.Options, f func(*cq.Queue) error) error {
	o.Size = 8
	return makes(func() (*cq.Queue, error) { return cq.Create(cq.Named(d, "limited"), o) }, f)
}

func attachesTo(d *shm.Dir, f func(*cq.Writer) error) error {
	return makes(func() (*cq.Writer, error) {
		return cq.Attach(context.Background(), cq.Named(d, "limited"), cq.WriterOptions{})
	}, f)
}

var limitedUses = []limitedUse{
	{"a queue with two writers", func(d *shm.Dir) error {
		return createsQueue(d, cq.Options{}, func(q *cq.Queue) error {
			return attachesTo(d, func(one *cq.Writer) error {
				return attachesTo(d, func(two *cq.Writer) error { return passes(q, one, two) })
			})
		})
	}},
	{"a queue with a descriptor", func(d *shm.Dir) error {
		return createsQueue(d, cq.Options{Wait: cq.WaitFD}, func(q *cq.Queue) error {
			return attachesTo(d, func(w *cq.Writer) error {
				_, err := q.GetWait()
				return errors.Join(err, passes(q, w))
			})
		})
	}},
	{"a persistent queue and its next reader", func(d *shm.Dir) error {
		q, err := cq.Create(cq.Named(d, "limited"), cq.Options{Size: 8, Lifetime: cq.Persistent})
		if err != nil {
			return err
		}
		if err := q.Detach(); err != nil {
			return err
		}
		return makes(func() (*cq.Queue, error) { return adoptsAgain(d) }, func(q *cq.Queue) error {
			return attachesTo(d, func(w *cq.Writer) error { return passes(q, w) })
		})
	}},
	{"an event queue with a writer", func(d *shm.Dir) error {
		o := cq.EventOptions{Size: 8, Write: true}
		return makes(func() (*cq.EventQueue, error) { return cq.CreateEvents(cq.Named(d, "limited"), o) },
			func(e *cq.EventQueue) error {
				return makes(func() (*cq.EventWriter, error) {
					return cq.AttachEvents(context.Background(), cq.Named(d, "limited"), cq.WriterOptions{})
				}, func(w *cq.EventWriter) error {
					_, err := w.Write(&cq.Event{Event: cq.EventMRComplete, Context: 1})
					return err
				})
			})
	}},
	{"a counter with a descriptor", func(d *shm.Dir) error {
		o := cq.CounterOptions{Wait: cq.WaitFD}
		return makes(func() (*cq.Counter, error) { return cq.CreateCounter(cq.Named(d, "limited"), o) },
			func(c *cq.Counter) error { return c.Add(1) })
	}},
	{"an address vector", func(d *shm.Dir) error {
		return makes(func() (*cq.AddressVector, error) {
			return cq.CreateAddresses(cq.Named(d, "limited"), cq.AddressOptions{Format: cq.AddrOpaque})
		}, func(v *cq.AddressVector) error {
			_, err := v.Insert([][]byte{{1}}, cq.InsertOptions{})
			return err
		})
	}},
	{"a wait set", func(d *shm.Dir) error {
		return makes(func() (*cq.WaitSet, error) {
			return cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD})
		}, func(s *cq.WaitSet) error {
			return createsQueue(d, cq.Options{Shared: true}, func(q *cq.Queue) error {
				if err := s.Add(q); err != nil {
					return err
				}
				return s.Remove(q)
			})
		})
	}},
	{"a channel", func(d *shm.Dir) error {
		return makes(func() (*cq.Channel, error) { return cq.NewChannel(d) },
			func(c *cq.Channel) error {
				return createsQueue(d, cq.Options{}, func(q *cq.Queue) error {
					if err := c.Attach(q); err != nil {
						return err
					}
					return c.Detach(context.Background(), q)
				})
			})
	}},
}

// adoptsAgain tries until nothing is missing: the queue is still there after each failure.
func adoptsAgain(d *shm.Dir) (*cq.Queue, error) {
	q, err := cq.Open(cq.Named(d, "limited"), cq.Options{Existing: true})
	if err == nil {
		return q, nil
	}
	return nil, errors.Join(err, lifted(func() error {
		q, err := cq.Open(cq.Named(d, "limited"), cq.Options{Existing: true})
		if err != nil {
			return err
		}
		return q.Close()
	}))
}

// lifted runs f without the limit.
var lifted func(f func() error) error

// passes sends one entry through each writer.
func passes(q *cq.Queue, ws ...*cq.Writer) error {
	for i, w := range ws {
		if err := w.Post(&cq.Entry{Context: uint64(i)}); err != nil {
			return err
		}
		dst := make([]cq.Context, 2)
		if n, err := cq.Read(q, dst); n != 1 || dst[0].Context != uint64(i) {
			return fmt.Errorf("read %d entries: %v, %v", n, dst, err)
		}
	}
	return nil
}

// underLimits gives each use 0, 1, 2, … of what is limited, until it is enough. Each failure has
// to be one of refusals, and to leave nothing.
func underLimits(d *shm.Dir, most int, limit func(free int), left func() string,
	refusals ...error) {
	for _, u := range limitedUses {
		free := 0
		for ; free < most; free++ {
			before := left()
			limit(free)
			lifted = func(f func() error) error {
				limit(most)
				defer limit(free)
				return f()
			}
			err := u.do(d)
			limit(most)
			if now := left(); now != before {
				say("%s with %d: left %s, before %s", u.what, free, now, before)
			}
			if err == nil {
				break
			}
			for _, r := range refusals {
				if !errors.Is(err, r) {
					say("%s with %d: %v, want %v", u.what, free, err, r)
				}
			}
		}
		if free == 0 || free == most {
			say("%s: needed %d", u.what, free)
		}
	}
	say("done")
}

// childFullTmpfs has a file system of its own, and nearly fills it.
func childFullTmpfs() {
	const size = 8 << 20
	root := os.Getenv("SHMRING_DIR")
	need(syscall.Mount("tmpfs", root, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)))
	need(os.Mkdir(root+"/objects", 0o700))
	d, err := shm.OpenDir(root + "/objects")
	need(err)
	ballast, err := os.Create(root + "/ballast")
	need(err)
	page := int64(os.Getpagesize())
	fill := func(free int) {
		need(ballast.Truncate(0))
		var st unix.Statfs_t
		need(unix.Fstatfs(int(ballast.Fd()), &st))
		if n := (int64(st.Bavail) - int64(free)) * page; n > 0 {
			need(unix.Fallocate(int(ballast.Fd()), 0, 0, n))
		}
	}
	need(createsQueue(d, cq.Options{}, func(q *cq.Queue) error {
		return attachesTo(d, func(w *cq.Writer) (err error) {
			fill(0)
			for i := 0; i < 1000 && err == nil; i++ { // what exists has all of its memory
				err = passes(q, w)
			}
			return err
		})
	}))
	underLimits(d, size/int(page), fill, func() string { return objects(root) }, shm.ErrNoSpace,
		syscall.ENOSPC)
	var st unix.Statfs_t
	need(unix.Fstatfs(int(ballast.Fd()), &st))
	inodes := func(free int) {
		n := st.Files - st.Ffree + uint64(free)
		need(syscall.Mount("", root, "", syscall.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", n)))
	}
	need(ballast.Truncate(0))
	underLimits(d, 1000, inodes, func() string { return objects(root) }, shm.ErrNoSpace,
		syscall.ENOSPC)
	need(errors.Join(ballast.Close(), d.Close()))
}

// objects lists the files below a directory, without bells: those stay as long as the process.
func objects(root string) string {
	var out []string
	need(filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !strings.HasPrefix(e.Name(), "bell-") {
			out = append(out, path)
		}
		return err
	}))
	return strings.Join(out, " ")
}

// TestTmpfsFull: at every allocation the file system may have become full. What fails says so and
// leaves nothing.
func TestTmpfsFull(t *testing.T) {
	shmtest.Long(t)
	if os.Geteuid() != 0 {
		shmtest.Require(t, "mount", syscall.EPERM)
	}
	cmd := shmtest.Child(t, "full tmpfs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	for range 2 {
		complaints(t, c)
	}
	_ = c.stop(t)
}

// complaints is what the child says until it is done: nothing, in a good run.
func complaints(t *testing.T, c *child) {
	for line := c.line(t); line != "done"; line = c.line(t) {
		t.Error(line)
	}
}
