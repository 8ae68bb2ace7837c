package collect_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

var must = shmtest.Must

// openDir opens a directory that no other test sees, and removes it when the test ends.
func openDir(t *testing.T) *shm.Dir {
	t.Helper()
	d := shmtest.Got(shm.OpenDir(filepath.Join(shmtest.Dir(t), t.Name()))).Or(t)
	t.Cleanup(func() {
		_ = d.Close()
		_ = os.RemoveAll(d.Path())
	})
	return d
}

func attach(t *testing.T, d *shm.Dir) *cq.Writer {
	t.Helper()
	return shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
}

// TestRemoveSeesWhoComes: a writer that attaches while a queue is being removed keeps it, unless it
// sees that and gives up.
func TestRemoveSeesWhoComes(t *testing.T) {
	shmtest.Long(t)
	d := openDir(t)
	q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, MaxLanes: 3, Lifetime: cq.Persistent})
	must(t, err)
	must(t, q.Detach())
	dir := shmtest.Have(d.Sub("q", false)).In(t)
	obj := shmtest.Have(dir.Open(kind.ReaderFile, shm.ReadWrite)).In(t)
	look := collect.LastLook(d, dir, "q", obj)
	state := func() uint64 {
		words := shmtest.Got(kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)).Or(t)
		return words.State.Load()
	}

	w, err := cq.Attach(t.Context(), cq.Named(d, "q"),
		cq.WriterOptions{}) // since the lanes were looked for
	must(t, err)
	before := obj.Owner()
	if err := obj.Claim(look); !errors.Is(err, cq.ErrBusy) {
		t.Fatalf("with a writer: %v", err)
	}
	if obj.Owner() != before || state() != kind.StateOpen {
		t.Errorf("owner %+v after %+v, state %d", obj.Owner(), before, state())
	}
	must(t, w.Post(&cq.Entry{}))
	must(t, w.Close())
	if err := collect.Remove(d, "q", collect.Options{Waiting: true}); !errors.Is(err, cq.ErrBusy) {
		t.Errorf("with an unread entry: %v", err)
	}

	// Whoever removes it died before it could finish.
	words := shmtest.Got(kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)).Or(t)
	words.State.Store(kind.StateRemoving)
	var busy *cq.Error
	if _, err := cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{}); !errors.Is(err,
		cq.ErrBusy) ||
		!errors.As(err, &busy) || busy.Hint == "" {
		t.Errorf("attached to what is being removed: %v", err)
	}
	if r, err := collect.Assess(d, "q", collect.Options{Waiting: true}); err != nil ||
		r.Fate != collect.Unread || r.Unread != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	q = shmtest.Got(cq.Open(cq.Named(d, "q"), cq.Options{Existing: true})).Or(t)
	if n, err := cq.Read(q, make([]cq.Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	w = shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
	must(t, w.Close())
	must(t, q.Detach())
	attachWhileRemoved(t, d, dir)
	must(t, collect.Remove(d, "q", collect.Options{Waiting: true}))
	must(t, collect.Remove(d, "q", collect.Options{}))
}

// attachWhileRemoved: a writer that meets somebody who removes the queue, and gives it up again,
// attaches then.
func attachWhileRemoved(t *testing.T, d, dir *shm.Dir) {
	t.Helper()
	defer func(most time.Duration) { collect.ContestMost = most }(collect.ContestMost)
	collect.ContestMost = time.Hour // it only catches a hang
	obj := shmtest.Have(dir.Open(kind.ReaderFile, shm.ReadWrite)).In(t)
	words := shmtest.Got(kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)).Or(t)
	opt := shmtest.Got(kind.StoredQueue("test", "q", obj.Header())).Or(t)
	attached := make(chan error, 1)
	attach := func() {
		w, err := cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})
		if err == nil {
			err = w.Close()
		}
		attached <- err
	}
	early := func() {
		t.Helper()
		select {
		case err := <-attached:
			t.Errorf("did not wait: %v", err)
			attached <- err
		case <-time.After(20 * time.Millisecond):
		}
	}
	words.State.Store(kind.StateRemoving)
	go attach()
	early()
	words.State.Store(kind.StateOpen)
	must(t, <-attached)

	var all []*cq.Writer // so that there is no row without a lane
	for range opt.Rows - 1 {
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
		all = append(all, w)
	}
	if _, err := cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{}); !errors.Is(err,
		cq.ErrLanes) ||
		errors.Is(err, cq.ErrBusy) {
		t.Errorf("one writer too many: %v", err)
	}
	for _, w := range all {
		must(t, w.Close())
	}
	release := shmtest.Got(collect.HoldLanes(d, "q")).Or(t)
	go attach()
	early()
	release()
	must(t, <-attached)
}

