package ctl_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["household"] = childHousehold }

// childHousehold makes something of every kind, in every state, and waits to be killed.
func childHousehold() {
	d := shmtest.Needs(shm.OpenDir(""))
	household(d)
	say("ready")
	untilTold()
}

func household(d *shm.Dir) {
	queue := func(name string, o cq.Options, posts, reads int) *cq.Queue {
		o.Size, o.MaxLanes = 8, 2
		q := shmtest.Needs(cq.Create(cq.Named(d, name), o))
		w := shmtest.Needs(q.Writer())
		for range posts {
			need(w.Post(&cq.Entry{Context: 1}))
		}
		need(w.Close())
		dst := make([]cq.Msg, 8)
		if reads > 0 {
			shmtest.Needs(cq.Read(q, dst[:reads]))
		}
		return q
	}
	keep := cq.Options{Lifetime: cq.Persistent}
	queue("dead", cq.Options{}, 3, 1) // nobody is promised what is in it
	queue("dead-fd", cq.Options{Wait: cq.WaitFD}, 0, 0)
	queue("unread", keep, 3, 2)
	queue("drained", keep, 3, 3)
	need(queue("left", cq.Options{}, 2, 2).Detach())
	need(queue("left-unread", cq.Options{}, 2, 1).Detach())
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "dead"), cq.WriterOptions{}))
	need(w.Post(&cq.Entry{}))
	events, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 8, Write: true})
	need(err)
	shmtest.Needs(events.Write(&cq.Event{Event: cq.EventUser}))
	keptEvents(d, "events-unread", 3, 2)
	keptEvents(d, "events-drained", 3, 3)
	for name, l := range map[string]cq.Lifetime{"count": cq.Ephemeral, "count-kept": cq.Persistent} {
		shmtest.Needs(cq.CreateCounter(cq.Named(d, name), cq.CounterOptions{Lifetime: l}))
	}
	for name, l := range map[string]cq.Lifetime{"peers": cq.Ephemeral, "peers-kept": cq.Persistent,
		"peers-left": cq.Ephemeral} {
		v, err := cq.CreateAddresses(cq.Named(d, name), cq.AddressOptions{Count: 4, Lifetime: l})
		need(err)
		if name == "peers-left" {
			need(v.Detach())
		}
	}
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{}) // a bell
	need(err)
	need(set.Add(queue("member", cq.Options{}, 0, 0)))
	for _, k := range []shm.Kind{shm.KindRegion, shm.KindEndpoint, shm.KindCapture, 77} {
		shmtest.Needs(d.Create(strings.ReplaceAll(k.String(), " ", "-"), shm.Spec{Kind: k}, nil))
	}
	need(os.Mkdir(filepath.Join(d.Path(), "empty"), 0o700)) // of a queue that was just destroyed
}

// keptEvents makes a persistent event queue, writes and reads so many.
func keptEvents(d *shm.Dir, name string, writes, reads int) {
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, name),
		cq.EventOptions{Size: 8, Write: true, Lifetime: cq.Persistent}))
	for i := range writes {
		shmtest.Needs(e.Write(&cq.Event{Event: cq.EventUser, Context: uint64(i)}))
	}
	var ev cq.Event
	for range reads {
		shmtest.Needs(e.Read(&ev, 0))
	}
}

