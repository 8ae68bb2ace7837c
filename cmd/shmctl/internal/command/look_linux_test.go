package command

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// everything makes one of each kind in d.
func everything(t testing.TB, d *shm.Dir) (q *cq.Queue, set *cq.WaitSet, c *cq.Counter) {
	t.Helper()
	q = createQueue(t, d, "orders", cq.Options{Size: 8})
	e, err := cq.CreateEvents(cq.Named(d, "news"), cq.EventOptions{Size: 8, Write: true})
	must(t, err)
	shmtest.Got(e.Write(&cq.Event{Event: cq.EventUser, Context: 3})).Or(t)
	c, err = cq.CreateCounter(cq.Named(d, "sent"), cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	must(t, c.Add(41))
	must(t, c.AddErr(2))
	v := shmtest.Got(cq.CreateAddresses(cq.Named(d, "peers"), cq.AddressOptions{Count: 16})).Or(t)
	set = shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
	must(t, set.Add(q))
	t.Cleanup(func() {
		must(t, errors.Join(set.Remove(q), set.Close(), c.Close(), v.Close(), e.Close()))
	})
	return q, set, c
}

func TestObjectsAreListed(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	must(t, os.WriteFile(filepath.Join(d.Path(), "readme"), []byte("no object"), 0o600))
	must(t, os.WriteFile(filepath.Join(d.Path(), "zeros"), make([]byte, 8192), 0o600))
	o := shmtest.Got(d.Create("later", shm.Spec{Kind: 77}, nil)).Or(t)
	defer func() { must(t, errors.Join(o.Unlink(), o.Close())) }()

	before := state(t, d.Path())
	text := ok(t, "ls", "-j")
	kinds := map[string]string{}
	for _, q := range queues(t, text) {
		kinds[q.Name] = *q.Kind
	}
	for _, b := range objects(t, text) {
		name := b.Name
		if strings.HasPrefix(name, "bell-") {
			name = "bell"
		}
		kinds[name] = *b.Kind
	}
	want := map[string]string{"orders": "queue", "news": "events", "sent": "counter",
		"peers": "addresses", "bell": "bell", "later": "kind 77"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	text = ok(t, "ls")
	has(t, text, "value 41, errors 2, open 1", "0 of 16", "nobody waits",
		"events", "kind 77")
	text = ok(t, "show", "*")
	has(t, text, "in a set", "bell-", "handle 0:", "value:", "used:",
		"queues:           orders")
	ok(t, "tail", "news", "-j")
	if diff := cmp.Diff(before, state(t, d.Path())); diff != "" {
		t.Errorf("looking changed (-before +after):\n%s", diff)
	}
}

func TestShowObjects(t *testing.T) {
	d := newDir(t)
	q, set, c := everything(t, d)
	got := objects(t, ok(t, "show", "sent", "peers", "-j"))
	if len(got) != 2 || got[0].Counter == nil || got[0].Counter.Value != 41 ||
		got[0].Counter.Errors != 2 || got[0].Counter.Events != "bytes" || got[0].Process != nil ||
		len(got[0].Counter.Handles) != 1 || *got[0].Counter.Handles[0].PID != os.Getpid() {
		t.Errorf("counter: %+v", got)
	}
	if a := got[1].Addresses; a == nil || a.Count != 16 || a.Used != 0 || a.Closed ||
		*got[1].Process.PID != os.Getpid() {
		t.Errorf("addresses: %+v", got[1])
	}
	bell := showOne(t, "orders").Bell
	if bell.Domain == nil || !bell.Member || bell.Channel != "none" {
		t.Fatalf("bell: %+v", bell)
	}
	if b := objects(t, ok(t, "show", "bell-"+*bell.Domain, "-j")); len(b) != 1 ||
		b[0].Domain == nil || b[0].Domain.Sleeping || b[0].Domain.Queues[0] != "orders" ||
		*b[0].UUID != *bell.Domain {
		t.Errorf("%+v", b)
	}
	// Both waits show, and end by themselves.
	done := make(chan error, 2)
	go func() { done <- c.Wait(context.Background(), 50, cq.WaitOptions{Timeout: time.Minute}) }()
	go func() {
		_, err := set.Wait(context.Background(), make([]cq.Waitable, 1),
			cq.WaitOptions{Timeout: time.Minute})
		done <- err
	}()
	eventually(t, "both wait", func() bool {
		waits := false
		for _, b := range objects(t, ok(t, "ls", "-j")) {
			if b.Counter != nil && (len(b.Counter.Handles) == 0 || b.Counter.Handles[0].Threshold == nil) {
				return false
			}
			waits = waits || b.Domain != nil && b.Domain.Sleeping
		}
		return waits
	})
	must(t, c.Add(9))
	ok(t, "post", "orders")
	must(t, <-done)
	must(t, <-done)
	_, _ = cq.Read(q, make([]cq.Msg, 4))
}

// newDir is a directory of queues for one test, which becomes the default one.
func newDir(t testing.TB) *shm.Dir {
	t.Helper()
	path := shmtest.Got(os.MkdirTemp(os.Getenv(shm.EnvDir), "test-")).Or(t)
	d := shmtest.Got(shm.OpenDir(path)).Or(t)
	t.Setenv(shm.EnvDir, path)
	t.Cleanup(func() {
		must(t, d.Close())
		must(t, os.RemoveAll(path))
	})
	return d
}

// leave makes a queue with entries in it that nobody uses any more.
func leave(t testing.TB, d *shm.Dir, name string, entries uint64) {
	t.Helper()
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, MaxLanes: 4, Lifetime: cq.Persistent})
	must(t, err)
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})).Or(t)
	for i := range entries {
		must(t, w.Post(&cq.Entry{Context: i}))
	}
	must(t, w.Close())
	must(t, q.Detach())
}

