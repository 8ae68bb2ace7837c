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
		if need(ballast.Truncate(0)); free < 0 {
			return
		}
		var st unix.Statfs_t
		need(unix.Fstatfs(int(ballast.Fd()), &st))
		if n := (int64(st.Bavail) - int64(free)) * page; n > 0 {
			need(unix.Fallocate(int(ballast.Fd()), 0, 0, n))
		}
	}
	tooLarge(d)
	lateMemory(d, fill)
	q := shmtest.Needs(cq.Create(cq.Named(d, "limited"), cq.Options{Size: 8}))
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "limited"), cq.WriterOptions{}))
	fill(0)
	for range 1000 { // what exists has all of its memory
		need(passes(q, w))
	}
	need(errors.Join(w.Close(), q.Close()))
	s := &scarce{d: d, root: d.Path(), begin: func() {}, limit: fill,
		want: []error{shm.ErrNoSpace, syscall.ENOSPC}}
	s.left = func() string { return objects(root) }
	s.use()
	var st unix.Statfs_t
	pages := s.most
	s.most, s.limit = 0, func(free int) {
		n := uint64(1 << 20)
		if free >= 0 {
			need(unix.Fstatfs(int(ballast.Fd()), &st))
			n = st.Files - st.Ffree + uint64(free)
		}
		need(syscall.Mount("", root, "", syscall.MS_REMOUNT, fmt.Sprintf("nr_inodes=%d", n)))
	}
	s.limit(-1)
	s.use()
	if pages < 2 || s.most < 2 {
		say("nothing needed more than %d pages, %d files", pages, s.most)
	}
	need(errors.Join(ballast.Close(), d.Close()))
	say("done")
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
	fill(-1)
}

// TestTmpfsFull: at every allocation the file system may have become full. What fails says so and
// leaves nothing.
func TestTmpfsFull(t *testing.T) {
	shmtest.Long(t)
	shmtest.RequireRoot(t, "mount", "only root may")
	cmd := shmtest.Child(t, "full tmpfs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	complaints(t, c)
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
	if shmtest.Race {
		t.Skip("memory of the race detector comes beside what the library asks for")
	}
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
