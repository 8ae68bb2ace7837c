package cq_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// TestDetachedDescriptor: once a reader has left, its descriptor numbers mean other things, and
// writers must not ring them.
func TestDetachedDescriptor(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Wait: cq.WaitFD})
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
	q, err = cq.Open(cq.Named(d, name), cq.Options{Existing: true})
	must(t, err)
	closeQueue(t, q)
}

// TestLaneOfFormerQueue: what a dead writer of a destroyed queue left makes way.
func TestLaneOfFormerQueue(t *testing.T) {
	d := openDir(t)
	q, err := cq.Create(cq.Named(d, "again"), cq.Options{Size: 4, MaxLanes: 1})
	must(t, err)
	c := startChild(t, "writer", envQueue+"=again", envCount+"=1")
	_ = c.line(t)
	must(t, q.Close())
	c.kill()
	q, err = cq.Create(cq.Named(d, "again"), cq.Options{Size: 4, MaxLanes: 1})
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
	w, err := cq.Attach(t.Context(), cq.Named(d, "beside"), cq.WriterOptions{})
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
		w, err := cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})
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
	w, err = cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})
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

// TestCheckHeldYoung: an object may be unfinished as long as its file is young. What it says itself
// of its age, or that nobody finished it, is no excuse.
func TestCheckHeldYoung(t *testing.T) {
	umem := kind.UMEM{Frames: 2, ChunkBytes: 2048, HeadroomBytes: 64}
	obj, err := shm.CreateMemfd(umem.Spec("umem"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Close()
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", obj.FD()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := obj.Bytes()[:4096]
	now := time.Duration(0)
	check := func(what string, created, born time.Duration, want string) {
		t.Helper()
		for {
			began := time.Now()
			binary.LittleEndian.PutUint64(page[0x78:], uint64(spin.Now()+int64(created)))
			binary.LittleEndian.PutUint32(page[0x980:], crc32.Checksum(page[:0x980],
				crc32.MakeTable(crc32.Castagnoli)))
			all, err := inspect.CheckHeld([]inspect.Held{{Name: "held", Path: "held", FD: fd, Memfd: true,
				Born: time.Now().Add(born)}}, nil)
			if time.Since(began) > time.Second/2 { // it is not young any more
				continue
			}
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: %+v, %v", what, all, err)
			}
			got := ""
			for _, v := range all[0].Violations {
				got += v.Invariant
			}
			if got != want || all[0].Undecided != (want == "") {
				t.Errorf("%s: undecided %v, %+v, want %s", what, all[0].Undecided, all[0].Violations,
					want)
			}
			return
		}
	}
	check("just made", now, now, "")
	check("two seconds old", -2*time.Second, now, "object.seals")
	check("yet to be made", time.Hour, now, "object.seals")
	check("an old file", now, -time.Hour, "object.seals")
	check("a file of tomorrow", now, 24*time.Hour, "object.seals")

	binary.LittleEndian.PutUint64(page[0xa00:], uint64(shm.ObjectNew))
	check("being made", now, now, "")
	check("being made for an hour", now, -time.Hour, "header.state")
	check("being made tomorrow", now, 24*time.Hour, "header.state")
	binary.LittleEndian.PutUint64(page[0xa00:], uint64(shm.ObjectReady))
}

// TestResetsAreCounted: what TryWait costs shows in the statistics, and only there.
func TestResetsAreCounted(t *testing.T) {
	d := openDir(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		q, err := cq.Create(cq.Named(d, "resets"), cq.Options{Wait: wait})
		if err != nil {
			t.Fatal(err)
		}
		if n := q.Stats().Resets; n != 0 {
			t.Errorf("%v: %d before the first TryWait", wait, n)
		}
		if wait == cq.WaitFD {
			if err := q.TryWait(); err != nil {
				t.Fatal(err)
			}
			if q.Stats().Resets == 0 {
				t.Error("TryWait made system calls that are not counted")
			}
		}
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
