package ctl_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// looker looks at queue "q" of a directory again and again, from the same mappings.
func looker(t testing.TB, d *shm.Dir) (look func() (ctl.Queue, error)) {
	t.Helper()
	m := ctl.NewMonitor(d)
	t.Cleanup(func() { must(t, m.Close()) })
	return func() (ctl.Queue, error) { return m.Show("q") }
}

func seen(t testing.TB, look func() (ctl.Queue, error)) ctl.Queue {
	t.Helper()
	return shmtest.Got(look()).Or(t)
}

func post(t testing.TB, w *cq.Writer, from, to uint64) {
	t.Helper()
	for i := from; i < to; i++ {
		must(t, w.Post(&cq.Entry{Context: i}))
	}
}

func attach(t testing.TB, d *shm.Dir) *cq.Writer {
	t.Helper()
	return shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).In(t)
}

func TestShowValues(t *testing.T) {
	d := ownDir(t)
	q, a := queue(t, d, "q", cq.Options{Size: 8, MaxLanes: 4, Lifetime: cq.Persistent,
		Overrun: cq.OverrunQueue, Format: cq.FormatMsg})
	b, look := attach(t, d), looker(t, d)
	post(t, a, 0, 6)
	post(t, b, 0, 3)
	es := shmtest.Got(q.Peek(4)).Or(t)
	held := uint64(len(es))

	s := seen(t, look)
	if s.Name != "q" || *s.State != ctl.StateOpen || *s.Reader.Life != shm.Alive.String() ||
		*s.Reader.PID != os.Getpid() || *s.Generation != 1 {
		t.Errorf("%+v", s)
	}
	if *s.Tail != 9 || *s.Head != 0 || *s.Peeked != held || *s.Unreleased != held ||
		*s.Depth != 9 || *s.HighWater != 6 {
		t.Errorf("%+v with %d handed out", s, held)
	}
	plan := shmtest.Got(cq.Plan(cq.Options{Size: 8, MaxLanes: 4}, 2)).Or(t)
	if *s.SizeBytes != plan {
		t.Errorf("%d bytes, planned %d", *s.SizeBytes, plan)
	}
	if len(s.Lanes) != 3 || !s.Lanes[0].Own || s.Lanes[1].Own {
		t.Fatalf("lanes %+v", s.Lanes)
	}
	for k, want := range []struct{ row, posted int }{{0, 0}, {1, 6}, {2, 3}} {
		l := s.Lanes[k]
		if l.Row != want.row || l.Error != nil || *l.Tail != uint64(want.posted) ||
			*l.Publishes != uint64(want.posted) || *l.Life != shm.Alive.String() {
			t.Errorf("lane %+v, want %+v", l, want)
		}
	}
	must(t, q.Release(int(held)))
	if s = seen(t, look); *s.Head != held || *s.Depth != 9-held || *s.Read != held {
		t.Errorf("after release: %+v", s)
	}
}

func TestShowOverrunAndSuppressed(t *testing.T) {
	d := ownDir(t)
	q, w := queue(t, d, "q", cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	look := looker(t, d)
	post(t, w, 0, 4)
	if s := seen(t, look); *s.State != ctl.StateFull {
		t.Errorf("state %v of a full queue", *s.State)
	}
	wantErr(t, "fifth", w.Post(&cq.Entry{}), cq.ErrOverrun)
	s := seen(t, look)
	l := s.Lanes[1]
	if !*l.Overrun || *s.Overruns != 1 || *l.Refused != 1 {
		t.Errorf("overrun lane: %+v", l)
	}
	// Nobody slept, so nothing but the overrun itself can have woken anyone.
	if *l.Publishes != 4 || *l.WakesSuppressed != *l.Publishes-*l.Wakes {
		t.Errorf("traffic %+v", l)
	}
	for err := error(nil); !errors.Is(err, cq.ErrOverrun); {
		_, err = cq.Read(q, make([]cq.Context, 4))
	}
	if s = seen(t, look); *s.State != ctl.StateOverrun {
		t.Errorf("state %v after the reader has found out", *s.State)
	}
}

// TestShowFollowsTheName: a monitor goes from a queue to the next of its name, whether it looked
// when there was none or not, and does not compare the two.
func TestShowFollowsTheName(t *testing.T) {
	d := ownDir(t)
	look := looker(t, d)
	gone := func(when string) {
		s, err := look()
		wantErr(t, when, err, fs.ErrNotExist)
		if s.Error == nil || s.Error.Code != ctl.CodeNotFound {
			t.Errorf("%s: %+v", when, s)
		}
	}
	gone("before")
	var last *string
	for _, size := range []int{4, 16, 8} {
		q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: size})).Or(t)
		s := seen(t, look)
		if last != nil && *s.UUID == *last || *s.Capacity != uint64(size) || s.PerSecond != nil {
			t.Errorf("still sees the queue before: %+v", s)
		}
		last = s.UUID
		must(t, q.Close())
		if size == 16 {
			gone("destroyed")
		}
	}
	_, err := ctl.Show(d, "a/b")
	wantErr(t, "name", err, shm.ErrName)
}

