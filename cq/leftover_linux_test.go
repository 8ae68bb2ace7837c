package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestNothingLeft closes the two sides of a queue, which has all files that one can have, in every
// order, by choice and by death.
func TestNothingLeft(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	newQueue := func() (*cq.Queue, *child) {
		q := shmtest.Got(cq.Create(cq.Named(d, "gone"), cq.Options{Size: 4, Wait: cq.WaitFD})).Or(t)
		c := startChild(t, "writer", envQueue+"=gone", envLanes+"=2", envCount+"=1")
		_, _ = c.Line(t), c.Line(t)
		return q, c
	}
	for name, end := range map[string]func(q *cq.Queue, c *child){
		"writer, then queue":      func(q *cq.Queue, c *child) { _ = c.Stop(t); must(t, q.Close()) },
		"dead writer, then queue": func(q *cq.Queue, c *child) { c.Kill(); must(t, q.Close()) },
		"queue, then writer":      func(q *cq.Queue, c *child) { must(t, q.Close()); _ = c.Stop(t) },
	} {
		t.Run(name, func(t *testing.T) {
			end(newQueue())
			nothingLeft(t, d)
		})
	}
	t.Run("queue, then dead writer", func(t *testing.T) {
		q, c := newQueue()
		must(t, q.Close())
		wantErr(t, "remove with a living writer", collect.Remove(d, "gone", collect.Options{}),
			cq.ErrBusy)
		c.Kill() // its lanes are nobody's business now
		must(t, collect.Remove(d, "gone", collect.Options{}))
		nothingLeft(t, d)
	})
	t.Run("queue with a new one over it", func(t *testing.T) {
		q, old := newQueue()
		must(t, q.Close())
		q, c := newQueue() // beside the lanes of the old one's living writer
		if n := len(drain(t, q)); n == 0 {
			eventually(t, "the new writers are heard", func() bool { return len(drain(t, q)) > 0 })
		}
		old.Kill()
		_ = c.Stop(t)
		must(t, q.Close())
		nothingLeft(t, d)
	})
}

// TestCloseTogether closes both sides at the same moment: whoever is last tidies up.
func TestCloseTogether(t *testing.T) {
	shmtest.Long(t)
	d := openDir(t)
	for range 100 {
		q := shmtest.Got(cq.Create(cq.Named(d, "together"), cq.Options{Size: 4, MaxLanes: 3})).Or(t)
		var all sync.WaitGroup
		for range 3 {
			w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "together"), cq.WriterOptions{})).Or(t)
			all.Go(func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		must(t, q.Close())
		all.Wait()
		if left, _ := d.List(); len(left) != 0 {
			sub := shmtest.Got(d.Sub("together", false)).Or(t)
			names, _ := sub.List()
			must(t, sub.Close())
			must(t, collect.Remove(d, "together", collect.Options{}))
			t.Fatalf("left behind: %v with %v", left, names)
		}
	}
}

