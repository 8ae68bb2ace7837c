package cq_test

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
	"github.com/shmring/shmring/shm"
)

// inspector opens an inspector for the time of the test.
func inspector(t testing.TB, d *shm.Dir, name string) *cq.Inspector {
	t.Helper()
	i, err := cq.Inspect(d, name)
	must(t, err)
	t.Cleanup(func() { must(t, i.Close()) })
	return i
}

func snapshot(t testing.TB, i *cq.Inspector) cq.Snapshot {
	t.Helper()
	s, err := i.Snapshot()
	must(t, err)
	return s
}

func TestInspectValues(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 4, Lifetime: cq.Persistent,
		Overrun: cq.OverrunQueue, Format: cq.FormatMsg})
	name := queueName(t)
	a, b := attach(t, d, name), attach(t, d, name)
	i := inspector(t, d, name)
	post(t, a, 0, 6)
	post(t, b, 0, 3)
	es, err := q.Peek(4)
	must(t, err)
	held := uint64(len(es))

	s := snapshot(t, i)
	o := s.Options
	if o.Size != 8 || o.MaxLanes != 4 || o.Lifetime != cq.Persistent ||
		o.Overrun != cq.OverrunQueue || o.Format != cq.FormatMsg {
		t.Errorf("options %+v", o)
	}
	if s.Name != name || s.State != cq.StateOpen || s.Life != shm.Alive ||
		s.Reader.PID != os.Getpid() || s.Generation != 1 {
		t.Errorf("%+v", s)
	}
	if s.Level.Tail != 9 || s.Level.Head != 0 || s.Level.Peeked != held ||
		s.Level.Unreleased() != held || s.Level.Depth() != 9 || s.Level.HighWater != 6 {
		t.Errorf("level %+v with %d handed out", s.Level, held)
	}
	plan, err := cq.Plan(cq.Options{Size: 8, MaxLanes: 4}, 2)
	must(t, err)
	if s.SizeBytes != plan {
		t.Errorf("%d bytes, planned %d", s.SizeBytes, plan)
	}
	if len(s.Lanes) != 3 || !s.Lanes[0].Own || s.Lanes[1].Own {
		t.Fatalf("lanes %+v", s.Lanes)
	}
	for k, want := range []struct{ row, posted int }{{0, 0}, {1, 6}, {2, 3}} {
		l := s.Lanes[k]
		if l.Row != want.row || l.Err != nil || l.Level.Tail != uint64(want.posted) ||
			l.Traffic.Publishes != uint64(want.posted) || l.Life != shm.Alive {
			t.Errorf("lane %+v, want %+v", l, want)
		}
	}
	must(t, q.Release(int(held)))
	if s = snapshot(t, i); s.Level.Head != held || s.Level.Depth() != 9-held ||
		s.Level.Read != held {
		t.Errorf("after release: %+v", s.Level)
	}
}

func TestInspectOverrunAndSuppressed(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	w := attach(t, d, queueName(t))
	i := inspector(t, d, queueName(t))
	post(t, w, 0, 4)
	wantErr(t, "fifth", w.Post(&cq.Entry{}), cq.ErrOverrun)
	s := snapshot(t, i)
	l := s.Lanes[1]
	if !l.Overrun || s.Overruns != 1 || l.Traffic.Refused != 1 || s.State != cq.StateOpen {
		t.Errorf("overrun lane: %+v", l)
	}
	// Nobody slept, so nothing but the overrun itself can have woken anyone.
	if tr := l.Traffic; tr.Publishes != 4 || tr.WakesSuppressed != tr.Publishes-tr.Wakes {
		t.Errorf("traffic %+v", tr)
	}
	for err := error(nil); !errors.Is(err, cq.ErrOverrun); {
		_, err = cq.Read(q, make([]cq.Context, 4))
	}
	if s = snapshot(t, i); s.State != cq.StateOverrun {
		t.Errorf("state %v after the reader has found out", s.State)
	}
}

func TestInspectFollowsTheName(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	_, err := cq.Inspect(d, name)
	wantErr(t, "before", err, fs.ErrNotExist)
	q, err := cq.Create(d, name, cq.Options{Size: 4})
	must(t, err)
	i := inspector(t, d, name)
	first := snapshot(t, i)
	must(t, q.Close())
	_, err = i.Snapshot()
	wantErr(t, "destroyed", err, fs.ErrNotExist)
	q, err = cq.Create(d, name, cq.Options{Size: 16})
	must(t, err)
	defer q.Close()
	if s := snapshot(t, i); s.UUID == first.UUID || s.Options.Size != 16 {
		t.Errorf("still sees the first queue: %+v", s)
	}
}

