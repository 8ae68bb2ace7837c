package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// placeLane makes a lane object in a queue that exists. Nobody owns it.
func placeLane(t *testing.T, d *shm.Dir, queue string, row int, spec shm.Spec) {
	t.Helper()
	sub := shmtest.Have(d.Sub(queue, false)).In(t)
	obj := shmtest.Got(sub.Create(fmt.Sprintf("lane-%04d", row), spec, nil)).Or(t)
	must(t, obj.Close())
}

// TestForgedLane: a lane object that does not fit is reported once, disturbs nobody, and does not
// keep new writers from attaching.
func TestForgedLane(t *testing.T) {
	const row, capacity, uuid = 0, 1, 2
	bad := map[int][]uint64{row: {0, 2, 1 << 40}, capacity: {0, 8, 77}}
	forgeries(cq.LaneSpec(1, 4, shm.UUID{}), bad, func(name string, spec shm.Spec, _ ...error) {
		t.Run(name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 4, MaxLanes: 3})
			own := cq.LaneSpec(1, 4, cq.QueueUUID(q))
			copy(spec.Attrs[uuid:uuid+2], own.Attrs[uuid:])
			placeLane(t, d, q.Name(), 1, spec)
			w := attach(t, d, q.Name())
			if w.Lane() != 2 {
				t.Fatalf("lane %d", w.Lane())
			}
			post(t, w, 0, 2)
			cq.MarkLane(q, 1)
			broken := 0
			dst := make([]cq.Context, 8)
			got := 0
			for range 10 {
				n, err := cq.Read(q, dst)
				got += n
				var bad *cq.LaneError
				if errors.As(err, &bad) {
					broken++
					wantErr(t, "read", err, cq.ErrCorrupt, syscall.EBADMSG)
					if bad.Lane != 1 {
						t.Errorf("lane %d: %v", bad.Lane, err)
					}
				}
				cq.MarkLane(q, 1) // a peer may do so for ever
			}
			if got != 2 || broken != 1 {
				t.Errorf("%d entries, %d times told of the lane", got, broken)
			}
		})
	})
}

// TestSpoiledLane: a lane that its last writer scribbled over, or cut, goes to nobody, and does not
// keep others from attaching.
func TestSpoiledLane(t *testing.T) {
	for name, spoil := range map[string]func(scribbler){
		"header": func(s scribbler) { poke(s.obj.Bytes(), 0, 0) },
		"owner":  func(s scribbler) { clear(s.obj.Bytes()[0xb00:0xc00]) },
		"tail":   func(s scribbler) { poke(s.section(t, cq.SectLane, 1), 0, 1<<40) },
		"length": func(s scribbler) { must(t, syscall.Ftruncate(s.obj.FD(), 4096)) },
	} {
		for _, at := range []site{namedSite, memfdSite} {
			if at.memfd && name == "length" {
				continue // which nobody can change
			}
			t.Run(fmt.Sprint(at, " ", name), func(t *testing.T) { spoiledLane(t, at, spoil) })
		}
	}
}

func spoiledLane(t *testing.T, at site, spoil func(scribbler)) {
	q := at.create(t, cq.Options{Size: 8, MaxLanes: 2})
	w := startWriter(t, at, q, nil)
	if at.memfd {
		spoil(laneObject(t, 1))
	} else {
		spoil(scribble(t, openDir(t), q.Name(), "lane-0001"))
		t.Cleanup(func() { // before the queue is closed
			must(t, os.Remove(filepath.Join(openDir(t).Path(), q.Name(), "lane-0001")))
		})
	}
	w.Kill()
	for range 2 {
		next := at.attach(t, q)
		if next.Lane() != 2 {
			t.Errorf("lane %d", next.Lane())
		}
		must(t, next.Post(&cq.Entry{Context: 5}))
		must(t, next.Close())
	}
	got, broken := 0, 0
	for range 20 {
		n, err := cq.Read(q, make([]cq.Msg, 4))
		if got += n; errors.As(err, new(*cq.LaneError)) {
			broken++
		}
	}
	if got != 2 || broken > 1 {
		t.Errorf("%d entries, %d broken lanes", got, broken)
	}
}

// laneObject opens a lane of a queue without a name as only its writer could.
func laneObject(t testing.TB, row int) scribbler {
	t.Helper()
	for fd, to := range shmtest.Descriptors() {
		if strings.Contains(to, fmt.Sprintf("memfd:shmring:lane-%04d", row)) {
			obj := shmtest.Have(shm.OpenFD(fd, "lane", shm.ReadWrite)).In(t)
			return scribbler{obj}
		}
	}
	t.Fatal("no such lane")
	return scribbler{}
}

