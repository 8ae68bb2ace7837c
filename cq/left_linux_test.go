package cq_test

import (
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
)

// TestDetachedDescriptor: once a reader has left, its descriptor numbers mean other things, and
// writers must not ring them.
func TestDetachedDescriptor(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	q, err := cq.Create(d, name, cq.Options{Size: 8, Wait: cq.WaitFD})
	must(t, err)
	w := attach(t, d, name)
	_ = drain(t, q)
	for q.TryWait() != nil {
		_ = drain(t, q)
	}
	must(t, q.Detach())
	var files []*os.File // take over the numbers that are free now
	for range 8 {
		f, err := os.CreateTemp(t.TempDir(), "")
		must(t, err)
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	post(t, w, 0, 3)
	for _, f := range files {
		if i, err := f.Stat(); err != nil || i.Size() != 0 {
			t.Errorf("a writer wrote %d bytes into a file of this process (%v)", i.Size(), err)
		}
	}
	q, err = cq.Adopt(d, name, cq.Options{})
	must(t, err)
	closeQueue(t, q)
}

// TestLaneOfFormerQueue: what a dead writer of a destroyed queue left makes way.
func TestLaneOfFormerQueue(t *testing.T) {
	d := openDir(t)
	q, err := cq.Create(d, "again", cq.Options{Size: 4, MaxLanes: 1})
	must(t, err)
	c := startChild(t, "writer", envQueue+"=again", envCount+"=1")
	_ = c.line(t)
	must(t, q.Close())
	c.kill()
	q, err = cq.Create(d, "again", cq.Options{Size: 4, MaxLanes: 1})
	must(t, err)
	t.Cleanup(func() { closeQueue(t, q) })
	if w := attach(t, d, "again"); w.Lane() != 1 {
		t.Error("lane", w.Lane())
	}
}

// TestRemoveBesideWriter: an attempt to remove a queue that cannot be removed yet does not change
// whether it can be removed later, and a writer that comes too late learns that it did.
func TestRemoveBesideWriter(t *testing.T) {
	d := openDir(t)
	killedCreator(t, "beside", "0")
	w, err := cq.Attach(t.Context(), d, "beside", cq.WriterOptions{})
	must(t, err)
	wantErr(t, "remove beside a writer", collect.Remove(d, "beside", collect.Options{}), cq.ErrBusy)
	must(t, w.Close())
	must(t, collect.Remove(d, "beside", collect.Options{}))
	nothingLeft(t, d)
}

// TestWakesAddUp: what a lane's writers counted is kept when the next one takes it over.
func TestWakesAddUp(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	wakes := uint64(0)
	for range 3 {
		w, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
		must(t, err)
		for range 2 {
			for q.TryWait() != nil {
				_ = drain(t, q)
			}
			must(t, w.Post(&cq.Entry{}))
			wakes++
		}
		if got := w.Stats(); got.Wakes != wakes || got.Publishes != wakes {
			t.Errorf("%d wakes, %d publishes, want %d", got.Wakes, got.Publishes, wakes)
		}
		must(t, w.Close())
	}
}

// TestWakesAreOfBatches: a batch that wakes a sleeper on the descriptor and one on a set is one
// wake, and attaching is none.
func TestWakesAreOfBatches(t *testing.T) {
	const quiet = 16 // batches that find nobody asleep, so that more wakes would fit below them
	d, q := create(t, cq.Options{Size: 2 * quiet, Wait: cq.WaitFD})
	w := attach(t, d, q.Name())
	post(t, w, 0, quiet)
	must(t, w.Close())
	drain(t, q)
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	must(t, s.Add(q))
	defer func() { must(t, s.Remove(q)) }()
	arm := func() {
		for q.TryWait() != nil || s.TryWait() != nil {
			_ = drain(t, q)
		}
	}
	arm()
	w, err = cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
	must(t, err)
	defer w.Close()
	before := w.Stats().Wakes
	for i := range uint64(3) {
		lane := show(t, d, q.Name()).Lanes[1]
		if got := w.Stats(); got.Wakes != before+i || *lane.Wakes != before+i ||
			*lane.Publishes != quiet+i {
			t.Fatalf("after %d: %+v, %+v", i, got, lane)
		}
		arm()
		must(t, w.Post(&cq.Entry{}))
	}
	if before > 1 { // the first of all may have found the reader asleep
		t.Errorf("%d wakes before anybody slept", before)
	}
}
