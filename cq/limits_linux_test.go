package cq_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

var limitsReport = flag.Bool("limits.report", false,
	"note the figures of tests at limits in testdata/reports/limits.md")

const limitsHead = `# At limits: figures of the tests

Made by "go test ./cq -run NAME -limits.slow 1m -limits.full -limits.report", one by one, on
%s. Memory is the most that a process had
resident at any time until then, in KiB. The tests, of which the first takes less than a second with
the others, hold memory, threads and losses to bounds.

| test | figures |
|---|---|
`

// reportLimits notes figures as the row of a test, beside the rows of the others.
func reportLimits(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Log(text)
	if !*limitsReport || t.Failed() {
		return
	}
	const file = "../testdata/reports/limits.md"
	rows := map[string]string{}
	old, _ := os.ReadFile(file)
	for line := range strings.Lines(string(old)) {
		if name, _, _ := strings.Cut(line, " | "); strings.HasPrefix(name, "| Test") {
			rows[name] = line
		}
	}
	rows["| "+t.Name()] = fmt.Sprintf("| %s | %s |\n", t.Name(), text)
	page := fmt.Sprintf(limitsHead, stage.Here())
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		page += rows[name]
	}
	must(t, os.WriteFile(file, []byte(page), 0o644))
}

// cgroup makes a control group of either version, in which the test can set a limit or stop
// processes: dir holds the files of the controller.
func cgroup(t *testing.T, controller, file string) (dir string) {
	t.Helper()
	roots := []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}
	var err error
	for _, root := range roots {
		if dir, err = os.MkdirTemp(root, "shmring-test-"); err != nil {
			continue
		}
		for name := range strings.SplitSeq(file, " ") {
			if _, err = os.Stat(filepath.Join(dir, name)); err == nil {
				t.Cleanup(func() {
					eventually(t, "the group is empty", func() bool { return os.Remove(dir) == nil })
				})
				return dir
			}
		}
		_ = os.Remove(dir)
	}
	shmtest.Require(t, "cgroups", err)
	return ""
}

// set writes a file of a group, by the name that its version has.
func set(t testing.TB, dir, names, value string) {
	t.Helper()
	var err error
	for name := range strings.SplitSeq(names, " ") {
		f, oerr := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
		if err = oerr; err == nil {
			_, err = f.WriteString(value)
			must(t, errors.Join(err, f.Close()))
			return
		}
	}
	t.Fatal(err)
}

var setClock = flag.Bool("limits.clock", false,
	"let TestClockJumps set the clock of the machine, for a second or two")

// wallOffset is what the wall clock has more than the monotonic one, in ns.
func wallOffset(t *testing.T) int64 {
	var wall, mono unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono))
	must(t, unix.ClockGettime(unix.CLOCK_REALTIME, &wall))
	return wall.Nano() - mono.Nano()
}

// jump sets the wall clock to what it has without any jump, and so many seconds more.
func jump(offset int64, seconds int) error {
	var mono unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		return err
	}
	to := unix.NsecToTimespec(mono.Nano() + offset + int64(seconds)*1e9)
	return unix.ClockSettime(unix.CLOCK_REALTIME, &to)
}

// TestClockJumps: a blocking read takes as long as it should, wherever the wall clock jumps
// meanwhile. It runs alone, as it does that to everybody on the machine.
func TestClockJumps(t *testing.T) {
	if !*setClock {
		t.Skip("sets the clock of the machine: run it alone, with -limits.clock")
	}
	offset := wallOffset(t)
	shmtest.Require(t, "clock", jump(offset, 0))
	t.Cleanup(func() { must(t, jump(offset, 0)) })
	const far = 40 // seconds, either way
	jumping := func() (stop func()) {
		end, done := make(chan struct{}), make(chan error)
		go func() {
			for sign := far; ; sign = -sign {
				select {
				case <-end:
					done <- jump(offset, 0)
					return
				case <-time.After(5 * time.Millisecond):
					_ = jump(offset, sign)
				}
			}
		}()
		return func() {
			close(end)
			must(t, <-done)
		}
	}
	q, w := pair(t, cq.Options{Spin: -1})
	dst := make([]cq.Context, 1)
	const wait = 150 * time.Millisecond
	for name, read := range map[string]func() error{
		"timeout": func() error {
			_, err := sread(q, dst, wait)
			return instead(err, cq.ErrTimedOut)
		},
		"context": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
			return instead(err, context.DeadlineExceeded)
		},
	} {
		stop, begin := jumping(), time.Now()
		err := read()
		took := time.Since(begin) // by the monotonic clock
		stop()
		must(t, err)
		if took < wait || took > far/2*time.Second {
			t.Errorf("%s: %v, want %v", name, took, wait)
		}
	}
	stop := jumping()
	for i := range uint64(50) {
		done := later(func() { post(t, w, i, i+1) })
		n, err := sread(q, dst, time.Minute)
		done()
		if n != 1 || err != nil || dst[0].Context != i {
			t.Errorf("read %d, %v, %v", n, dst, err)
		}
	}
	stop()
}