func damagedCounter(t testing.TB, d *shm.Dir, name string) {
	t.Helper()
	o := cq.CounterOptions{Lifetime: cq.Persistent}
	must(t, shmtest.Got(cq.CreateCounter(cq.Named(d, name), o)).Or(t).Close())
	scribble(t, filepath.Join(d.Path(), name), 0x100)
}

func TestExitCodes(t *testing.T) {
	d := newDir(t)
	leave(t, d, "good", 3)
	// damaged, of another version, open to others, unreadable as a queue
	for name, offset := range map[string]int64{"damaged": 0x100, "version": 0xc} {
		leave(t, d, name, 0)
		scribble(t, filepath.Join(d.Path(), name, "reader"), offset)
	}
	leave(t, d, "loose", 0)
	must(t, os.Chmod(filepath.Join(d.Path(), "loose"), 0o755))
	leave(t, d, "cut", 0)
	must(t, os.Truncate(filepath.Join(d.Path(), "cut", "reader"), 5000))
	damagedCounter(t, d, "sent")
	for _, c := range []struct {
		args string
		code int
		hint string
	}{
		{"show good", 0, ""}, {"ls good", 0, ""}, {"ls", 0, ""}, {"ls nothing*", 0, ""},
		{"show nope", 3, "shmctl ls lists"}, {"ls nope", 3, "shmctl ls lists"},
		{"show nothing*", 3, "matches"}, {"show good g*", 0, ""}, {"show g* nothing*", 3, "matches"},
		{"show -w nothing*", 3, "matches"}, {"tail g*", 3, "shmctl ls \"g*\" lists"},
		{"signal g*", 3, "one name, not as a pattern"},
		{"show damaged", 1, "remove the object"}, {"show sent", 1, "sent"}, {"show cut", 1, "cut"},
		{"show version", 6, "one version of the library"}, {"show loose", 4, "chmod"},
		{"show a/b", 2, "slash"}, {"show good nope", 3, "shmctl ls lists"},
		{"show nope damaged", 3, "remove the object"}, {"ls --dir /nonexistent", 3, "first queue"},
		{"show nope --dir " + d.Path(), 3, "ls --dir " + d.Path()},
		{"ls --dir /etc/passwd", 4, "another directory, or remove"}, {"ls -w nope", 3, "shmctl ls"},
	} {
		args := strings.Fields(c.args)
		r := run(t, args...)
		if r.code != c.code || !strings.Contains(r.stderr, c.hint) ||
			(r.stderr == "") != (c.code == 0) {
			t.Errorf("%s: exit %d, want %d; %s", c.args, r.code, c.code, r.stderr)
		}
		r = run(t, append(args, "-j")...)
		for line := range strings.Lines(r.stderr) {
			if p := failure(t, line); p.Op != args[0] || p.Message == "" {
				t.Errorf("%s -j: %+v", c.args, p)
			}
		}
		if r.stdout != "" {
			valid(t, r.stdout)
		}
		if r.code != c.code {
			t.Errorf("%s -j: exit %d, want %d", c.args, r.code, c.code)
		}
	}
}

// scribble changes a byte of a file.
func scribble(t testing.TB, path string, offset int64) {
	t.Helper()
	f := shmtest.Have(os.OpenFile(path, os.O_RDWR, 0)).In(t)
	b := make([]byte, 1)
	shmtest.Got(f.ReadAt(b, offset)).Or(t)
	b[0] ^= 0x55
	shmtest.Got(f.WriteAt(b, offset)).Or(t)
}

