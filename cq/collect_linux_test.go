package cq

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// dirOfItsOwn opens a directory that no other test sees, and removes it when the test ends.
func dirOfItsOwn(t *testing.T, name string) *shm.Dir {
	t.Helper()
	d, err := shm.OpenDir(filepath.Join(os.Getenv(shm.EnvDir), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.Close()
		_ = os.RemoveAll(d.Path())
	})
	return d
}

// TestRemoveSeesWhoComes: a writer that attaches while a queue is being removed keeps it, unless it
// sees that and gives up.
func TestRemoveSeesWhoComes(t *testing.T) {
	shmtest.Long(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := dirOfItsOwn(t, "comes")
	q, err := Create(d, "q", Options{Size: 4, MaxLanes: 3, Lifetime: Persistent})
	must(err)
	must(q.Detach())
	dir, err := d.Sub("q", false)
	must(err)
	defer dir.Close()
	obj, err := dir.Open(kind.ReaderFile, shm.ReadWrite)
	must(err)
	defer obj.Close()
	opt, err := stored("test", "q", obj.Header())
	must(err)
	look := lastLook{found: &found{at: d, name: "q", dir: dir, o: Removal{Waiting: true}},
		obj: obj, opt: opt}
	state := func() uint64 {
		words, err := kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)
		must(err)
		return words.State.Load()
	}

	w, err := Attach(t.Context(), d, "q", WriterOptions{}) // since the lanes were looked for
	must(err)
	before := obj.Owner()
	if err := obj.Claim(look.look); !errors.Is(err, ErrBusy) {
		t.Fatalf("with a writer: %v", err)
	}
	if obj.Owner() != before || state() != kind.StateOpen {
		t.Errorf("owner %+v after %+v, state %d", obj.Owner(), before, state())
	}
	must(w.Post(&Entry{}))
	must(w.Close())
	if err := Remove(d, "q", Removal{Waiting: true}); !errors.Is(err, ErrBusy) {
		t.Errorf("with an unread entry: %v", err)
	}

	// Whoever removes it died before it could finish.
	words, err := kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)
	must(err)
	words.State.Store(kind.StateRemoving)
	var busy *Error
	if _, err := Attach(t.Context(), d, "q", WriterOptions{}); !errors.Is(err, ErrBusy) ||
		!errors.As(err, &busy) || busy.Hint == "" {
		t.Errorf("attached to what is being removed: %v", err)
	}
	if r, err := Remaining(d, "q", Removal{Waiting: true}); err != nil || r.Fate != FateUnread ||
		r.Unread != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	q, err = Adopt(d, "q", Options{})
	must(err)
	if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	w, err = Attach(t.Context(), d, "q", WriterOptions{})
	must(err)
	must(w.Close())
	must(q.Detach())
	attachWhileRemoved(t, d, dir)
	must(Remove(d, "q", Removal{Waiting: true}))
	must(Remove(d, "q", Removal{}))
}

// attachWhileRemoved: a writer that meets somebody who removes the queue, and gives it up again,
// attaches then.
func attachWhileRemoved(t *testing.T, d, dir *shm.Dir) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func(most time.Duration) { contestedMost = most }(contestedMost)
	contestedMost = time.Hour // it only catches a hang
	obj, err := dir.Open(kind.ReaderFile, shm.ReadWrite)
	must(err)
	defer obj.Close()
	words, err := kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)
	must(err)
	opt, err := stored("test", "q", obj.Header())
	must(err)
	attached := make(chan error, 1)
	attach := func() {
		w, err := Attach(t.Context(), d, "q", WriterOptions{})
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
	must(<-attached)

	var all []*Writer // so that there is no row without a lane
	for range opt.MaxLanes {
		w, err := Attach(t.Context(), d, "q", WriterOptions{})
		must(err)
		all = append(all, w)
	}
	if _, err := Attach(t.Context(), d, "q", WriterOptions{}); !errors.Is(err, ErrLanes) ||
		errors.Is(err, ErrBusy) {
		t.Errorf("one writer too many: %v", err)
	}
	for _, w := range all {
		must(w.Close())
	}
	lanes, err := openLanes(dir, shm.ReadWrite)
	must(err)
	must(holdAll(lanes))
	go attach()
	early()
	for _, l := range lanes {
		must(l.Release())
	}
	closeAll(lanes)
	must(<-attached)
}

// TestRemovesWhatWasAside: a persistent queue whose maker died before it had its own name waits for
// nobody.
func TestRemovesWhatWasAside(t *testing.T) {
	d := dirOfItsOwn(t, "aside")
	for name, want := range map[string]Fate{"q": FateLeft, "new-queue": FateLeft,
		"new-" + shm.NewUUID().String(): FateGarbage} {
		q, err := Create(d, name, Options{Size: 4, Lifetime: Persistent})
		if err != nil {
			t.Fatal(err)
		}
		if err := q.Detach(); err != nil {
			t.Fatal(err)
		}
		if r, err := Remaining(d, name, Removal{}); err != nil || r.Fate != want {
			t.Errorf("%s: %v, %v; want %v", name, r.Fate, err, want)
		}
		if err := Remove(d, name, Removal{}); (err == nil) != (want == FateGarbage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRemoveSeesWhatMoved: what was aside when a collector found it may have got its own name since
// then, and been left to a successor.
func TestRemoveSeesWhatMoved(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d := dirOfItsOwn(t, "moved")
	aside := "new-" + shm.NewUUID().String()
	q, err := Create(d, aside, Options{Size: 4, Lifetime: Persistent})
	must(err)
	must(q.Detach())
	f, err := find(d, aside, Removal{})
	must(err)
	defer f.dir.Close()
	r, err := judge(f.dir, f.o)
	must(err)
	if r.Fate != FateGarbage {
		t.Fatalf("aside it is %v", r.Fate)
	}
	must(os.Rename(filepath.Join(d.Path(), aside), filepath.Join(d.Path(), "q")))
	for range 2 { // with nothing in the place that it left, and with another one
		if err := f.remove(); !errors.Is(err, ErrBusy) {
			t.Errorf("moved, it was removed: %v", err)
		}
		must(os.MkdirAll(filepath.Join(d.Path(), aside), 0o700))
	}
	if r, err := Remaining(d, "q", Removal{}); err != nil || r.Fate != FateLeft {
		t.Errorf("under its own name: %v, %v", r.Fate, err)
	}
	must(Remove(d, aside, Removal{}))
	q, err = Adopt(d, "q", Options{})
	must(err)
	must(q.Close())
}

// TestRemoveSparesTheOtherName: the directory aside of an object that has its own name too goes,
// and the queue stays, with what is unread in lanes that are only there.
func TestRemoveSparesTheOtherName(t *testing.T) {
	d := dirOfItsOwn(t, "names")
	at := func(name ...string) string { return filepath.Join(append([]string{d.Path()}, name...)...) }
	q, err := Create(d, "q", Options{Size: 4, Lifetime: Persistent})
	noError(t, err)
	w := attachTo(t, d, "q")
	noError(t, w.Post(&Entry{Context: 5}))
	noError(t, errors.Join(w.Close(), q.Detach()))
	aside := "new-" + shm.NewUUID().String()
	noError(t, os.Mkdir(at(aside), 0o700))
	noError(t, os.Link(at("q", kind.ReaderFile), at(aside, kind.ReaderFile)))
	noError(t, Remove(d, aside, Removal{}))
	if _, err := os.Stat(at(aside)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was aside: %v", err)
	}
	if q, err = Adopt(d, "q", Options{}); err != nil {
		t.Fatal(err)
	}
	if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	noError(t, q.Close())
}