// TestCreateTogether has several goroutines create and destroy one queue all the time: one has it
// at a time, and nobody sees anything but that.
func TestCreateTogether(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 40 {
				q, err := cq.Create(cq.Named(d, "contested"), cq.Options{Size: 4, Wait: cq.WaitFD})
				if err == nil {
					err = q.Close()
				} else if errors.Is(err, syscall.EEXIST) {
					continue
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	nothingLeft(t, d)
}

// noMoreFiles waits until no more descriptors are open than there were: who watches a peer lets go
// of it in a goroutine, also such that were watched before.
func noMoreFiles(t testing.TB, before int) {
	t.Helper()
	eventually(t, fmt.Sprint("no more than ", before, " descriptors"), func() bool {
		return len(openFiles()) <= before
	})
}

// TestMemory: a queue whose memory others of its user see takes less than half of what it may take,
// until its own lane is used, and errors are posted. One for other users has all of it.
func TestMemory(t *testing.T) {
	d, q := create(t, cq.Options{})
	w := attach(t, d, queueName(t))
	most := shmtest.Got(cq.Plan(q.Options(), 1)).Or(t)
	memory := func() (all uint64) {
		for _, fd := range []int{cq.ReaderFD(q), cq.LaneFD(w)} {
			var st syscall.Stat_t
			must(t, syscall.Fstat(fd, &st))
			all += uint64(st.Blocks) * 512
		}
		return all
	}
	const part = 1024 * 64 // slots, or details, of a lane
	if q.Options().Trust == cq.CrossUser {
		if got := memory(); got < most {
			t.Errorf("%d bytes of %d", got, most)
		}
		return
	}
	var own *cq.Writer
	for _, step := range []struct {
		name string
		late uint64 // parts that are not there
		do   func() error
	}{
		{"created", 3, func() error { return nil }},
		{"posted", 3, func() error { return w.Post(&cq.Entry{Context: 1}) }},
		{"error", 2, func() error { return w.PostError(&cq.ErrorEntry{Context: 2}) }},
		{"credit", 2, func() error { return w.Credits().Add(1) }},
		{"own writer", 1, func() (err error) { own, err = q.Writer(); return err }},
		{"own credit", 0, func() error { return own.Credits().Add(1) }},
		{"own error", 0, func() error { return own.PostError(&cq.ErrorEntry{Context: 3}) }},
	} {
		must(t, step.do())
		if got := memory(); got != most-step.late*part {
			t.Errorf("%s: %d bytes of %d, want all but %d parts", step.name, got, most, step.late)
		}
	}
	if early := most - 3*part; early > most/2 {
		t.Errorf("%d bytes of %d from the beginning", early, most)
	}
	must(t, own.Close())
	if got := fmt.Sprint(takeAll(t, q)); got != "[E3 1 E2]" {
		t.Errorf("read %s", got)
	}
}

// deadQueue leaves an ephemeral queue, with a lane, all of whose processes were killed.
func deadQueue(t *testing.T, d *shm.Dir, name string) {
	t.Helper()
	c := startChild(t, "creator", envQueue+"="+name)
	_ = c.Line(t)
	w := startChild(t, "writer", envQueue+"="+name, envCount+"=3")
	_ = w.Line(t)
	w.Kill()
	c.Kill()
	if r, err := collect.Assess(d, name, collect.Options{}); err != nil || r.Fate != collect.Garbage {
		t.Fatalf("%s of killed processes: %v, %v", name, r.Fate, err)
	}
}

// holdReader does what who collects a queue goes on with after its lanes, until release gives up.
func holdReader(d *shm.Dir, name string) (release func(), err error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, err
	}
	obj, err := dir.Open(cq.ReaderFile, shm.ReadWrite)
	if err == nil {
		err = obj.Hold(nil)
	}
	return func() {
		_ = errors.Join(obj.Close(), dir.Close())
	}, err
}

// patientContests has nobody give up on who removes a queue until restore.
func patientContests() (restore func()) {
	was := collect.ContestMost
	collect.ContestMost = time.Hour
	return func() { collect.ContestMost = was }
}

// TestCreateAwaitsCollector: Create makes room where a dead queue stands also while somebody who
// removes it has its locks, and gives up again.
func TestCreateAwaitsCollector(t *testing.T) {
	defer patientContests()()
	d := openDir(t)
	for name, hold := range map[string]func(*shm.Dir, string) (func(), error){
		"lanes": collect.HoldLanes, "reader": holdReader} {
		deadQueue(t, d, name)
		release := shmtest.Got(hold(d, name)).Or(t)
		if err := collect.Remove(d, name, collect.Options{}); !errors.Is(err, cq.ErrBusy) {
			t.Errorf("%s: removed while it was held: %v", name, err)
		}
		if r, err := collect.Assess(d, name, collect.Options{}); err != nil || r.Fate != collect.Living {
			t.Errorf("%s: held by somebody it is %v, %v", name, r.Fate, err)
		}
		made := make(chan error, 1)
		go func() {
			q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8})
			if err == nil {
				err = q.Close()
			}
			made <- err
		}()
		select {
		case err := <-made:
			t.Errorf("%s: did not wait: %v", name, err)
			made <- err
		case <-time.After(20 * time.Millisecond):
		}
		release()
		must(t, <-made)
	}
}

