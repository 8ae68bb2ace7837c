package ctl_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["busy"], roles["loser"] = childBusy, childLoser }

// childBusy uses one object of each kind as hard as it can until it is killed.
func childBusy() {
	d := shmtest.Needs(shm.OpenDir(""))
	name := os.Getenv(envName)
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 16, MaxLanes: 3, Wait: cq.WaitFD})
	need(err)
	set := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
	need(set.Add(q))
	go postBusily(d, name)
	useBusily(func(what string) cq.Place { return cq.Named(d, name+"-"+what) })
	var reads atomic.Uint64
	go readBusily(q, &reads)
	for reads.Load() < 100 {
		time.Sleep(time.Millisecond)
	}
	say("ready")
	untilTold()
}

// useBusily makes one object of each other kind at a place, and uses it.
func useBusily(at func(what string) cq.Place) {
	e := shmtest.Needs(cq.CreateEvents(at("events"), cq.EventOptions{Size: 4, Write: true}))
	c := shmtest.Needs(cq.CreateCounter(at("count"), cq.CounterOptions{}))
	v, err := cq.CreateAddresses(at("peers"), cq.AddressOptions{Count: 64, Format: cq.AddrOpaque})
	need(err)
	go countBusily(e, c)
	go insertBusily(v)
}

// readBusily counts what it reads.
func readBusily(q *cq.Queue, reads *atomic.Uint64) {
	dst, bad := make([]cq.Msg, 5), cq.ErrorEntry{}
	for {
		n, err := cq.Read(q, dst)
		if errors.Is(err, cq.ErrAvail) {
			need(q.ReadErr(&bad))
		} else if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			need(err)
		}
		reads.Add(uint64(n))
		runtime.Gosched()
	}
}

// postBusily attaches again and again, and posts as much as there is room for.
func postBusily(d *shm.Dir, name string) {
	for {
		w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{}))
		postMany(w)
	}
}

// postMany posts as much as there is room for, and closes.
func postMany(w *cq.Writer) {
	for i := range 500 {
		err := w.Post(&cq.Entry{Meta: []cq.Meta{0, 0, cq.MetaSolicited}[i%3]})
		if i%7 == 0 && err == nil {
			err = w.PostError(&cq.ErrorEntry{Err: 5, ErrData: []byte("x")})
		}
		if errors.Is(err, cq.ErrFull) {
			runtime.Gosched() // there may be one processor for all
		} else {
			need(err)
		}
	}
	need(w.Close())
}

// countBusily writes and reads events, and adds.
func countBusily(e *cq.EventQueue, c *cq.Counter) {
	ev := cq.Event{Payload: make([]byte, 0, 64)}
	for i := 0; ; i++ {
		_, err := e.Write(&cq.Event{Event: cq.EventUser, Payload: []byte(strconv.Itoa(i))})
		if err != nil && !errors.Is(err, cq.ErrFull) {
			need(err)
		}
		need(c.Add(1))
		if i%2 == 0 {
			_, _ = e.Read(&ev, 0)
		}
		runtime.Gosched()
	}
}

// insertBusily changes a vector of addresses.
func insertBusily(v *cq.AddressVector) {
	for i := 0; ; i++ {
		at, err := v.Insert([][]byte{[]byte(strconv.Itoa(i % 100)), []byte(strconv.Itoa(i % 37))},
			cq.InsertOptions{})
		need(err)
		for k, a := range at {
			if k == 0 || at[0] != a {
				need(v.Remove(a))
			}
		}
		runtime.Gosched()
	}
}