// TestShowDetached: who looks keeps nobody from what was left.
func TestShowDetached(t *testing.T) {
	d := ownDir(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 4, Lifetime: cq.Persistent})).Or(t)
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
	post(t, w, 0, 2)
	must(t, errors.Join(w.Close(), q.Detach()))
	look := looker(t, d)
	if s := seen(t, look); *s.State != ctl.StateReleased || *s.Depth != 2 {
		t.Errorf("%v, %d", *s.State, *s.Depth)
	}
	q = shmtest.Got(cq.Open(cq.Named(d, "q"), cq.Options{Existing: true})).Or(t)
	attach(t, d)
	if s := seen(t, look); *s.State != ctl.StateOpen || *s.Generation != 2 ||
		*s.Lanes[1].Generation != 2 {
		t.Errorf("%v, generation %d, %+v", *s.State, *s.Generation, s.Lanes[1])
	}
	must(t, q.Close())
}

// bareQueue makes the objects of a queue with two lanes of four entries that no process uses, so
// that they can be broken.
func bareQueue(t *testing.T) (d *shm.Dir, reader, one, two *shm.Object) {
	t.Helper()
	d = ownDir(t)
	sub := shmtest.Have(d.Sub("q", true)).In(t)
	make := func(file string, spec shm.Spec) *shm.Object {
		o := shmtest.Got(sub.Create(file, spec, nil)).Or(t)
		t.Cleanup(func() { _ = o.Close() }) // it may be cut by then
		return o
	}
	o := kind.Queue{Format: 4, ReaderPays: true, Capacity: 4, Rows: 3, DetailBytes: kind.ErrorBytes}
	reader = make(kind.ReaderFile, o.ReaderSpec("q"))
	put(t, reader, kind.SectQueue, 0, kind.OffState, kind.StateOpen)
	one = make("lane-0001", o.LaneSpec("lane", 1, reader.Header().UUID))
	two = make("lane-0002", o.LaneSpec("lane", 2, reader.Header().UUID))
	put(t, two, kind.SectLane, 2, 0, 3)
	return d, reader, one, two
}

// TestShowMoreWakes: a writer that claims more wakes than batches is not believed.
func TestShowMoreWakes(t *testing.T) {
	const offWakes = 136 // in the lane's page
	d, _, one, _ := bareQueue(t)
	put(t, one, kind.SectLane, 1, offWakes, 7)
	l := seen(t, looker(t, d)).Lanes[1]
	if *l.Wakes > *l.Publishes || *l.WakesSuppressed > *l.Publishes {
		t.Errorf("%+v", l)
	}
}

// put scribbles a word.
func put(t *testing.T, o *shm.Object, k shm.SectionKind, id uint32, off int, v uint64) {
	t.Helper()
	mem, _, err := o.Section(k, id)
	must(t, err)
	binary.LittleEndian.PutUint64(mem[off:], v)
}

// onlyFirstBroken checks that lane 1 is the error and that lane 2 and the sums do not suffer.
func onlyFirstBroken(t *testing.T, s ctl.Queue, target error) {
	t.Helper()
	if len(s.Lanes) != 3 {
		t.Fatalf("%d lanes", len(s.Lanes))
	}
	wantErr(t, "lane 1", s.Lanes[1].Error, target)
	if l := s.Lanes[2]; l.Error != nil || *l.Tail != 3 || *s.Tail != 3 {
		t.Errorf("lane 2: %+v, in all %d", l, *s.Tail)
	}
}

func TestShowLaneCut(t *testing.T) {
	d, _, one, _ := bareQueue(t)
	look := looker(t, d)
	seen(t, look) // maps it
	path := filepath.Join(d.Path(), "q", one.Name())
	must(t, os.Truncate(path, 4096)) // page 0 stays
	onlyFirstBroken(t, seen(t, look), shm.ErrTruncated)
	onlyFirstBroken(t, seen(t, looker(t, d)), shm.ErrTruncated)
	must(t, os.Truncate(path, 0))
	onlyFirstBroken(t, seen(t, look), shm.ErrTruncated)
}

