package cq

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// TestLaneMayComeFree: a lane that was left since it was looked at is tried again; one that nobody
// can have any more, whatever its writer wrote, is not waited for.
func TestLaneMayComeFree(t *testing.T) {
	path := filepath.Join(os.Getenv(shm.EnvDir), "poisoned")
	d, err := shm.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(path)
	defer d.Close()
	q, err := Create(d, "q", Options{Size: 4, MaxLanes: 1})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	w, err := Attach(t.Context(), d, "q", WriterOptions{})
	must(err)
	dir, err := d.Sub("q", false)
	must(err)
	claim := place.Claim{Dir: dir, Name: "q", Queue: q.opt.attrs(), Reader: q.obj, Rows: q.rows}
	free := claim.MayComeFree
	if free() {
		t.Error("a writer that writes is contested")
	}
	gen := w.obj.Generation()
	w.words.Epochs[gen%kind.LaneEpochs].Generation.Store(0)
	if !free() {
		t.Error("one that has not begun is not")
	}
	had := q.rows[1].Bell.Parked.Load()
	q.rows[1].Bell.Parked.Store(had | kind.RowPoisoned)
	if free() {
		t.Error("one that is refused for ever is contested")
	}
	q.rows[1].Bell.Parked.Store(had)
	w.words.Epochs[gen%kind.LaneEpochs].Generation.Store(gen)
	tail := w.words.Tail.Load()
	must(w.Close())
	if !free() {
		t.Error("one that was left is not there to be had")
	}
	lane, err := dir.Open(kind.LaneFile(1), shm.ReadWrite)
	must(err)
	words, err := kind.WordsOf[kind.LaneWords](lane, kind.SectLane, 1)
	must(err)
	words.Tail.Store(tail + 100)
	if free() {
		t.Error("one that nobody can go on in is waited for")
	}
	words.Tail.Store(tail)
	err = lane.Claim(func() error { // who looks whether it may claim has the lock
		if !free() {
			t.Error("one that somebody looks at is not there to be had")
		}
		return ErrBusy
	})
	if !errors.Is(err, ErrBusy) {
		t.Error(err)
	}
	must(lane.Claim(nil))
	must(lane.Unlink())
	must(lane.Close())
	if !free() {
		t.Error("a row without a lane is not there to be had")
	}
	must(dir.Close())
	must(q.Close())
}

// TestAttachAwaitsFormerLane: what a writer of a destroyed queue, who has not noticed that yet, has
// of a new one of its name is waited for.
func TestAttachAwaitsFormerLane(t *testing.T) {
	d := dirOfItsOwn(t, "former")
	was := collect.ContestMost
	collect.ContestMost = time.Hour // the test closes faster than a slow machine attaches
	t.Cleanup(func() { collect.ContestMost = was })
	q, err := Create(d, "q", Options{Size: 4, MaxLanes: 1})
	noError(t, err)
	former := attachTo(t, d, "q")
	noError(t, q.Close())
	q, err = Create(d, "q", Options{Size: 8, MaxLanes: 1})
	noError(t, err)
	attached := make(chan error, 1)
	go func() {
		w, err := Attach(t.Context(), d, "q", WriterOptions{})
		if err == nil {
			err = errors.Join(w.Post(&Entry{Context: 7}), w.Close())
		}
		attached <- err
	}()
	select {
	case err := <-attached:
		t.Errorf("did not wait: %v", err)
		attached <- err
	case <-time.After(20 * time.Millisecond):
	}
	noError(t, former.Close())
	noError(t, <-attached)
	if n, err := Read(q, make([]Msg, 4)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	noError(t, q.Close())
}