// strangers puts files of every kind into the directory that no collection may touch.
func strangers(t *testing.T, d *shm.Dir) map[string]string {
	t.Helper()
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	must(t, os.WriteFile(at("notes"), []byte("no object"), 0o600))
	must(t, os.WriteFile(at("nothing"), nil, 0o600))
	must(t, os.Symlink("dead/reader", at("link")))
	must(t, os.Symlink("dead", at("link-dir")))
	must(t, syscall.Mkfifo(at("pipe"), 0o600))
	l := shmtest.Got(net.Listen("unix", at("socket"))).Or(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	must(t, l.Close()) // as its process left it
	must(t, os.MkdirAll(at("folder"), 0o700))
	must(t, os.WriteFile(at("folder/notes"), nil, 0o600))

	image := shmtest.Got(os.ReadFile(at("bystander"))).Or(t)
	newer := append([]byte{}, image...)
	newer[0x0c]++ // the major version
	must(t, os.WriteFile(at("newer"), newer, 0o600))
	damaged := append([]byte{}, image...)
	damaged[0x100]++
	must(t, os.WriteFile(at("damaged"), damaged, 0o600))
	must(t, os.WriteFile(at("open"), image, 0o600))
	must(t, os.Chmod(at("open"), 0o644))
	hollow := forge(image, 1<<40)
	must(t, os.WriteFile(at("hollow"), hollow, 0o600))
	must(t, os.Truncate(at("hollow"), 1<<40))
	must(t, os.Mkdir(at("bell-folder"), 0o700))
	return map[string]string{"notes": "foreign", "nothing": "foreign", "link": "foreign",
		"link-dir": "foreign", "pipe": "foreign", "socket": "garbage", "folder": "foreign",
		"newer": "version", "damaged": "damaged", "open": "other user", "hollow": "damaged",
		"bell-folder": "foreign"}
}

// TestCollect: what goes, what stays, and why; first without touching anything.
func TestCollect(t *testing.T) {
	d := ownDir(t)
	shmtest.Have(d.Create("bystander", shm.Spec{Kind: 78}, nil)).In(t)
	want := strangers(t, d)
	stopped := startChild(t, d, "household")
	stopped.Line(t)
	for name, fate := range map[string]string{"bystander": "living", "dead": "living",
		"dead-fd": "living", "unread": "living", "drained": "living", "left": "left",
		"left-unread": "unread", "events": "living", "events-unread": "living",
		"events-drained": "living", "count": "living", "count-kept": "living",
		"peers": "living", "peers-kept": "living", "peers-left": "left", "member": "living",
		"bell": "living", "region": "living", "endpoint": "living", "capture": "living",
		"kind-77": "living", "empty": "garbage"} {
		want[name] = fate
	}
	stopped.Halt(t)
	wantFates(t, d, ctl.CollectOptions{}, want, "stopped, to be looked at")
	must(t, os.Remove(filepath.Join(d.Path(), "empty")))
	delete(want, "empty")
	want["socket"] = "removed"
	wantFates(t, d, ctl.CollectOptions{Remove: true}, want, "stopped")
	delete(want, "socket")

	stopped.Kill()
	garbage := []string{"dead", "dead-fd", "events", "count", "peers", "member", "bell", "endpoint",
		"capture"}
	mark := func(fate string, names ...string) {
		for _, n := range names {
			want[n] = fate
		}
	}
	mark("garbage", garbage...)
	mark("unread", "unread", "events-unread")
	mark("persistent", "drained", "events-drained", "count-kept", "peers-kept", "region")
	mark("foreign", "kind-77")
	for name, state := range map[string]string{"count": ctl.StateDead,
		"count-kept": ctl.StateReleased, "peers": ctl.StateDead} {
		if o := shmtest.Got(ctl.ShowObject(d, name)).Or(t); o.State != state {
			t.Errorf("%s is shown as %s, want %s", name, o.State, state)
		}
	}
	before := tree(t, d)
	wantFates(t, d, ctl.CollectOptions{}, want, "to be looked at")
	if diff := cmp.Diff(before, tree(t, d)); diff != "" {
		t.Errorf("looking changed the directory: %s", diff)
	}
	mark("removed", garbage...)
	wantFates(t, d, ctl.CollectOptions{Remove: true}, want, "to be removed")
	for _, n := range garbage {
		delete(want, n)
	}
	wantFates(t, d, ctl.CollectOptions{Remove: true}, want, "once more")

	waiting := []string{"unread", "drained", "events-unread", "events-drained", "left",
		"left-unread", "count-kept", "peers-kept", "peers-left", "region", "kind-77", "notes",
		"bystander", "no such"}
	mark("removed", "drained", "events-drained", "left", "count-kept", "peers-kept", "peers-left",
		"region")
	wantFates(t, d, ctl.CollectOptions{Remove: true, Waiting: waiting}, want, "what waits")
	q := shmtest.Got(cq.Open(cq.Named(d, "unread"), cq.Options{Existing: true})).Or(t)
	if n, err := cq.Read(q, make([]cq.Msg, 8)); n != 1 || err != nil {
		t.Errorf("of the persistent queue %d entries are left, %v", n, err)
	}
	must(t, q.Close())
	e := shmtest.Have(cq.OpenEvents(cq.Named(d, "events-unread"),
		cq.EventOptions{Existing: true})).In(t)
	var ev cq.Event
	if _, err := e.Read(&ev, 0); err != nil || ev.Context != 2 {
		t.Errorf("of the persistent event queue %+v is left, %v", ev, err)
	}
}

func wantFates(t *testing.T, d *shm.Dir, o ctl.CollectOptions, want map[string]string,
	what string) {
	t.Helper()
	all := shmtest.Got(ctl.Collect(d, o)).Or(t)
	got := map[string]string{}
	for _, r := range all {
		name := r.Name
		if strings.HasPrefix(name, "bell-") && r.Kind != nil {
			name = "bell"
		}
		got[name] = r.Fate
		if r.Reason == "" || (r.Fate == "living") != (r.Process != nil) {
			t.Errorf("%s: %+v", what, r)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// tree lists every name with what looking could change.
func tree(t *testing.T, d *shm.Dir) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.Walk(d.Path(), func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		out[path] = info.Mode().String() + info.ModTime().String()
		if info.Mode().IsRegular() && st.Blocks*512 >= st.Size { // one with holes has no bytes
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out[path] += string(b)
		}
		if st.Blocks*512 > 64<<20 {
			t.Errorf("%s got memory", path)
		}
		return nil
	}))
	return out
}

// TestCollectSparesOtherNamespaces: a process in another PID namespace lives by its lock, and its
// things go when it is dead.
func TestCollectSparesOtherNamespaces(t *testing.T) {
	shmtest.RequireRoot(t, "pidns", "a PID namespace needs root")
	d := ownDir(t)
	cmd := childOf(t, d, "household")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c := shmtest.Start(t, cmd)
	c.Line(t)
	names := []string{"dead", "events", "count", "peers", "member", "endpoint"}
	fates := func() map[string]string {
		all := shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true})).Or(t)
		got := map[string]string{}
		for _, r := range all {
			got[r.Name] = r.Fate
		}
		return got
	}
	for i, want := range []string{"living", "removed"} {
		if i == 1 {
			c.Kill()
		}
		got := fates()
		for _, n := range names {
			if got[n] != want {
				t.Errorf("%s is %q, want %q", n, got[n], want)
			}
		}
	}
}

