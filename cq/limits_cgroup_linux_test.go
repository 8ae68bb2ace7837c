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
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["confined"] = childConfined }

// cgroup makes a control group of either version, in which the test can set a limit or stop
// processes: dir holds the files of the controller.
func cgroup(t *testing.T, controller, file string) (dir string) {
	t.Helper()
	roots := []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}
	var err error
	for _, root := range roots {
		dir = filepath.Join(root, fmt.Sprintf("shmring-test-%d-%s", os.Getpid(), controller))
		if err = os.Mkdir(dir, 0o700); err != nil {
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
func set(t *testing.T, dir, names, value string) {
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

// childConfined has little memory, and tries to make a queue that is larger.
func childConfined() {
	d, err := shm.OpenDir("")
	need(err)
	say("started")
	var line string
	_, _ = fmt.Scanln(&line)
	for _, o := range []cq.Options{{Size: 1 << 20}, {Size: 1 << 22, MaxLanes: 1}} {
		q, err := cq.Create(d, "confined", o)
		if err == nil { // the lanes are what is large
			var w *cq.Writer
			if w, err = cq.Attach(context.Background(), d, "confined", cq.WriterOptions{}); err == nil {
				need(w.Close())
			}
			need(q.Close())
		}
		var no *shm.NoSpaceError
		say("%v %v %v", errors.Is(err, shm.ErrNoSpace), errors.As(err, &no),
			no != nil && strings.HasPrefix(no.Where, "memory cgroup"))
	}
	need(createsQueue(d, cq.Options{}, func(q *cq.Queue) error {
		return attachesTo(d, func(w *cq.Writer) error { return passes(q, w) })
	}))
	need(d.Close())
	say("still here")
}

// TestMemoryCgroup: what does not fit into the control group is an error with numbers. The kernel
// would have killed the process instead.
func TestMemoryCgroup(t *testing.T) {
	const limits = memoryLimit
	group := cgroup(t, "memory", limits)
	c := startChild(t, "confined")
	if got := c.line(t); got != "started" {
		t.Fatal(got)
	}
	set(t, group, "cgroup.procs", fmt.Sprint(c.Process.Pid))
	set(t, group, limits, fmt.Sprint(64<<20))
	_, err := c.in.Write([]byte("\n"))
	must(t, err)
	for _, want := range []string{"true true true", "true true true", "still here"} {
		if got := c.line(t); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	_ = c.stop(t)
}

// TestFrozen: a group that is frozen is not dead. Nobody takes its queue or its lanes, its readers
// find nothing missing, and all goes on when it thaws.
func TestFrozen(t *testing.T) {
	shmtest.Long(t)
	const states = "freezer.state cgroup.freeze"
	group := cgroup(t, "freezer", states)
	freeze := func(on bool) {
		words := map[bool][2]string{true: {"FROZEN", "1"}, false: {"THAWED", "0"}}[on]
		if _, err := os.Stat(group + "/freezer.state"); err == nil {
			set(t, group, "freezer.state", words[0])
			return
		}
		set(t, group, "cgroup.freeze", words[1])
	}
	d := openDir(t)
	name := queueName(t)
	q, err := cq.Create(d, name, cq.Options{Size: 64, MaxLanes: 8})
	must(t, err)
	must(t, q.Detach())
	path := filepath.Join(t.TempDir(), "log")
	log, err := os.Create(path)
	must(t, err)
	defer log.Close()
	l := &ledger{next: map[uint64]uint64{}, log: log}
	goesOn := func(what string) {
		seen := l.all
		eventually(t, what, func() bool {
			l.read(t)
			return l.all > seen
		})
	}
	reader := startChild(t, "reader", envQueue+"="+name, envLog+"="+path)
	_ = reader.line(t)
	writer := startChild(t, "writer", envQueue+"="+name)
	_ = writer.line(t)
	other := startChild(t, "writer", envQueue+"="+name)
	_ = other.line(t)
	t.Cleanup(func() { freeze(false) }) // before they are killed, which the frozen do not notice
	for _, frozen := range []*child{reader, writer} {
		goesOn("the reader reads")
		set(t, group, "cgroup.procs", fmt.Sprint(frozen.Process.Pid))
		freeze(true)
		_, err := cq.Adopt(d, name, cq.Options{})
		wantErr(t, "adopt it", err, syscall.EBUSY)
		wantErr(t, "remove it", collect.Remove(d, name, collect.Options{}), cq.ErrBusy)
		time.Sleep(400 * time.Millisecond) // longer than anybody waits before he looks again
		if frozen == writer {
			goesOn("the reader reads what others write")
		}
		freeze(false)
		set(t, filepath.Dir(group), "cgroup.procs", fmt.Sprint(frozen.Process.Pid))
		goesOn("all goes on when it thaws")
	}
	_, _ = writer.stop(t), other.stop(t)
	tails := tailsOf(t, d, name)
	eventually(t, "the reader has seen all", func() bool {
		l.read(t)
		return l.complete(tails)
	})
	reader.kill()
	q, err = cq.Adopt(d, name, cq.Options{})
	must(t, err)
	closeQueue(t, q)
}