// TestRefusedQueues: a queue that cannot be used is one typed error for everybody who comes, which
// says what to do, and nothing in the directory changes by asking.
func TestRefusedQueues(t *testing.T) {
	privacy := []error{shm.ErrOwner, syscall.EPERM}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  []error
		hint  string
	}{
		"missing": {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
			[]error{fs.ErrNotExist, syscall.ENOENT}, shm.EnvDir},
		"loose object": {func(t *testing.T, dir string) { must(t, os.Chmod(reader(dir), 0o640)) },
			privacy, "chmod"},
		"loose queue": {func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o755)) },
			privacy, "chmod"},
		"their object": {func(t *testing.T, dir string) { chown(t, reader(dir), nobody) },
			privacy, "that user"},
		"their queue": {func(t *testing.T, dir string) { chown(t, dir, nobody) },
			privacy, "that user"},
		"empty":     {cutTo(0), []error{shm.ErrTruncated}, "remove"},
		"short":     {cutTo(100), []error{shm.ErrTruncated}, "remove"},
		"a page":    {cutTo(4096), []error{shm.ErrTruncated}, "owner"},
		"truncated": {cutTo(5000), []error{shm.ErrTruncated}, "owner"},
		"zeros": {func(t *testing.T, dir string) {
			info, err := os.Stat(reader(dir))
			must(t, errors.Join(err, os.WriteFile(reader(dir), make([]byte, info.Size()), 0)))
		}, []error{shm.ErrCorrupt, syscall.EBADMSG}, "remove"},
		"other magic": {func(t *testing.T, dir string) { patch(t, reader(dir), 0, 9) },
			[]error{shm.ErrCorrupt, syscall.EBADMSG}, "remove"},
		"damaged checksum": {func(t *testing.T, dir string) { patch(t, reader(dir), 200, 0xff) },
			[]error{shm.ErrCorrupt, syscall.EBADMSG}, "remove"},
		"other version": {func(t *testing.T, dir string) { patch(t, reader(dir), offABIMajor, 9) },
			[]error{shm.ErrVersion, syscall.EPROTONOSUPPORT}, "one version"},
		"half written": {func(t *testing.T, dir string) { patch(t, reader(dir), offState, 0) },
			[]error{shm.ErrCorrupt, syscall.EBADMSG}, "remove"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			queue := queueName(t)
			q, err := cq.Create(cq.Named(d, queue), cq.Options{Size: 4, Lifetime: cq.Persistent})
			must(t, err)
			must(t, q.Detach())
			dir := filepath.Join(d.Path(), queue)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			c.spoil(t, dir)
			before := contents(t, d.Path())
			k := objectKinds()[0]
			for what, use := range k.calls() {
				creates := name == "missing" || errors.Is(c.want[0], shm.ErrTruncated)
				if what == "create" || creates && what == "open" {
					continue
				}
				_, err := use(cq.Named(d, queue), k.zero())
				wantErr(t, what, err, c.want...)
				var e *shm.Error
				if !errors.As(err, &e) || !strings.Contains(e.Hint, c.hint) {
					t.Errorf("%s: %v does not say what to do: want %q", what, err, c.hint)
				}
				if after := contents(t, d.Path()); after != before {
					t.Errorf("%s: before:\n%s\nafter:\n%s", what, before, after)
				}
				if !creates && c.want[0] != shm.ErrOwner {
					_, err = cq.Create(cq.Named(d, queue), cq.Options{})
					wantErr(t, "create", err, syscall.EEXIST)
				}
			}
		})
	}
}

// Where the version and the state stand in the header of every object.
const (
	offABIMajor = 0x0c
	offState    = 0xa00
)

// cutTo leaves so many bytes of the reader's object.
func cutTo(size int64) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) { must(t, os.Truncate(reader(dir), size)) }
}

func reader(dir string) string { return filepath.Join(dir, cq.ReaderFile) }

// patch overwrites a byte of a file.
func patch(t *testing.T, path string, at int64, b byte) {
	t.Helper()
	f := shmtest.Have(os.OpenFile(path, os.O_WRONLY, 0)).In(t)
	shmtest.Got(f.WriteAt([]byte{b}, at)).Or(t)
}

func chown(t *testing.T, path string, uid int) {
	t.Helper()
	shmtest.RequireRoot(t, "root", "nobody else may give files away")
	must(t, os.Chown(path, uid, uid))
}

// contents lists a directory and all below it, with the sizes and the modes.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			b.WriteString(fs.FormatFileInfo(info) + " " + path + "\n")
		}
		return err
	}))
	return b.String()
}

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

// movedVerb begins with a directory, has it moved, and goes on.
type movedVerb struct {
	name string
	run  func(d *shm.Dir, moved func()) error
}

var movedVerbs = []movedVerb{
	{"create", func(d *shm.Dir, moved func()) error {
		moved()
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Wait: cq.WaitFD})
		return errors.Join(err, closed(q))
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
}

func init() {
	for _, k := range cutKinds() {
		movedVerbs = append(movedVerbs, movedVerb{"close of " + k.name,
			func(d *shm.Dir, moved func()) error {
				o := shmtest.Needs(k.create(cq.Named(d, k.name), k.base))
				moved()
				return o.close()
			}})
	}
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
	for _, name := range []string{"q/reader", "q/wake", "q/lane-0001"} {
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