// TestCheckLive: of objects that other processes use at full speed nothing is said that is not so,
// and after they were killed at any moment nothing is broken.
func TestCheckLive(t *testing.T) {
	d := ownDir(t)
	check := func(what string) {
		t.Helper()
		r := shmtest.Got(ctl.Check(ctl.CheckOptions{}, d.Path())).Or(t)
		if r.Objects < 5 || len(r.Findings) > 0 {
			t.Errorf("%s: %d objects, %+v", what, r.Objects, r.Findings)
		}
	}
	for i := range 2 {
		name := "busy" + strconv.Itoa(i)
		c := startChild(t, d, "busy", envName+"="+name)
		c.Says(t, "ready")
		for range 6 {
			check("alive")
		}
		c.Kill()
		check("dead")
	}
	c := startChild(t, d, "household")
	c.Line(t)
	check("household")
	c.Kill()
	check("household, dead")
	shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true})).Or(t)
	check("after a collection")
}

// TestCheckLooksOnly: a check changes nothing, and what goes away meanwhile is no error.
func TestCheckLooksOnly(t *testing.T) {
	d := ownDir(t)
	c := startChild(t, d, "household")
	c.Line(t)
	defer c.Kill()
	strangersNearby(t, d)
	before := tree(t, d)
	r := shmtest.Got(ctl.Check(ctl.CheckOptions{}, d.Path())).Or(t)
	if len(r.Findings) > 0 || len(r.Undecided) > 0 {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(before, tree(t, d)); diff != "" {
		t.Errorf("checking changed the directory: %s", diff)
	}
	if _, err := ctl.Check(ctl.CheckOptions{}, filepath.Join(d.Path(), "none")); !errors.Is(err,
		os.ErrNotExist) {
		t.Error(err)
	}
	r, err := ctl.Check(ctl.CheckOptions{}, filepath.Join(d.Path(), "dead", "reader"),
		filepath.Join(d.Path(), "link"))
	if err == nil || r.Objects != 2 || len(r.Findings) > 0 { // the reader's and a lane
		t.Errorf("%+v, %v", r, err)
	}
}

func strangersNearby(t *testing.T, d *shm.Dir) {
	t.Helper()
	o := shmtest.Got(d.Create("bystander", shm.Spec{Kind: 78}, nil)).Or(t)
	strangers(t, d)
	must(t, errors.Join(o.Unlink(), o.Close()))
	for _, name := range []string{"newer", "damaged", "hollow", "open"} { // which a check complains of
		must(t, os.Remove(filepath.Join(d.Path(), name)))
	}
}

// TestCheckGolden: the images that the format is held to are whole.
func TestCheckGolden(t *testing.T) {
	files := shmtest.Got(filepath.Glob("../testdata/golden/object-*.bin")).Or(t)
	if len(files) == 0 {
		t.Fatal("there are none")
	}
	r := shmtest.Got(ctl.Check(ctl.CheckOptions{}, files...)).Or(t)
	if r.Objects != len(files) || len(r.Findings) > 0 {
		t.Errorf("%+v", r)
	}
}

// FuzzCheck: whatever bytes objects have, a look at them ends, without a panic, and says where the
// words are that it complains of.
func FuzzCheck(f *testing.F) {
	d := ownDir(f)
	whole := specimens(f, d)
	names := []string{"q/reader", "q/lane-0001", "ev/reader", "count", "peers"}
	dir := filepath.Join(d.Path(), "fuzz")
	must(f, os.MkdirAll(filepath.Join(dir, "q"), 0o700))
	must(f, os.MkdirAll(filepath.Join(dir, "ev"), 0o700))
	for i := range names {
		f.Add(uint8(i), uint32(0), []byte{}, true)
		f.Add(uint8(i), uint32(4096), []byte{255, 255, 255, 255, 255, 255, 255, 255}, false)
		f.Add(uint8(i), uint32(0x180), []byte("arbitrary bytes"), true)
		f.Add(uint8(i), uint32(0xb00), []byte{1, 0, 0, 0, 0, 0, 0, 128}, false)
	}
	f.Add(uint8(99), uint32(0), []byte("arbitrary bytes"), false)
	f.Fuzz(func(t *testing.T, which uint8, at uint32, patch []byte, sealed bool) {
		for _, name := range names {
			must(t, os.WriteFile(filepath.Join(dir, name), whole[name], 0o600))
		}
		name := names[int(which)%len(names)]
		image := append([]byte{}, whole[name]...)
		if int(which) >= len(names) {
			image = patch
		} else {
			copy(image[at%uint32(len(image)):], patch)
			if sealed {
				seal(image)
			}
		}
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, image, 0o600))
		var all []inspect.Checked
		var err error
		if strings.Contains(name, "/") {
			all, err = inspect.CheckQueue(filepath.Dir(path))
		} else {
			var c inspect.Checked
			c, err = inspect.CheckObject(path, nil)
			all = []inspect.Checked{c}
		}
		must(t, err)
		for _, c := range all {
			info := shmtest.Got(os.Stat(c.Path)).Or(t)
			placed(t, c, info.Size())
		}
		checkHeldImage(t, name, image, whole)
	})
}

