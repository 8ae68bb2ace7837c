package ctl_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["holder"], roles["feeder"] = childHolder, childFeeder
}

// socketOf is where a queue without a name is found.
func socketOf(name string) *net.UnixAddr {
	return &net.UnixAddr{Name: filepath.Join(os.Getenv(shm.EnvDir), name), Net: "unix"}
}

// childHolder uses objects without names as hard as it can until it is killed, and queues that
// others attach to.
func childHolder() {
	for name, trust := range map[string]cq.Trust{"user": cq.SameUser, "others": cq.CrossUser} {
		q := shmtest.Needs(cq.Create(cq.Unnamed(name), cq.Options{Size: 16, MaxLanes: 3, Trust: trust}))
		l := shmtest.Needs(net.ListenUnix("unix", socketOf(name)))
		go func() { need(q.Serve(l, func(error) {})) }()
		go readBusily(q, new(atomic.Uint64))
	}
	useBusily(cq.Unnamed)
	say("ready")
	untilTold()
}

// childFeeder attaches to both of them again and again.
func childFeeder() {
	first := make(chan bool, 2)
	for name, trust := range map[string]cq.Trust{"user": cq.SameUser, "others": cq.CrossUser} {
		go func() {
			for done := false; ; {
				if feed(name, trust) && !done {
					done = true
					first <- true
				}
				runtime.Gosched()
			}
		}()
	}
	<-first
	<-first
	say("ready")
	untilTold()
}

// feed attaches once, and posts. The reader may have no room yet: lanes that were left are retired
// by and by, and so are connections.
func feed(name string, trust cq.Trust) (done bool) {
	conn, err := net.DialUnix("unix", nil, socketOf(name))
	if err != nil {
		return false
	}
	defer conn.Close()
	w, err := cq.Attach(context.Background(), cq.Over(conn), cq.WriterOptions{Trust: trust})
	if err != nil {
		return false
	}
	postMany(w)
	return true
}

// TestCheckProcessLive: of objects without names that are used at full speed, by a reader and by
// writers that come and go, nothing is said that is not so.
func TestCheckProcessLive(t *testing.T) {
	d := ownDir(t)
	holder := startChild(t, d, "holder")
	holder.Says(t, "ready")
	feeder := startChild(t, d, "feeder")
	feeder.Says(t, "ready")
	check := func(c *shmtest.Proc, least int) {
		t.Helper()
		r := shmtest.Got(ctl.CheckProcess(ctl.CheckOptions{}, c.Process.Pid)).Or(t)
		if r.Objects < least || len(r.Findings) > 0 {
			t.Errorf("%d objects, %+v", r.Objects, r.Findings)
		}
	}
	for range 4 {
		check(holder, 5)
		check(feeder, 0)
	}
	feeder.Kill()
	check(holder, 5)
	if _, err := ctl.CheckProcess(ctl.CheckOptions{}, feeder.Process.Pid); !errors.Is(err,
		fs.ErrNotExist) {
		t.Error(err)
	}
}

func init() { roles["crowded"], roles["few"] = childCrowded, childFew }

// manyLocks makes what the kernel says of a descriptor long, with the lock of an owner at the end.
func manyLocks(t *testing.T, fd int) {
	t.Helper()
	for i := range int64(2500) {
		must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK,
			Start: 2 * i, Len: 1}))
	}
	must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK,
		Start: 1 << 40, Len: 1}))
}

// TestCheckProcessLocks: who locks an object is not looked for in more text than an object of the
// library has, and not without end in many of them.
func TestCheckProcessLocks(t *testing.T) {
	d := ownDir(t)
	whole := specimens(t, d)
	rd, lane := slices.Clone(whole["q/reader"]), slices.Clone(whole["q/lane-0001"])
	newQueue(rd, lane)
	binary.LittleEndian.PutUint64(rd[section(t, rd, sectRows)+rowBytes+128:], 7) // ahead of its lane
	reader := hold(t, "q", rd, memfdSeals)
	hold(t, "lane", lane, memfdSeals)
	manyLocks(t, reader)
	for range 20 {
		again := shmtest.Got(unix.FcntlInt(uintptr(reader), unix.F_DUPFD_CLOEXEC, 0)).Or(t)
		defer unix.Close(again)
	}
	if _, byFD := ofProcess(t, ctl.CheckOptions{}); len(byFD) > 0 {
		t.Errorf("read to the end: %v", byFD)
	}
	for range 8 {
		rd, lane := slices.Clone(whole["q/reader"]), slices.Clone(whole["q/lane-0001"])
		newQueue(rd, lane)
		manyLocks(t, hold(t, "q", rd, memfdSeals))
	}
	hold(t, "q", whole["q/reader"], memfdSeals)
	r, err := ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid())
	if err == nil || !strings.Contains(err.Error(), "too many locks") || r.Objects < 11 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestCheckProcessCrowded: of a process that has more objects than its checker may open, as many as
// it can are checked, and it says that these are a part.
func TestCheckProcessCrowded(t *testing.T) {
	judges(t, "crowded", "a part\n")
}

// judges has a child look at what it made, and say what it found.
func judges(t *testing.T, role, want string) {
	t.Helper()
	out, err := childOf(t, ownDir(t), role).Output()
	if err != nil || string(out) != want {
		t.Errorf("%s, %v", out, err)
	}
}

// childCrowded checks itself.
func childCrowded() {
	last := 0
	for range 300 {
		fd := shmtest.Needs(unix.MemfdCreate("shmring:junk", unix.MFD_CLOEXEC))
		shmtest.Needs(unix.Write(fd, []byte("no object")))
		last = max(last, fd)
	}
	limit := unix.Rlimit{Cur: uint64(last) + 201, Max: uint64(last) + 201}
	need(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	r, err := ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid())
	p := ctl.NewProblem(err)
	if !errors.Is(err, unix.EMFILE) || p.Hint == nil || !strings.Contains(p.Message, "part of") ||
		r.Objects < 100 || r.Objects >= 200 || len(r.Findings) != r.Objects {
		say("%v, %d objects, %d findings", err, r.Objects, len(r.Findings))
		return
	}
	say("a part")
}

// TestFewDescriptors: what cannot be looked at for want of descriptors is neither taken for damaged
// nor left out without a word.
func TestFewDescriptors(t *testing.T) {
	judges(t, "few", "done\n")
}

// childFew looks at a queue and at itself with 0, 1, 2, … descriptors that are free.
func childFew() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4}))
	lanes := []io.Closer{q}
	for range 3 {
		w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "q"), cq.WriterOptions{}))
		lanes = append(lanes, w)
	}
	all := shmtest.Needs(ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid()))
	top := 0
	for fd := range 256 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			top = fd
		}
	}
	for fd := -1; fd < top; {
		fd = shmtest.Needs(unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0))
		top = max(top, fd)
	}
	for free := range 80 {
		limit := unix.Rlimit{Cur: uint64(top + 1 + free), Max: 4096}
		need(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		shown, err := ctl.Show(d, "q")
		r, failed := ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid())
		limit.Cur = 4096
		need(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		want := ctl.StateError
		if err == nil && shown.Lanes[len(lanes)-1].Error == nil {
			want = ctl.StateOpen
		}
		if *shown.State != want || err != nil && !errors.Is(err, unix.EMFILE) {
			say("with %d the queue is %s: %v", free, *shown.State, err)
		}
		if r.Objects < all.Objects && !errors.Is(failed, unix.EMFILE) {
			say("with %d there are %d objects of %d: %v", free, r.Objects, all.Objects, failed)
		}
	}
	need(cq.CloseAll(lanes...))
	say("done")
}