// leaveQueue leaves a persistent queue under a name, which may be one that nobody else gives.
func leaveQueue(t *testing.T, d *shm.Dir, name string) {
	t.Helper()
	q, err := cq.Create(cq.Named(d, "made"), cq.Options{Size: 4, Lifetime: cq.Persistent})
	must(t, err)
	must(t, q.Detach())
	must(t, os.Rename(filepath.Join(d.Path(), "made"), filepath.Join(d.Path(), name)))
}

// TestRemovesWhatWasAside: a persistent queue whose maker died before it had its own name waits for
// nobody.
func TestRemovesWhatWasAside(t *testing.T) {
	d := openDir(t)
	for name, want := range map[string]collect.Fate{"q": collect.Left, "new-queue": collect.Left,
		"new-" + shm.NewUUID().String(): collect.Garbage} {
		leaveQueue(t, d, name)
		if r, err := collect.Assess(d, name, collect.Options{}); err != nil || r.Fate != want {
			t.Errorf("%s: %v, %v; want %v", name, r.Fate, err, want)
		}
		if err := collect.Remove(d, name, collect.Options{}); (err == nil) != (want == collect.Garbage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRemovedMeanwhile: what somebody else has removed since it was found in his hands leaves its
// name to whoever wants that.
func TestRemovedMeanwhile(t *testing.T) {
	d := openDir(t)
	obj := shmtest.Have(d.Create("region", shm.Spec{Kind: shm.KindRegion}, nil)).In(t)
	look := collect.HeldByOthers(t, d, "region")
	if look() {
		t.Error("who has it lives")
	}
	must(t, obj.Unlink())
	if !look() {
		t.Error("the name is taken for good")
	}
}

// TestRemoveSeesWhatMoved: what was aside when a collector found it may have got its own name since
// then, and been left to a successor.
func TestRemoveSeesWhatMoved(t *testing.T) {
	d := openDir(t)
	aside := "new-" + shm.NewUUID().String()
	leaveQueue(t, d, aside)
	fate, remove := collect.Found(t, d, aside)
	if fate != collect.Garbage {
		t.Fatalf("aside it is %v", fate)
	}
	must(t, os.Rename(filepath.Join(d.Path(), aside), filepath.Join(d.Path(), "q")))
	for range 2 { // with nothing in the place that it left, and with another one
		if err := remove(); !errors.Is(err, cq.ErrBusy) {
			t.Errorf("moved, it was removed: %v", err)
		}
		must(t, os.MkdirAll(filepath.Join(d.Path(), aside), 0o700))
	}
	if r, err := collect.Assess(d, "q", collect.Options{}); err != nil || r.Fate != collect.Left {
		t.Errorf("under its own name: %v, %v", r.Fate, err)
	}
	must(t, collect.Remove(d, aside, collect.Options{}))
	shmtest.Have(cq.Open(cq.Named(d, "q"), cq.Options{Existing: true})).In(t)
}

// TestRemoveSparesTheOtherName: the directory aside of an object that has its own name too goes,
// and the queue stays, with what is unread in lanes that are only there.
func TestRemoveSparesTheOtherName(t *testing.T) {
	d := openDir(t)
	at := func(name ...string) string { return filepath.Join(append([]string{d.Path()}, name...)...) }
	q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Lifetime: cq.Persistent})
	must(t, err)
	w := attach(t, d)
	must(t, w.Post(&cq.Entry{Context: 5}))
	must(t, errors.Join(w.Close(), q.Detach()))
	aside := "new-" + shm.NewUUID().String()
	must(t, os.Mkdir(at(aside), 0o700))
	must(t, os.Link(at("q", kind.ReaderFile), at(aside, kind.ReaderFile)))
	must(t, collect.Remove(d, aside, collect.Options{}))
	if _, err := os.Stat(at(aside)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was aside: %v", err)
	}
	if q, err = cq.Open(cq.Named(d, "q"), cq.Options{Existing: true}); err != nil {
		t.Fatal(err)
	}
	if n, err := cq.Read(q, make([]cq.Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	must(t, q.Close())
}

// TestRemoveOneObjectSparesCutOnes: what was cut does not say whose it was, so it is none that was
// asked for by its number, whether it stands by itself or is a queue's.
func TestRemoveOneObjectSparesCutOnes(t *testing.T) {
	d := openDir(t)
	c, err := cq.CreateCounter(cq.Named(d, "counter"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Close())
	for _, name := range []string{"cut", "gone"} {
		q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{Size: 4})).Or(t)
		must(t, q.Detach())
	}
	must(t, os.Truncate(filepath.Join(d.Path(), "counter"), 4096))
	must(t, os.Truncate(filepath.Join(d.Path(), "cut", kind.ReaderFile), 4096))
	must(t, os.Remove(filepath.Join(d.Path(), "gone", kind.ReaderFile)))
	for _, name := range []string{"counter", "cut", "gone"} {
		o := collect.Options{Waiting: true, Object: shm.NewUUID()}
		if r, err := collect.Assess(d, name, o); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s, of which one is meant: %+v, %v", name, r, err)
		}
		must(t, collect.Remove(d, name, o))
		if _, err := os.Lstat(filepath.Join(d.Path(), name)); err != nil {
			t.Errorf("%s was removed: %v", name, err)
		}
		must(t, collect.Remove(d, name, collect.Options{Waiting: true}))
		if _, err := os.Lstat(filepath.Join(d.Path(), name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s, of which any is meant: %v", name, err)
		}
	}
}

// TestRemoveWhatIsMeant: what has the name stays if it is of another kind, another object or a
// socket, unless just that is asked for; and what is created takes the place of no socket.
func TestRemoveWhatIsMeant(t *testing.T) {
	d := openDir(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "queue"), cq.Options{Size: 4})).Or(t)
	c, err := cq.CreateCounter(cq.Named(d, "counter"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, errors.Join(q.Detach(), c.Close()))
	obj := shmtest.Got(d.Create("region", shm.Spec{Kind: shm.KindRegion}, nil)).Or(t)
	must(t, errors.Join(obj.Release(), obj.Close()))
	l := shmtest.Got(net.Listen("unix", filepath.Join(d.Path(), "socket"))).Or(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close())

	queues := []shm.Kind{shm.KindQueue, shm.KindEvents}
	for _, k := range []struct {
		name  string
		other []shm.Kind
		ours  []shm.Kind
	}{
		{"queue", []shm.Kind{shm.KindCounter}, queues},
		{"queue", []shm.Kind{shm.KindEvents, shm.KindCounter}, queues},
		{"counter", queues, []shm.Kind{shm.KindCounter}},
		{"counter", []shm.Kind{shm.KindAddresses}, []shm.Kind{shm.KindCounter}},
		{"region", append(queues, shm.KindCounter, shm.KindAddresses), []shm.Kind{shm.KindRegion}},
		{"socket", queues, nil},
		{"socket", []shm.Kind{shm.KindCounter}, nil},
	} {
		o := collect.Options{Waiting: true, Kinds: k.other}
		if err := collect.Remove(d, k.name, o); !errors.Is(err, shm.ErrKind) &&
			!errors.Is(err, syscall.ENXIO) {
			t.Errorf("%s, of which %v are meant: %v", k.name, k.other, err)
		}
		o = collect.Options{Waiting: true, Kinds: k.ours, Object: shm.NewUUID()}
		if err := collect.Remove(d, k.name, o); (err != nil) != (k.name == "socket") {
			t.Errorf("%s, of which another is meant: %v", k.name, err)
		}
		o = collect.Options{Waiting: true, Kinds: k.ours}
		if r, err := collect.Assess(d, k.name, o); err != nil || r.Fate != collect.Garbage ||
			r.Socket != (k.name == "socket") {
			t.Errorf("%s: %+v, %v", k.name, r, err)
		}
	}
	if c, err = cq.CreateCounter(cq.Named(d, "socket"), cq.CounterOptions{}); !errors.Is(err,
		os.ErrExist) {
		t.Errorf("in the place of a socket: %v", err)
		must(t, c.Close())
	}
	for _, name := range []string{"queue", "counter", "region", "socket"} {
		must(t, collect.Remove(d, name, collect.Options{Waiting: true}))
		if _, err := collect.Assess(d, name, collect.Options{}); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bindSocket returns the descriptor of a socket that is bound to a path.
func bindSocket(t *testing.T, kind int, path string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestBound: a socket is somebody's from bind to the last close, whatever its kind and whether it
// listens; and asking does not reach whoever accepts.
func TestBound(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET,
		"datagrams": unix.SOCK_DGRAM} {
		path := filepath.Join(d.Path(), name)
		fd := bindSocket(t, kind, path)
		look := func(what string, want bool) {
			t.Helper()
			if got, err := collect.Bound(d, name); err != nil || got != want {
				t.Errorf("%s, %s: bound %v, %v", name, what, got, err)
			}
		}
		look("bound", true)
		if err := collect.RemoveUnbound(d, name); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", name, err)
		}
		if kind != unix.SOCK_DGRAM {
			must(t, unix.Listen(fd, 1))
			look("listening", true)
			must(t, unix.SetNonblock(fd, true))
			if _, _, err := unix.Accept(fd); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%s: the look came in: %v", name, err)
			}
			must(t, unix.Shutdown(fd, unix.SHUT_RDWR))
			look("shut down", true)
		}
		must(t, unix.Close(fd))
		look("closed", false)
		must(t, collect.RemoveUnbound(d, name))
		if _, err := collect.Bound(d, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, removed: %v", name, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(d.Path(), "file"), nil, 0o600))
	if err := collect.RemoveUnbound(d, "file"); !errors.Is(err, shm.ErrKind) {
		t.Errorf("a file: %v", err)
	}
	for _, name := range []string{"", "..", "../x", "a/b"} {
		if _, err := collect.Bound(d, name); !errors.Is(err, shm.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := collect.Bound(d, "."); !errors.Is(err, shm.ErrKind) {
		t.Errorf("the directory: %v", err)
	}
}

// TestBoundByLock: who has the lock of a name may be about to bind it.
func TestBoundByLock(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	path := filepath.Join(d.Path(), "s")
	must(t, unix.Close(bindSocket(t, unix.SOCK_SEQPACKET, path)))
	lock := shmtest.Got(unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)).Or(t)
	l := unix.Flock_t{Type: unix.F_WRLCK}
	must(t, unix.FcntlFlock(uintptr(lock), unix.F_OFD_SETLK, &l))
	if bound, err := collect.Bound(d, "s"); !bound || err != nil {
		t.Errorf("locked: %v, %v", bound, err)
	}
	if err := collect.RemoveUnbound(d, "s"); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("locked: %v", err)
	}
	must(t, unix.Close(lock))
	must(t, collect.RemoveUnbound(d, "s"))
	if _, err := os.Stat(path + ".lock"); err != nil {
		t.Errorf("the lock file: %v", err)
	}
}

// TestSocketAside: what a collector moved aside before it died is removed, and given its name back
// if somebody has it.
func TestSocketAside(t *testing.T) {
	shmtest.Conforms(t)
	const aside = "s~collected"
	d := openDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	fd := bindSocket(t, unix.SOCK_STREAM, at("s"))
	must(t, os.Rename(at("s"), at(aside)))
	if bound, err := collect.Bound(d, aside); bound || err != nil {
		t.Errorf("aside: %v, %v", bound, err)
	}
	if err := collect.RemoveUnbound(d, aside); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("aside, of one that lives: %v", err)
	}
	if bound, err := collect.Bound(d, "s"); !bound || err != nil {
		t.Errorf("given back: %v, %v", bound, err)
	}
	must(t, unix.Close(fd))
	must(t, os.Rename(at("s"), at(aside)))
	must(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, at("s"))))
	must(t, collect.RemoveUnbound(d, "s")) // both
	if names, err := d.List(); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestSocketCollectedOnlyDead: listeners that take over from dead ones come and go while others
// collect. None of those that live loses its name.
func TestSocketCollectedOnlyDead(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	path := filepath.Join(d.Path(), "s")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var removed atomic.Int64
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				switch err := collect.RemoveUnbound(d, "s"); {
				case err == nil:
					removed.Add(1)
				case !errors.Is(err, syscall.EBUSY) && !errors.Is(err, fs.ErrNotExist):
					t.Error(err)
					return
				}
			}
		})
	}
	for range 300 {
		// As programs do: what stands there is taken for dead, and replaced.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue // the last one was aside, alive, when we removed it, and is back
		}
		must(t, err)
		l.SetUnlinkOnClose(false)
		// A collector may have it aside for a moment, or have died there, as this test does not.
		for by := time.Now().Add(30 * time.Second); ; {
			c, err := net.Dial("unix", path)
			if err == nil {
				_ = c.Close()
				break
			}
			if !errors.Is(err, fs.ErrNotExist) || time.Now().After(by) {
				t.Errorf("a listener that lives: %v", err)
				break
			}
		}
		must(t, l.Close())
	}
	stop()
	wg.Wait()
	if err := collect.RemoveUnbound(d, "s"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	names := shmtest.Got(d.List()).Or(t)
	for _, n := range names {
		if strings.HasPrefix(n.Name(), "s") {
			t.Errorf("%s is left", n.Name())
		}
	}
	t.Logf("%d removed while 300 came", removed.Load())
}