// placed: a violation has a name, and a place in the object.
func placed(t *testing.T, c inspect.Checked, bytes int64) {
	t.Helper()
	for _, v := range c.Violations {
		if v.Invariant == "" || v.Section == "" || v.Offset > uint64(max(bytes, 4096)) {
			t.Errorf("%s: %+v", c.Path, v)
		}
	}
}

// checkHeldImage checks an image as a memfd of a process, with what it belongs to.
func checkHeldImage(t *testing.T, name string, image []byte, whole map[string][]byte) {
	t.Helper()
	files := map[string][]byte{name: image}
	if strings.HasPrefix(name, "q/") {
		files = map[string][]byte{"q/reader": whole["q/reader"], "q/lane-0001": whole["q/lane-0001"]}
		files[name] = image
	}
	var held []inspect.Held
	for name, image := range files {
		held = append(held, inspect.Held{Name: name, Path: name, FD: hold(t, name, image, 0), Memfd: true,
			Owned: true})
	}
	all := shmtest.Got(inspect.CheckHeld(held, nil)).Or(t)
	if len(all) != len(held) {
		t.Errorf("%d of %d checked", len(all), len(held))
	}
	for _, c := range all {
		placed(t, c, int64(len(files[c.Path])))
	}
}

// childLoser owns a queue whose lock it loses, as a process does that closes descriptors that are
// not its own. The memory stays mapped.
func childLoser() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4}))
	reader := shmtest.Needs(os.Stat(filepath.Join(d.Path(), "q", "reader")))
	fds := shmtest.Needs(os.ReadDir("/proc/self/fd"))
	for _, e := range fds {
		if to, err := os.Stat("/proc/self/fd/" + e.Name()); err == nil && os.SameFile(to, reader) {
			fd := shmtest.Needs(strconv.Atoi(e.Name()))
			need(unix.Close(fd))
		}
	}
	say("lost")
	untilTold()
}

func TestCheckFindsLostLock(t *testing.T) {
	d := ownDir(t)
	loser := startChild(t, d, "loser")
	loser.Line(t)
	r, err := ctl.Check(ctl.CheckOptions{}, filepath.Join(d.Path(), "q"))
	must(t, err)
	if len(r.Findings) != 1 || r.Findings[0].Invariant != "owner.lock" ||
		filepath.Base(r.Findings[0].Path) != "reader" {
		t.Errorf("%+v", r.Findings)
	}
	if q, err := ctl.Show(d, "q"); err != nil || *q.State != ctl.StateLockLost {
		t.Errorf("%v, %v", *q.State, err)
	}
	loser.Kill()
	if r, err = ctl.Check(ctl.CheckOptions{}, filepath.Join(d.Path(), "q")); err != nil ||
		len(r.Findings) != 0 {
		t.Errorf("when it is dead: %+v, %v", r.Findings, err)
	}
}

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
	reader, _ := holdAhead(t, whole)
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
	shmtest.FillGaps()
	top := slices.Max(shmtest.OpenFiles())
	for free := range 80 {
		restore := shmtest.LimitFiles(uint64(top + 1 + free))
		shown, err := ctl.Show(d, "q")
		r, failed := ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid())
		restore()
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