// TestListKeepsGoing has everything in the directory that does not belong there.
func TestListKeepsGoing(t *testing.T) {
	d := newDir(t)
	leave(t, d, "good", 3)
	leave(t, d, "damaged", 0)
	scribble(t, filepath.Join(d.Path(), "damaged", "reader"), 0x100)
	must(t, os.Mkdir(filepath.Join(d.Path(), "empty"), 0o700))
	must(t, os.WriteFile(filepath.Join(d.Path(), "file"), []byte("x"), 0o600))
	must(t, os.Mkdir(filepath.Join(d.Path(), "bad\nname"), 0o700))
	must(t, os.Mkdir(filepath.Join(d.Path(), "bad\x9bname"), 0o700)) // an escape, for some terminals
	must(t, os.Symlink("good", filepath.Join(d.Path(), "link")))
	must(t, os.Mkdir(filepath.Join(d.Path(), "fifo"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(d.Path(), "fifo", "reader"), 0o600))
	// Writers that have not noticed yet hold the rest of a destroyed queue.
	q := shmtest.Got(cq.Create(cq.Named(d, "destroyed"), cq.Options{Size: 8})).Or(t)
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "destroyed"), cq.WriterOptions{})).Or(t)
	must(t, q.Close())

	got := map[string]int{}
	for _, q := range queues(t, ok(t, "ls", "-j")) {
		got[q.Name] = 0
		if q.Error != nil {
			got[q.Name] = q.Error.Code
		}
	}
	want := map[string]int{"good": 0, "damaged": 1, "bad\nname": 2, "bad\ufffdname": 2, "fifo": 1,
		"destroyed": 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	has(t, ok(t, "ls"), `"bad\nname"`, `"bad\x9bname"`, "destroyed by its reader")
	if text := ok(t, "ls") + ok(t, "gc"); !utf8.ValidString(text) {
		t.Errorf("a terminal gets what is no text: %q", text)
	}
	must(t, w.Close())
	if text := ok(t, "ls", "dest*", "-H"); text != "" {
		t.Errorf("still there: %s", text)
	}
}

func TestNoDirectoryYet(t *testing.T) {
	path := filepath.Join(newDir(t).Path(), "later")
	t.Setenv(shm.EnvDir, path)
	absent := path + " of " + shm.EnvDir + " does not exist"
	r := refused(t, "ls -j", 0, absent)
	if q := queues(t, r.stdout); len(q) != 0 {
		t.Errorf("%v", q)
	}
	refused(t, "ls x*", 0, absent)
	refused(t, "xdp", 0, absent)
	if r := refused(t, "ls --dir "+path, 3); strings.Contains(r.stderr, shm.EnvDir) {
		t.Errorf("--dir is taken for the environment: %s", r.stderr)
	}
	refused(t, "show orders", 3)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("looking made the directory: %v", err)
	}
}

// state is all that looking must not change: content, and what the file system notes of changes.
func state(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		sum := [sha256.Size]byte{}
		if e.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = sha256.Sum256(content)
		}
		out[path] = fmt.Sprintf("mode %o links %d size %d mtime %d ctime %d ino %d sha256 %x",
			st.Mode, st.Nlink, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), st.Ino, sum)
		return nil
	}))
	return out
}

func TestLookingChangesNothing(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 5)
	leave(t, d, "fills", 0)
	leave(t, d, "damaged", 1)
	scribble(t, filepath.Join(d.Path(), "damaged", "reader"), 0x100)
	// One that is in use, by this process, which does nothing meanwhile.
	shmtest.Have(cq.Create(cq.Named(d, "idle"), cq.Options{Size: 8, Wait: cq.WaitFD})).In(t)
	w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "idle"), cq.WriterOptions{})).In(t)
	must(t, w.Post(&cq.Entry{}))

	before := state(t, d.Path())
	ok(t, "ls")
	ok(t, "ls", "-j")
	ok(t, "show", "orders", "fills", "idle", "-j")
	run(t, "show", "*")
	for _, name := range []string{"orders", "fills", "idle"} {
		ok(t, "tail", name)
		ok(t, "tail", name, "-c", "100", "-j")
	}
	run(t, "tail", "damaged")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	for _, format := range []string{"table", "json"} {
		if r := runContext(t, ctx, "ls", "-w=5ms", "-o", format); r.code != 0 {
			t.Errorf("watch: exit %d, %s", r.code, r.stderr)
		}
	}
	ctx, cancel = context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel()
	if r := runContext(t, ctx, "tail", "orders", "-f", "--interval=5ms"); r.code != 0 {
		t.Errorf("follow: exit %d, %s", r.code, r.stderr)
	}
	if diff := cmp.Diff(before, state(t, d.Path())); diff != "" {
		t.Errorf("looking changed (-before +after):\n%s", diff)
	}
}

// TestHostileQueue prints what a peer made of a queue that is in order otherwise.
func TestHostileQueue(t *testing.T) {
	d := newDir(t)
	leave(t, d, "orders", 2)
	sub := shmtest.Have(d.Sub("orders", false)).In(t)
	lane := shmtest.Have(sub.Open("lane-0001", shm.ReadWrite)).In(t)
	words := shmtest.Got(kind.WordsOf[kind.LaneWords](lane, kind.SectLane, 1)).Or(t)
	words.Tail.Store(1 << 40)
	q := showOne(t, "orders")
	if q.Error != nil || q.Lanes[1].Error == nil || *q.State != "corrupt" || *q.Tail != 0 {
		t.Errorf("%+v", q)
	}
	has(t, ok(t, "show", "orders"), "distance of tail from head is")
}