func init() { roles["full reader"] = childFullReader }

// childFullReader has a queue with two lanes in which 3 entries are unread, and one of events.
func childFullReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8}))
	for i := range 2 {
		w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, "q"), cq.WriterOptions{}))
		for range i + 1 {
			need(w.Post(&cq.Entry{}))
		}
	}
	e := shmtest.Needs(cq.CreateEvents(cq.Named(d, "e"), cq.EventOptions{Write: true}))
	shmtest.Needs(e.Write(&cq.Event{Event: cq.EventUser}))
	say("full")
	untilTold()
}

// counted says what a collection finds.
func counted(t *testing.T, d *shm.Dir, o ctl.CollectOptions) map[string]ctl.Remains {
	t.Helper()
	all := shmtest.Got(ctl.Collect(d, o)).Or(t)
	out := map[string]ctl.Remains{}
	for _, r := range all {
		out[r.Name] = r
	}
	return out
}

// TestCollectCounts: what is unread and how large it is all together is known of queues that live
// too; and when entries that nobody read go, that is said.
func TestCollectCounts(t *testing.T) {
	d := ownDir(t)
	c := startChild(t, d, "full reader")
	_ = c.Line(t)
	var bytes uint64
	for _, file := range []string{"reader", "lane-0001", "lane-0002"} {
		info := shmtest.Got(os.Stat(d.Path() + "/q/" + file)).Or(t)
		bytes += uint64(info.Size())
	}
	look := func(when, fate, says string, o ctl.CollectOptions) {
		t.Helper()
		all := counted(t, d, o)
		for name, unread := range map[string]uint64{"q": 3, "e": 1} {
			r := all[name]
			if r.Fate != fate || r.Unread == nil || *r.Unread != unread {
				t.Errorf("%s, %s: %s, unread %v", when, name, r.Fate, r.Unread)
			}
			if want := strings.ReplaceAll(says, "N", fmt.Sprint(unread)); !strings.Contains(r.Reason, want) {
				t.Errorf("%s, %s: %q does not say %q", when, name, r.Reason, want)
			}
		}
		if r := all["q"]; r.SizeBytes == nil || *r.SizeBytes != bytes {
			t.Errorf("%s: size %v, want %d", when, r.SizeBytes, bytes)
		}
	}
	look("alive", ctl.FateLiving, "lives", ctl.CollectOptions{})
	c.Kill()
	look("dead", ctl.FateGarbage, "with N entr", ctl.CollectOptions{})
	look("removed", ctl.FateRemoved, "with N entr", ctl.CollectOptions{Remove: true})
}