func TestInspectDetached(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	q, err := cq.Create(d, name, cq.Options{Size: 4, Lifetime: cq.Persistent})
	must(t, err)
	w := attach(t, d, name)
	post(t, w, 0, 2)
	must(t, q.Detach())
	i := inspector(t, d, name)
	if s := snapshot(t, i); s.Life != shm.Released || s.Level.Depth() != 2 {
		t.Errorf("%v, %+v", s.Life, s.Level)
	}
	q, err = cq.Adopt(d, name, cq.Options{})
	must(t, err)
	if s := snapshot(t, i); s.Life != shm.Alive || s.Generation != 2 {
		t.Errorf("%v, generation %d", s.Life, s.Generation)
	}
	must(t, q.Close())
}

// bareQueue makes the objects of a queue with two lanes that no process uses, so that they can be
// broken.
func bareQueue(t *testing.T) (d *shm.Dir, reader, one, two *shm.Object) {
	t.Helper()
	d = openDir(t)
	sub, err := d.Sub(queueName(t), true)
	must(t, err)
	t.Cleanup(func() {
		must(t, os.RemoveAll(sub.Path()))
		must(t, sub.Close())
	})
	make := func(file string, spec shm.Spec) *shm.Object {
		o, err := sub.Create(file, spec, nil)
		must(t, err)
		t.Cleanup(func() { _ = o.Close() })
		return o
	}
	spec, err := cq.ReaderSpec(queueName(t), cq.Options{Size: 4, MaxLanes: 2})
	must(t, err)
	reader = make(cq.ReaderFile, spec)
	put(t, reader, cq.SectQueue, 0, cq.OffState, uint64(cq.StateOpen))
	one = make("lane-0001", cq.LaneSpec(1, 4, reader.Header().UUID))
	two = make("lane-0002", cq.LaneSpec(2, 4, reader.Header().UUID))
	put(t, two, cq.SectLane, 2, 0, 3)
	return d, reader, one, two
}