// TestTimeNamespace: processes whose monotonic clocks differ by a day share a queue, and neither is
// taken for dead while it lives, nor for living when it is dead.
func TestTimeNamespace(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 1, Format: cq.FormatTagged, Spin: -1})
	buf := make([]cq.Tagged, 8)
	for _, day := range []string{"86400", "-5"} {
		cmd := shmtest.Child(t, "writer", envQueue+"="+q.Name())
		shmtest.Unshared(t, "timens", cmd, "--time", "--monotonic", day, "--boottime", day,
			"--fork", "--kill-child")
		c := start(t, cmd)
		c.Says(t, "lane 1")
		for next := uint64(0); next < 100; {
			n := shmtest.Got(sread(q, buf, time.Minute)).Or(t)
			for _, e := range buf[:n] {
				if e.Data != ^e.Tag {
					t.Fatalf("%+v", e)
				}
			}
			next += uint64(n)
		}
		_, err := cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})
		wantErr(t, "attach while it lives", err, cq.ErrLanes)
		c.Kill() // and with it its child
		eventually(t, fmt.Sprint("its lane is free, ", day), func() bool {
			w, err := cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})
			return err == nil && w.Close() == nil
		})
		_ = drain(t, q)
	}
}

func init() {
	roles["full tmpfs"], roles["edge"] = childFullTmpfs, childEdge
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
	d := shmtest.Needs(shm.OpenDir(root + "/objects"))
	ballast := shmtest.Needs(os.Create(root + "/ballast"))
	page := int64(os.Getpagesize())
	fill := func(free int) {
		need(ballast.Truncate(0))
		var st unix.Statfs_t
		need(unix.Fstatfs(int(ballast.Fd()), &st))
		if n := (int64(st.Bavail) - int64(free)) * page; n > 0 {
			need(unix.Fallocate(int(ballast.Fd()), 0, 0, n))
		}
	}
	tooLarge(d)
	lateMemory(d, fill)
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

// tooLarge: a queue that does not fit says with numbers what is missing.
func tooLarge(d *shm.Dir) {
	o := cq.EventOptions{Size: 1 << 16}
	_, err := cq.CreateEvents(cq.Named(d, "big"), o)
	var no *shm.Error
	if plan, _ := cq.Plan(o, 0); !errors.As(err, &no) || !errors.Is(err, syscall.ENOSPC) ||
		no.Want.(uint64) < plan || no.Got.(uint64) > 8<<20 {
		say("create: %v, planned %d", err, plan)
	}
}

// lateMemory: what a queue gets when it is used first may not be there by then. The rest goes on.
func lateMemory(d *shm.Dir, fill func(free int)) {
	q := shmtest.Needs(cq.Create(cq.Named(d, "late"), cq.Options{Size: 2048}))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "late"), cq.WriterOptions{}))
	fill(0)
	_, own := q.Writer()
	for what, err := range map[string]error{"own writer": own, "credit": w.Credits().Add(1),
		"error": w.PostError(&cq.ErrorEntry{})} {
		if !errors.Is(err, shm.ErrNoSpace) {
			say("%s: %v", what, err)
		}
	}
	need(errors.Join(passes(q, w), w.Close(), q.Close()))
	fill(1 << 10)
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
	shmtest.RequireRoot(t, "mount", "only root may")
	cmd := shmtest.Child(t, "full tmpfs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	for range 2 {
		complaints(t, c)
	}
	_ = c.Stop(t)
}

// complaints is what the child says until it is done: nothing, in a good run.
func complaints(t *testing.T, c *child) {
	for line := c.Line(t); line != "done"; line = c.Line(t) {
		t.Error(line)
	}
}

const edgeBytes = 64 << 20 // what the control group has

// childEdge makes queues that its control group has no room for: one that is too large, and one
// after the other until there is no room.
func childEdge() {
	d := shmtest.Needs(shm.OpenDir(""))
	say("started")
	_, _ = fmt.Scanln(new(string))
	try := func(name string, o cq.Options, then func(*cq.Queue, *cq.Writer)) bool {
		files := objects(d.Path())
		q, err := cq.Create(cq.Named(d, name), o)
		if err == nil {
			files = objects(d.Path())
			var w *cq.Writer
			w, err = cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{})
			if err == nil {
				then(q, w)
				return true
			}
			defer func() { need(q.Close()) }()
		}
		var no *shm.Error
		if !errors.Is(err, shm.ErrNoSpace) || !errors.As(err, &no) ||
			no.Want.(uint64) <= no.Got.(uint64) || !strings.Contains(no.Field, "in memory cgroup") {
			say("%s: %v", name, err)
		}
		if now := objects(d.Path()); now != files {
			say("%s: left %s, before %s", name, now, files)
		}
		return false
	}
	for _, o := range []cq.Options{{Size: 1 << 20}, {Size: 1 << 22, MaxLanes: 1}} {
		if try("larger", o, func(q *cq.Queue, w *cq.Writer) { need(errors.Join(w.Close(), q.Close())) }) {
			say("there is room for %+v", o)
		}
	}
	var all []io.Closer
	keep := func(q *cq.Queue, w *cq.Writer) { all = append(all, w, q); need(passes(q, w)) }
	for i := 0; try(fmt.Sprint("edge-", i), cq.Options{Size: 1 << 12, MaxLanes: 2}, keep); i++ {
	}
	if len(all) < 10 {
		say("there was room for %d queues", len(all)/2)
	}
	need(errors.Join(cq.CloseAll(all...), d.Close()))
	say("done")
	untilTold()
}

// TestMemoryCgroupEdge: a process whose control group has no memory left is told so before the
// kernel kills it.
func TestMemoryCgroupEdge(t *testing.T) {
	t.Parallel()
	shmtest.Long(t)
	const limit = "memory.limit_in_bytes memory.max"
	group := cgroup(t, "memory", limit)
	c := startChild(t, "edge")
	c.Says(t, "started")
	set(t, group, "cgroup.procs", fmt.Sprint(c.Process.Pid))
	set(t, group, limit, fmt.Sprint(edgeBytes))
	shmtest.Got(c.In.Write([]byte("\n"))).Or(t)
	complaints(t, c)
	_ = c.Stop(t)
}