// TestCollectNamesTheNamespace: a number of another PID namespace is not given as if it were ours.
func TestCollectNamesTheNamespace(t *testing.T) {
	shmtest.RequireRoot(t, "pidns", "a PID namespace needs root")
	d := ownDir(t)
	cmd := childOf(t, d, "full reader")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	c := shmtest.Start(t, cmd)
	_ = c.Line(t)
	r := counted(t, d, ctl.CollectOptions{})["q"]
	if r.Fate != ctl.FateLiving || !strings.Contains(r.Reason, "PID namespace") {
		t.Errorf("%s: %q", r.Fate, r.Reason)
	}
	_, err := cq.Open(cq.Named(d, "q"), cq.Options{Existing: true})
	var busy *shm.BusyError
	if !errors.As(err, &busy) || !strings.Contains(err.Error(), "PID namespace") {
		t.Errorf("adopt: %v", err)
	}
}

func init() {
	roles["collector"], roles["tenant"], roles["heir"] = childCollector, childTenant, childHeir
	roles["events heir"] = childEventsHeir
}

const (
	envName   = "SHMRING_TEST_NAME"
	envRounds = "SHMRING_TEST_ROUNDS"
	envKeep   = "SHMRING_TEST_KEEP"
)

// childCollector collects all the time, also what waits for a successor, until it is told to stop.
func childCollector() {
	d := shmtest.Needs(shm.OpenDir(""))
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	say("ready")
	o := ctl.CollectOptions{Remove: true, Waiting: strings.Fields(os.Getenv(envKeep))}
	for first := true; first || !stop.Load(); first = false {
		time.Sleep(time.Duration(rand.IntN(int(8 * time.Millisecond)))) // the others want the CPU too
		all := shmtest.Needs(ctl.Collect(d, o))
		for _, r := range all {
			if r.Fate == ctl.FateFailed && r.Error.Code != ctl.CodeFailure {
				need(fmt.Errorf("%s: %+v", r.Name, r.Error))
			}
		}
	}
}