// TestInspectMoreWakes: a writer that claims more wakes than batches is not believed.
func TestInspectMoreWakes(t *testing.T) {
	d, _, one, _ := bareQueue(t)
	put(t, one, cq.SectLane, 1, cq.OffWakes, 7)
	l := snapshot(t, inspector(t, d, queueName(t))).Lanes[1].Traffic
	if l.Wakes > l.Publishes || l.WakesSuppressed > l.Publishes {
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
func onlyFirstBroken(t *testing.T, s cq.Snapshot, target error) {
	t.Helper()
	if len(s.Lanes) != 3 {
		t.Fatalf("%d lanes", len(s.Lanes))
	}
	wantErr(t, "lane 1", s.Lanes[1].Err, target)
	if l := s.Lanes[2]; l.Err != nil || l.Level.Tail != 3 || s.Level.Tail != 3 {
		t.Errorf("lane 2: %+v, sums %+v", l, s.Level)
	}
}

func TestInspectLaneCut(t *testing.T) {
	d, _, one, _ := bareQueue(t)
	i := inspector(t, d, queueName(t))
	snapshot(t, i) // maps it
	path := filepath.Join(d.Path(), queueName(t), one.Name())
	must(t, os.Truncate(path, 4096)) // page 0 stays
	onlyFirstBroken(t, snapshot(t, i), shm.ErrTruncated)
	onlyFirstBroken(t, snapshot(t, inspector(t, d, queueName(t))), shm.ErrTruncated)
	must(t, os.Truncate(path, 0))
	onlyFirstBroken(t, snapshot(t, i), shm.ErrTruncated)
}

func TestInspectReaderCut(t *testing.T) {
	d, reader, _, _ := bareQueue(t)
	i := inspector(t, d, queueName(t))
	snapshot(t, i)
	path := filepath.Join(d.Path(), queueName(t), reader.Name())
	for _, size := range []int64{4096, 0} {
		must(t, os.Truncate(path, size))
		_, err := i.Snapshot()
		wantErr(t, "mapped", err, shm.ErrTruncated)
		_, err = cq.Inspect(d, queueName(t))
		wantErr(t, "fresh", err, shm.ErrTruncated)
	}
}

func TestInspectLaneScribbled(t *testing.T) {
	for name, scribble := range map[string]func(reader, lane *shm.Object){
		"tail ahead":  func(_, o *shm.Object) { put(t, o, cq.SectLane, 1, 0, 5) },
		"tail behind": func(r, _ *shm.Object) { put(t, r, cq.SectRows, 0, cq.RowBytes+cq.OffHead, 9) },
		"tail wild":   func(_, o *shm.Object) { put(t, o, cq.SectLane, 1, 0, 1<<63) },
	} {
		t.Run(name, func(t *testing.T) {
			d, reader, one, _ := bareQueue(t)
			i := inspector(t, d, queueName(t))
			snapshot(t, i)
			scribble(reader, one)
			onlyFirstBroken(t, snapshot(t, i), cq.ErrCorrupt)
		})
	}
	t.Run("header", func(t *testing.T) {
		d, _, one, _ := bareQueue(t)
		one.Bytes()[0x100]++ // an attribute, under the checksum
		onlyFirstBroken(t, snapshot(t, inspector(t, d, queueName(t))), shm.ErrCorrupt)
	})
	t.Run("version", func(t *testing.T) {
		d, reader, one, _ := bareQueue(t)
		one.Bytes()[0xc] = 77 // ABI major
		onlyFirstBroken(t, snapshot(t, inspector(t, d, queueName(t))), shm.ErrVersion)
		reader.Bytes()[0xc] = 77
		_, err := cq.Inspect(d, queueName(t))
		wantErr(t, "reader", err, shm.ErrVersion)
	})
}

// TestInspectWildWords has a peer that puts anything at all into what it may write.
func TestInspectWildWords(t *testing.T) {
	d, reader, one, two := bareQueue(t)
	i := inspector(t, d, queueName(t))
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for _, s := range []struct {
			o  *shm.Object
			k  shm.SectionKind
			id uint32
		}{{reader, cq.SectQueue, 0}, {reader, cq.SectRows, 0}, {reader, cq.SectHints, 0},
			{one, cq.SectLane, 1}, {two, cq.SectLane, 2}} {
			mem, _, err := s.o.Section(s.k, s.id)
			must(t, err)
			for off := 0; off+8 <= len(mem); off += 8 {
				binary.LittleEndian.PutUint64(mem[off:], rnd.Uint64()>>rnd.IntN(64))
			}
		}
		s, err := i.Snapshot()
		must(t, err)
		for _, l := range s.Lanes {
			bounded(t, l, 4)
		}
	}
}

// bounded checks what must hold however the words were read.
func bounded(t testing.TB, l cq.LaneSnapshot, capacity uint64) {
	t.Helper()
	v := l.Level
	if l.Err == nil && (v.Depth() > capacity || v.Unreleased() > v.Depth() ||
		v.HighWater > capacity || v.HighWater < v.Depth()) {
		t.Errorf("lane %d: %+v with capacity %d", l.Row, v, capacity)
	}
}

func TestInspectBusyQueue(t *testing.T) {
	t.Parallel()
	const size, writers = 4, 2
	d, q := create(t, cq.Options{Size: size})
	i := inspector(t, d, queueName(t))
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range writers {
		w := attach(t, d, queueName(t))
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
	before := cq.LaneSnapshot{}.Level
	for range 2000 {
		s := snapshot(t, i)
		for _, l := range s.Lanes {
			if l.Err != nil {
				t.Fatal(l.Err)
			}
			bounded(t, l, size)
		}
		if s.Level.Head < before.Head || s.Level.Tail < before.Tail {
			t.Fatalf("went back: %+v, then %+v", before, s.Level)
		}
		before = s.Level
	}
	close(stop)
	all.Wait()
}

// TestInspectComingAndGoing looks while the queue is made and destroyed all the time: either it is
// there or it is not.
func TestInspectComingAndGoing(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	name := queueName(t)
	done := make(chan error, 1)
	go func() {
		for range 100 {
			q, err := cq.Create(d, name, cq.Options{Size: 4, MaxLanes: 1})
			if err == nil {
				var w *cq.Writer
				if w, err = cq.Attach(t.Context(), d, name, cq.WriterOptions{}); err == nil {
					err = errors.Join(q.Close(), w.Close())
				}
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	seen := 0
	for {
		select {
		case err := <-done:
			must(t, err)
			t.Logf("seen %d times", seen)
			return
		default:
		}
		i, err := cq.Inspect(d, name)
		if err == nil {
			_, err = i.Snapshot()
			must(t, i.Close())
		}
		if err == nil {
			seen++
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func TestInspectorCloses(t *testing.T) {
	d, _ := create(t, cq.Options{Size: 4})
	i, err := cq.Inspect(d, queueName(t))
	must(t, err)
	must(t, i.Close())
	_, err = i.Snapshot()
	wantErr(t, "snapshot", err, os.ErrClosed)
	must(t, i.Close())
	_, err = cq.Inspect(d, "a/b")
	wantErr(t, "name", err, shm.ErrName)
}