// TestLooksKeepNoLock: who looks at what may be garbage has it locked for the time of that look,
// and no longer, whatever programs this process starts meanwhile: until such a child calls exec it
// has what its parent has.
func TestLooksKeepNoLock(t *testing.T) {
	const rounds = 300
	d := openDir(t)
	must(t, os.WriteFile(filepath.Join(d.Path(), "cut"), nil, 0o600))
	for i := range rounds {
		path := filepath.Join(d.Path(), strconv.Itoa(i))
		must(t, unix.Close(bindSocket(t, unix.SOCK_STREAM, path)))
		must(t, os.WriteFile(path+shm.LockSuffix, nil, 0o600))
	}
	end := make(chan struct{})
	var forks sync.WaitGroup
	forks.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				_ = exec.CommandContext(t.Context(), "true").Run()
			}
		}
	})
	defer forks.Wait()
	defer close(end)
	for range 20 {
		if _, err := collect.Truncated(d, "cut"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range rounds {
		must(t, collect.RemoveUnbound(d, strconv.Itoa(i)))
	}
}

// TestNamesDirectory: a name means what was opened by it until that is moved or removed.
func TestNamesDirectory(t *testing.T) {
	d := openDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	sub := shmtest.Have(d.Sub("one", true)).In(t)
	means := func(name string, want bool) {
		t.Helper()
		if got, err := collect.LeadsTo(d, name, sub); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, got, err, want)
		}
	}
	means("one", true)
	means("two", false)
	must(t, os.Rename(at("one"), at("two")))
	must(t, os.Mkdir(at("one"), 0o700))
	means("one", false)
	means("two", true)
	must(t, errors.Join(d.RemoveSub("one"), d.RemoveSub("two")))
	means("two", false)
	if _, err := collect.LeadsTo(d, "a/b", sub); !errors.Is(err, shm.ErrName) {
		t.Errorf("a path: %v", err)
	}
}