// childTenant makes things of its own, and finds that each name is still its own as long as it has
// it. At the end it dies over that.
func childTenant() {
	d := shmtest.Needs(shm.OpenDir(""))
	rounds := shmtest.Needs(strconv.Atoi(os.Getenv(envRounds)))
	for i := range rounds {
		tenancy(d, os.Getenv(envName)+strconv.Itoa(i%3), i+1 == rounds)
	}
}

// persist repeats what somebody who is collecting may be in the way of for a moment.
func persist[T any](what func() (T, error)) T {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		v, err := what()
		if err == nil {
			return v
		}
		var busy *shm.BusyError
		transient := errors.Is(err, syscall.EEXIST) || errors.Is(err, cq.ErrBusy) ||
			errors.As(err, &busy) || errors.Is(err, cq.ErrClosed)
		if !transient || time.Now().After(end) {
			need(err)
		}
	}
}

func tenancy(d *shm.Dir, name string, last bool) {
	q := persist(func() (*cq.Queue, error) {
		return cq.Create(cq.Named(d, name),
			cq.Options{Size: 4})
	})
	w := shmtest.Needs(cq.Attach(context.Background(), cq.Named(d, name), cq.WriterOptions{}))
	c := persist(func() (*cq.Counter, error) {
		return cq.CreateCounter(cq.Named(d, name+"-count"), cq.CounterOptions{})
	})
	v := persist(func() (*cq.AddressVector, error) {
		return cq.CreateAddresses(cq.Named(d, name+"-peers"), cq.AddressOptions{Count: 4})
	})
	names := []string{name + "/reader", name + fmt.Sprintf("/lane-%04d", w.Lane()), name + "-count",
		name + "-peers"}
	was := make([]os.FileInfo, len(names))
	same := func() {
		for i, n := range names {
			info := shmtest.Needs(os.Stat(filepath.Join(d.Path(), n)))
			if was[i] != nil && !os.SameFile(was[i], info) {
				need(fmt.Errorf("%s is another one", n))
			}
			was[i] = info
		}
	}
	same()
	dst := make([]cq.Msg, 4)
	for k := range uint64(20) {
		need(w.Post(&cq.Entry{Context: k}))
		same()
		if n, err := cq.Read(q, dst); n != 1 || err != nil || dst[0].Context != k {
			need(fmt.Errorf("read %d, %+v, %w", n, dst[0], err))
		}
	}
	if last {
		need(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	need(errors.Join(w.Close(), q.Close(), c.Close(), v.Close()))
}

// childEventsHeir is childHeir for a persistent event queue.
func childEventsHeir() {
	d := shmtest.Needs(shm.OpenDir(""))
	n := shmtest.Needs(strconv.ParseUint(os.Getenv(envRounds), 10, 64))
	e := persist(func() (*cq.EventQueue, error) {
		if n == 0 {
			return cq.CreateEvents(cq.Named(d, os.Getenv(envName)),
				cq.EventOptions{Size: 8, Write: true, Lifetime: cq.Persistent})
		}
		return cq.OpenEvents(cq.Named(d, os.Getenv(envName)),
			cq.EventOptions{Existing: true, Write: true})
	})
	for k := range uint64(2) {
		shmtest.Needs(e.Write(&cq.Event{Event: cq.EventUser, Context: 2*n + k}))
	}
	for k := range uint64(2) {
		var ev cq.Event
		if n == 0 {
			break
		}
		if _, err := e.Read(&ev, 0); err != nil || ev.Context != 2*n-2+k {
			need(fmt.Errorf("heir %d read %+v, %w", n, ev, err))
		}
	}
	say("ready")
	untilTold()
}

// childHeir adopts a persistent queue or creates it, as number n of a chain: posts two entries,
// reads those of its predecessor, and dies. While nobody has the queue it has unread entries.
func childHeir() {
	d := shmtest.Needs(shm.OpenDir(""))
	n := shmtest.Needs(strconv.ParseUint(os.Getenv(envRounds), 10, 64))
	o := cq.Options{Size: 8, Lifetime: cq.Persistent}
	q := persist(func() (*cq.Queue, error) {
		if n == 0 {
			return cq.Create(cq.Named(d, os.Getenv(envName)), o)
		}
		o.Existing = true
		return cq.Open(cq.Named(d, os.Getenv(envName)), o)
	})
	w, err := cq.Attach(context.Background(), cq.Named(d, os.Getenv(envName)), cq.WriterOptions{})
	need(err)
	for k := range uint64(2) {
		need(w.Post(&cq.Entry{Context: 2*n + k}))
	}
	if n > 0 {
		dst := make([]cq.Msg, 2)
		got, err := cq.Read(q, dst)
		if got != 2 || err != nil || dst[0].Context != 2*n-2 || dst[1].Context != 2*n-1 {
			need(fmt.Errorf("heir %d read %d, %+v, %w", n, got, dst, err))
		}
	}
	say("ready")
	untilTold()
}

// TestCollectAtOnce has some processes collect all the time while others make, adopt, attach and
// die: no name of a living process goes, and no entry or event of a persistent queue.
func TestCollectAtOnce(t *testing.T) {
	d := ownDir(t)
	crowd, rounds := 4, "5"
	if testing.Short() {
		crowd, rounds = 2, "4"
	}
	var collectors []*shmtest.Proc
	for range crowd {
		c := startChild(t, d, "collector", envKeep+"=will0 will1 news")
		c.Line(t)
		collectors = append(collectors, c)
	}
	var tenants []*shmtest.Proc
	for i := range 2 {
		for range 2 { // two contend for one set of names
			tenants = append(tenants, startChild(t, d, "tenant", envRounds+"="+rounds,
				envName+"=t"+strconv.Itoa(i)))
		}
	}
	for n := range 4 {
		for i := range 2 {
			h := startChild(t, d, "heir", envName+"=will"+strconv.Itoa(i), envRounds+"="+strconv.Itoa(n))
			if h.Line(t) != "ready" {
				t.Fatal("an heir did not get its queue")
			}
			h.Kill()
		}
		h := startChild(t, d, "events heir", envName+"=news", envRounds+"="+strconv.Itoa(n))
		if h.Line(t) != "ready" {
			t.Fatal("an heir did not get its event queue")
		}
		h.Kill()
	}
	for _, c := range tenants {
		c.Rest(t)
		_ = c.Wait()
		if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
			t.Errorf("a tenant ended with %v", c.ProcessState)
		}
	}
	for _, c := range collectors[1:] {
		_ = c.Stop(t)
	}
	collectors[0].Kill() // perhaps over something
	all := shmtest.Got(ctl.Collect(d, ctl.CollectOptions{Remove: true})).Or(t)
	names := shmtest.Got(d.List()).Or(t)
	left := func(i int, name string) bool { return names[i].Name() == name }
	if len(names) != 3 || !left(0, "news") || !left(1, "will0") || !left(2, "will1") {
		t.Errorf("%v is left of %+v", names, all)
	}
	for i := range 2 {
		q := shmtest.Got(cq.Open(cq.Named(d, "will"+strconv.Itoa(i)), cq.Options{Existing: true})).Or(t)
		dst := make([]cq.Msg, 8)
		if n, err := cq.Read(q, dst); n != 2 || err != nil || dst[0].Context != 6 {
			t.Errorf("will%d: %d entries, %+v, %v", i, n, dst[0], err)
		}
		must(t, q.Close())
	}
	e := shmtest.Got(cq.OpenEvents(cq.Named(d, "news"), cq.EventOptions{Existing: true})).Or(t)
	for want := uint64(6); want < 8; want++ {
		var ev cq.Event
		if _, err := e.Read(&ev, 0); err != nil || ev.Context != want {
			t.Errorf("%+v, %v, want event %d", ev, err, want)
		}
	}
	must(t, e.Close())
	if _, err := os.Stat(filepath.Join(d.Path(), "will0")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