// TestCreateWaitsForNobody: where somebody lives, or a queue waits for a successor, Create does not
// wait, however patient it is.
func TestCreateWaitsForNobody(t *testing.T) {
	defer patientContests()()
	d := openDir(t)
	exists := func(what, name string) {
		t.Helper()
		_, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8})
		wantErr(t, what, err, fs.ErrExist)
	}
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})).Or(t)
	exists("its reader lives", "q")
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
	must(t, q.Detach())
	exists("its writer lives", "q")
	must(t, w.Close())
	exists("it was left", "q")
	must(t, collect.Remove(d, "q", collect.Options{Waiting: true}))
	killedCreator(t, "dead", "0")
	w = shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "dead"), cq.WriterOptions{})).Or(t)
	exists("its reader is dead, and a writer lives", "dead")
	for _, name := range []string{"dead", "kept"} {
		if name == "kept" {
			killedCreator(t, name, "1")
			exists("it is persistent", name)
		}
		wantErr(t, "remove", collect.Remove(d, name, collect.Options{}), cq.ErrBusy, syscall.EBUSY)
	}
	post(t, w, 0, 1) // nothing happened to it
	must(t, w.Close())
	for range 2 {
		must(t, collect.Remove(d, "dead", collect.Options{}))
	}
	q, err := cq.Open(cq.Named(d, "kept"), cq.Options{Existing: true})
	must(t, errors.Join(err, closed(q)))
	nothingLeft(t, d)
}

// TestRemoveTogether: of those who remove a queue at once nobody is told of what the others
// removed under his hands.
func TestRemoveTogether(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	for range 40 {
		q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8, MaxLanes: 4})).Or(t)
		var ws []*cq.Writer
		for range 4 {
			w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
			ws = append(ws, w)
		}
		for _, w := range ws {
			must(t, w.Close())
		}
		must(t, q.Detach())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				err := collect.Remove(d, "q", collect.Options{Waiting: true})
				if err != nil && !errors.Is(err, cq.ErrBusy) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must(t, collect.Remove(d, "q", collect.Options{Waiting: true}))
	}
}

func init() { roles["cut owner"] = childCutOwner }

// cutKinds make what a child owns and this process makes anew: event queues wait for a successor,
// the others go with their owner.
func cutKinds() []objectKind {
	kinds := objectKinds()
	for i := range kinds {
		k := &kinds[i]
		k.file = "cut-" + k.file
		switch o := k.base.(type) {
		case cq.Options:
			o.Wait = cq.WaitFD
			k.base = o
		case cq.EventOptions:
			o.Lifetime = cq.Persistent
			k.base = o
		case cq.CounterOptions:
			o.Lifetime = cq.Ephemeral
			k.base = o
		}
	}
	return kinds
}

func cutName(file string) string { return strings.Split(file, "/")[0] }

// childCutOwner has one of each kind in each of many directories, until it is killed.
func childCutOwner() {
	for i := range number(envCount, 1) {
		d := shmtest.Needs(shm.OpenDir(cutDir(os.Getenv(shm.EnvDir), i)))
		for _, k := range cutKinds() {
			shmtest.Needs(k.create(cq.Named(d, cutName(k.file)), k.base))
		}
	}
	say("made")
	untilTold()
}

func cutDir(base string, i int) string { return filepath.Join(base, fmt.Sprint("case-", i)) }

// cutOwner is a process that owns what is in the directories of some cases.
func cutOwner(t *testing.T, cases int) (c *child, ds []*shm.Dir) {
	t.Helper()
	c = startChild(t, "cut owner", fmt.Sprint(envCount, "=", cases))
	c.Says(t, "made")
	for i := range cases {
		path := cutDir(openDir(t).Path(), i)
		t.Cleanup(func() { must(t, os.RemoveAll(path)) })
		ds = append(ds, shmtest.Have(shm.OpenDir(path)).In(t))
	}
	return c, ds
}