func TestShowReaderCut(t *testing.T) {
	d, reader, _, _ := bareQueue(t)
	look := looker(t, d)
	seen(t, look)
	path := filepath.Join(d.Path(), "q", reader.Name())
	for _, size := range []int64{4096, 0} {
		must(t, os.Truncate(path, size))
		_, err := look()
		wantErr(t, "mapped", err, shm.ErrTruncated)
		_, err = ctl.Show(d, "q")
		wantErr(t, "fresh", err, shm.ErrTruncated)
	}
}

func TestShowLaneScribbled(t *testing.T) {
	for name, scribble := range map[string]func(reader, lane *shm.Object){
		"tail ahead": func(_, o *shm.Object) { put(t, o, kind.SectLane, 1, 0, 5) },
		"tail behind": func(r, _ *shm.Object) {
			put(t, r, kind.SectRows, 0, kind.RowBytes+kind.RowOffIndex, 9)
		},
		"tail wild": func(_, o *shm.Object) { put(t, o, kind.SectLane, 1, 0, 1<<63) },
	} {
		t.Run(name, func(t *testing.T) {
			d, reader, one, _ := bareQueue(t)
			look := looker(t, d)
			seen(t, look)
			scribble(reader, one)
			onlyFirstBroken(t, seen(t, look), cq.ErrCorrupt)
		})
	}
	t.Run("header", func(t *testing.T) {
		d, _, one, _ := bareQueue(t)
		one.Bytes()[0x100]++ // an attribute, under the checksum
		onlyFirstBroken(t, seen(t, looker(t, d)), shm.ErrCorrupt)
	})
	t.Run("version", func(t *testing.T) {
		d, reader, one, _ := bareQueue(t)
		one.Bytes()[0xc] = 77 // ABI major
		onlyFirstBroken(t, seen(t, looker(t, d)), shm.ErrVersion)
		reader.Bytes()[0xc] = 77
		_, err := ctl.Show(d, "q")
		wantErr(t, "reader", err, shm.ErrVersion)
	})
}

// TestShowWildWords has a peer that puts anything at all into what it may write.
func TestShowWildWords(t *testing.T) {
	d, reader, one, two := bareQueue(t)
	look := looker(t, d)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for _, s := range []struct {
			o  *shm.Object
			k  shm.SectionKind
			id uint32
		}{{reader, kind.SectQueue, 0}, {reader, kind.SectRows, 0}, {reader, kind.SectHints, 0},
			{one, kind.SectLane, 1}, {two, kind.SectLane, 2}} {
			mem, _, err := s.o.Section(s.k, s.id)
			must(t, err)
			for off := 0; off+8 <= len(mem); off += 8 {
				binary.LittleEndian.PutUint64(mem[off:], rnd.Uint64()>>rnd.IntN(64))
			}
		}
		s := shmtest.Got(look()).Or(t)
		for _, l := range s.Lanes {
			bounded(t, l, 4)
		}
	}
}

// bounded checks what must hold however the words were read.
func bounded(t testing.TB, l ctl.Lane, capacity uint64) {
	t.Helper()
	if l.Error == nil && (*l.Depth > capacity || *l.Unreleased > *l.Depth ||
		*l.HighWater > capacity || *l.HighWater < *l.Depth) {
		t.Errorf("lane %d: %+v with capacity %d", l.Row, l, capacity)
	}
}

func TestShowBusyQueue(t *testing.T) {
	t.Parallel()
	const size, writers = 4, 2
	d := ownDir(t)
	q := shmtest.Have(cq.Create(cq.Named(d, "q"), cq.Options{Size: size})).In(t)
	look := looker(t, d)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range writers {
		w := attach(t, d)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if w.Post(&cq.Entry{}) != nil {
					runtime.Gosched()
				}
			}
		})
	}
	all.Go(func() {
		buf := make([]cq.Context, size)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = cq.Read(q, buf)
			runtime.Gosched()
		}
	})
	var head, tail uint64
	for range 2000 {
		s := seen(t, look)
		for _, l := range s.Lanes {
			if l.Error != nil {
				t.Fatal(l.Error)
			}
			bounded(t, l, size)
		}
		if *s.Head < head || *s.Tail < tail {
			t.Fatalf("went back: %d to %d, then %d to %d", head, tail, *s.Head, *s.Tail)
		}
		head, tail = *s.Head, *s.Tail
	}
	close(stop)
	all.Wait()
}