// TestNameComesFreeForAnyKind: the name of what is garbage, cut or not, is free for whatever is
// created, not for another of its kind only, and whoever collects gets it. It is not while its
// owner lives. What waits for a successor keeps it.
func TestNameComesFreeForAnyKind(t *testing.T) {
	t.Parallel()
	var all []taking
	for _, verb := range []string{"create", "open", "collect"} {
		for _, size := range shmtest.Some(1, []int64{100, 0, 4096}) {
			all = append(all, taking{0, verb, size})
		}
	}
	for shift := range len(shmtest.Some(2, cutKinds())) {
		for _, verb := range []string{"create", "open"} {
			all = append(all, taking{shift, verb, notCut}, taking{shift + 1, verb, 100})
		}
	}
	c, ds := cutOwner(t, len(all))
	c.Halt(t) // which is no death
	for _, alive := range []bool{true, false} {
		for i, w := range all {
			w.take(t, ds[i], alive)
		}
		if alive {
			c.Kill()
		}
	}
}

// taking is how names are taken: of each kind by that so many further on, when it is cut.
type taking struct {
	shift int
	verb  string
	size  int64
}

func (w taking) take(t *testing.T, d *shm.Dir, alive bool) {
	for i, k := range cutKinds() {
		if alive && w.size != notCut {
			must(t, os.Truncate(filepath.Join(d.Path(), k.file), w.size))
		}
		other := cutKinds()[(i+w.shift)%len(cutKinds())]
		// One is persistent: it is kept for who opens it.
		adopts := w.verb == "open" && other.name == k.name
		kept := alive || w.size == notCut && k.name == "events" && !adopts
		make := other.create
		switch {
		case w.verb == "open" && other.creates(w.verb):
			make = other.again[w.verb]
		case w.verb == "collect":
			make = func(cq.Place, any) (object, error) { return k.collects(d) }
		}
		q, err := make(cq.Named(d, cutName(k.file)), other.base)
		if err == nil {
			err = q.close()
		}
		if kept != (err != nil) {
			t.Errorf("%s by name of %s, %+v, owner alive: %v: %v", other.name, k.name, w, alive, err)
		}
	}
	if left, err := d.List(); !alive && w.size != notCut && (err != nil || len(left) != 0) {
		t.Errorf("%+v left: %v, %v", w, left, err)
	}
}

// notCut is the size of what is not cut.
const notCut = -1

func (k objectKind) collects(d *shm.Dir) (object, error) {
	err := collect.Remove(d, cutName(k.file), collect.Options{Waiting: !k.isDir()})
	if _, there := os.Stat(filepath.Join(d.Path(), k.file)); err == nil && there == nil {
		err = fs.ErrExist
	}
	return object{close: func() error { return nil }}, err
}

// TestWhatIsNotCutStays: nothing goes that is whole, or was never an object.
func TestWhatIsNotCutStays(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4})
	sub := shmtest.Have(d.Sub(q.Name(), false)).In(t)
	wantErr(t, "a queue that lives", collect.RemoveTruncated(sub, "reader"), shm.ErrKind)
	path := filepath.Join(d.Path(), "notes")
	defer os.Remove(path)
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	wantErr(t, "a file", collect.RemoveTruncated(d, "notes"), shm.ErrKind)
	wantErr(t, "nothing", collect.RemoveTruncated(d, "nothing"), fs.ErrNotExist)
	wantErr(t, "a directory", collect.RemoveTruncated(d, q.Name()), shm.ErrKind)
	must(t, errors.Join(os.Truncate(path, 0), os.Rename(path, path+".lock")))
	defer os.Remove(path + ".lock")
	wantErr(t, "a lock", collect.RemoveTruncated(d, "notes.lock"), shm.ErrKind)
}
