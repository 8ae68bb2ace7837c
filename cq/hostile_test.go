package cq_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// scribbler maps an object of a queue as a hostile peer would.
type scribbler struct{ obj *shm.Object }

func scribble(t testing.TB, d *shm.Dir, queue, file string) scribbler {
	t.Helper()
	sub := shmtest.Have(d.Sub(queue, false)).In(t)
	obj := shmtest.Have(sub.Open(file, shm.ReadWrite)).In(t)
	return scribbler{obj}
}

func (s scribbler) section(t testing.TB, kind shm.SectionKind, id uint32) []byte {
	t.Helper()
	mem, _, err := s.obj.Section(kind, id)
	must(t, err)
	return mem
}

func poke(mem []byte, at int, v uint64) { binary.LittleEndian.PutUint64(mem[at:], v) }
func peek64(mem []byte, at int) uint64  { return binary.LittleEndian.Uint64(mem[at:]) }

// hostileLane is what a writer scribbles over its lane, after four entries.
type hostileLane struct {
	name  string
	do    func(t *testing.T, s scribbler)
	field string
	read  uint64 // entries of the lane that are still read
}

// lanesOf are what writers of either kind scribble.
func lanesOf(kinds ...uint64) (all []hostileLane) {
	lane := func(at int, v func(uint64) uint64) func(*testing.T, scribbler) {
		return func(t *testing.T, s scribbler) {
			words := s.section(t, cq.SectLane, 1)
			poke(words, at, v(peek64(words, at)))
		}
	}
	for name, v := range map[string]func(uint64) uint64{
		"tail beyond the lane": func(v uint64) uint64 { return v + 9 },
		"tail far away":        func(v uint64) uint64 { return v + 1<<60 },
		"tail backwards":       func(v uint64) uint64 { return v - 5 },
		"tail minus one":       func(uint64) uint64 { return ^uint64(0) },
	} {
		all = append(all, hostileLane{name, lane(0, v), "index", 0})
	}
	for _, k := range kinds {
		all = append(all, hostileLane{fmt.Sprint("kind ", k), slotWord(7, k), "entry kind", 2})
	}
	return append(all, hostileLane{"overrun in a queue that has none",
		lane(cq.OffLaneOver, func(uint64) uint64 { return 3 }), "overrun", 4})
}

// slotWord stores a word of the third entry.
func slotWord(word int, v uint64) func(*testing.T, scribbler) {
	return func(t *testing.T, s scribbler) {
		poke(s.section(t, cq.SectSlots, 1), 2*cq.SlotBytes+8*word, v)
	}
}

// TestHostileLane: a writer that writes nonsense loses its lane, once told, and only that.
func TestHostileLane(t *testing.T) {
	t.Parallel()
	for _, tt := range lanesOf(0, 3, 255) {
		for _, how := range []string{"read", "peek", "wait", "trywait"} {
			t.Run(tt.name+" "+how, func(t *testing.T) {
				d, q := create(t, cq.Options{Size: 8, MaxLanes: 3, Wait: cq.WaitFD, Spin: -1})
				bad, good := attach(t, d, q.Name()), attach(t, d, q.Name())
				post(t, bad, 0, 4)
				post(t, good, 100, 104)
				tt.do(t, scribble(t, d, q.Name(), "lane-0001"))
				tt.readAround(t, how, func() ([]uint64, error) { return readHow(q, how) })
				wantErr(t, "post of the bad one", bad.Post(&cq.Entry{}), cq.ErrCorrupt, syscall.EBADMSG)
				post(t, good, 104, 106)
				wantContexts(t, "then", drain(t, q), upTo(104, 106)...)
				sleeps := q.Stats().Sleeps
				eventually(t, "it sleeps", func() bool { // a busy machine lets a short wait pass awake
					err := wait(q, short)
					if !errors.Is(err, cq.ErrTimedOut) {
						t.Fatalf("an idle queue: %v", err)
					}
					return q.Stats().Sleeps > sleeps
				})
				must(t, bad.Close())
				if w := attach(t, d, q.Name()); w.Lane() != 3 {
					t.Errorf("the lane that was given up goes to the next writer")
				}
			})
		}
	}
}

// TestEventHostileLane: the same of events.
func TestEventHostileLane(t *testing.T) {
	for _, tt := range append(lanesOf(0, 200),
		hostileLane{"payload beyond the record", slotWord(2, 233), "payload length", 2},
		hostileLane{"endless payload", slotWord(2, ^uint64(0)), "payload length", 2},
		hostileLane{"payload of 2^63", slotWord(2, 1<<63), "payload length", 2}) {
		t.Run(tt.name, func(t *testing.T) {
			d, e := createEvents(t, cq.EventOptions{Size: 8, MaxLanes: 3, Write: true})
			bad, good := attachEvents(t, d, e.Name()), attachEvents(t, d, e.Name())
			writeEvents(t, bad, 0, 4)
			writeEvents(t, good, 100, 104)
			tt.do(t, scribble(t, d, e.Name(), "lane-0001"))
			ev := cq.Event{Payload: make([]byte, 0, 1000)}
			tt.readAround(t, "read", func() ([]uint64, error) {
				n, err := e.Read(&ev, 0)
				return []uint64{ev.Context}[:min(n, 1)], err
			})
			_, err := bad.Write(&cq.Event{})
			wantErr(t, "write of the bad one", err, cq.ErrCorrupt, syscall.EBADMSG)
			writeEvents(t, good, 104, 106)
			writeEvents(t, e, 106, 107)
			got := drainEvents(t, e)
			slices.Sort(got)
			wantContexts(t, "then", got, upTo(104, 107)...)
		})
	}
}

// readAround reads much more often than there is something: the bad lane, whose entries are below
// 100, is told once, and all of the good one comes.
func (tt *hostileLane) readAround(t *testing.T, how string, read func() ([]uint64, error)) {
	t.Helper()
	var bad, good []uint64
	told := 0
	for range 30 {
		got, err := read()
		for _, c := range got {
			if c < 100 {
				bad = append(bad, c)
			} else {
				good = append(good, c)
			}
		}
		var e *cq.LaneError
		if errors.As(err, &e) {
			told++
			wantErr(t, how, err, cq.ErrCorrupt, syscall.EBADMSG)
			if e.Lane != 1 || e.Field != tt.field || e.PID != os.Getpid() {
				t.Errorf("%+v", e)
			}
		} else if err != nil && !errors.Is(err, cq.ErrWouldBlock) && !errors.Is(err, cq.ErrTimedOut) {
			t.Fatal(err)
		}
	}
	if told != 1 || uint64(len(bad)) != tt.read || !slices.Equal(good, upTo(100, 104)) {
		t.Errorf("told %d times, %v of the lane (want %d), good: %v", told, bad, tt.read, good)
	}
}

// readHow reads once, in one of several ways.
func readHow(q *cq.Queue, how string) ([]uint64, error) {
	dst := make([]cq.Context, 5)
	switch how {
	case "read":
		n, err := cq.Read(q, dst)
		return contexts(dst[:n]), err
	case "wait":
		n, err := sread(q, dst, time.Millisecond)
		return contexts(dst[:n]), err
	case "trywait":
		err := q.TryWait()
		if err == nil {
			return nil, nil // nothing there: the user would sleep
		}
		n, err := cq.Read(q, dst)
		return contexts(dst[:n]), err
	}
	es, err := q.Peek(5)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for i := range es {
		out = append(out, es[i].Context)
	}
	return out, q.Release(len(es))
}

// TestHostileReader: a head that is nonsense costs the writer its lane, with a typed error.
func TestHostileReader(t *testing.T) {
	for _, jump := range []uint64{1, 5, 1 << 40, ^uint64(0)} {
		t.Run(fmt.Sprint(jump), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 4})
			w := attach(t, d, q.Name())
			post(t, w, 0, 4)
			_ = read(t, q, 2)
			post(t, w, 4, 6) // the writer has seen that head
			rows := scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectRows, 0)
			head := rows[cq.RowBytes+cq.OffHead:]
			if jump == 1 {
				poke(head, 0, peek64(head, 0)-1)
			} else {
				poke(head, 0, peek64(head, 0)+jump)
			}
			err := w.Post(&cq.Entry{})
			var e *cq.LaneError
			if !errors.As(err, &e) || e.Lane != 1 || e.Field != "head" {
				t.Errorf("post: %v", err)
			}
			wantErr(t, "post", err, cq.ErrCorrupt, syscall.EBADMSG)
			if w.Free() != 0 {
				t.Errorf("%d free", w.Free())
			}
			wantErr(t, "credit", w.Credits().Add(1), cq.ErrFull)
		})
	}
}

// TestHostileRow: a successor that finds nonsense in its rows goes on with what is possible.
func TestHostileRow(t *testing.T) {
	for _, peeked := range []uint64{0, 3, 7, 10, 100, 1 << 50, ^uint64(0)} {
		d, q := create(t, cq.Options{Size: 4})
		w := attach(t, d, q.Name())
		post(t, w, 0, 4)
		_ = read(t, q, 2)
		must(t, q.Detach())
		rows := scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectRows, 0)
		poke(rows[cq.RowBytes+cq.OffHead:], 8, peeked)
		q = shmtest.Got(cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})).Or(t)
		wantContexts(t, fmt.Sprintf("peeked %d", peeked), drain(t, q), upTo(2, 4)...)
		for i := uint64(4); i < 16; i += 2 { // new entries, also where that index leads
			post(t, w, i, i+2)
			got := read(t, q, 2)
			if !slices.Equal(got, upTo(i, i+2)) || q.Redelivered() {
				t.Errorf("peeked %d: then %v, redelivered %v", peeked, got, q.Redelivered())
			}
		}
		must(t, w.Close())
		must(t, q.Close())
	}
}

// TestHostileHints scribbles over every hint there is, all the time, while entries go through.
func TestHostileHints(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 70, Spin: -1})
	w := attach(t, d, q.Name())
	hints := scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectHints, 0)
	for i := range uint64(300) {
		for at := 0; at+8 <= len(hints); at += 8 {
			poke(hints, at, []uint64{0, ^uint64(0), i, 0x5555555555555555}[i%4])
		}
		post(t, w, i, i+1)
		for got := 0; got == 0; {
			n, err := sread(q, make([]cq.Msg, 2), 3*time.Millisecond)
			if err != nil && !errors.Is(err, syscall.EAGAIN) {
				t.Fatal(err)
			}
			if got = n; n == 0 {
				cq.RingLane(w)
			}
		}
	}
}

// TestHostileFlags: whatever a reader writes beside the parked bit of a writer's row, each way to
// post says so with an error, and none goes on without a slot.
func TestHostileFlags(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const closed, overrun = 1 << 1, 1 << 2
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 1, Spin: -1})
	w := attach(t, d, q.Name())
	must(t, w.Credits().Add(2))
	rows := scribble(t, d, q.Name(), "reader").section(t, cq.SectRows, 0)
	was := peek64(rows, cq.RowBytes)
	for bit := 1; bit < 64; bit++ {
		poke(rows, cq.RowBytes, was|1<<bit)
		want := map[uint64]error{closed: cq.ErrClosed, overrun: cq.ErrOverrun}[1<<bit]
		if want == nil {
			want = cq.ErrCorrupt
		}
		_, _, reserve := w.Reserve(1)
		_, batch := w.PostBatch(make([]cq.Entry, 2))
		for what, err := range map[string]error{"post": w.Post(&cq.Entry{}),
			"error": w.PostError(&cq.ErrorEntry{}), "credited": w.Credits().Post(&cq.Entry{}),
			"credited error": w.Credits().PostError(&cq.ErrorEntry{}), "credit": w.Credits().Add(1),
			"reserve": reserve, "batch": batch} {
			if !errors.Is(err, want) {
				t.Errorf("bit %d: %s: %v, want %v", bit, what, err, want)
			}
		}
		if n := w.Credits().Len(); n != 2 {
			t.Errorf("bit %d: %d credits", bit, n)
		}
		poke(rows, cq.RowBytes, was)
		must(t, w.Post(&cq.Entry{Context: 7}))
		if got := drain(t, q); len(got) != 1 || got[0] != 7 {
			t.Errorf("bit %d: then %v", bit, got)
		}
		was = peek64(rows, cq.RowBytes)
	}
}

// TestHostileHintsOfRefusedLane: a mark that another process of the same user has wiped away comes
// again when the writer finds no room, not as much as it asks for, or none that was not promised,
// or both sides would wait for each other for ever.
func TestHostileHintsOfRefusedLane(t *testing.T) {
	shmtest.Conforms(t)
	for _, tt := range []struct {
		name             string
		promised, posted int
		refused          func(*cq.Writer) error
	}{
		{"full", 0, 8, func(w *cq.Writer) error { return w.Post(&cq.Entry{}) }},
		{"credit", 0, 5, func(w *cq.Writer) error { return w.Credits().Add(4) }},
		{"post", 3, 5, func(w *cq.Writer) error { return w.Post(&cq.Entry{}) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Spin: -1})
			w := attach(t, d, q.Name())
			dst := make([]cq.Msg, 8)
			if _, err := sread(q, dst, time.Millisecond); !errors.Is(err, cq.ErrTimedOut) {
				t.Fatal(err) // the reader knows the lane, and has parked it
			}
			must(t, w.Credits().Add(tt.promised))
			post(t, w, 0, uint64(tt.posted))
			clear(scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectHints, 0))
			if n, err := cq.Read(q, dst); n != 0 || err != cq.ErrWouldBlock {
				t.Fatalf("the mark is not wiped away: %d, %v", n, err)
			}
			if err := tt.refused(w); err != cq.ErrFull {
				t.Fatal(err)
			}
			if n, err := cq.Read(q, dst); n != tt.posted || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// TestHostileHintsBeforeAnError: a reader that sleeps for more than a lane holds, because the mark
// of an error there was wiped away, hears of it from a writer that is refused.
func TestHostileHintsBeforeAnError(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, Spin: -1})
	w := attach(t, d, q.Name())
	dst := make([]cq.Msg, 8)
	if _, err := sread(q, dst, time.Millisecond, 8); !errors.Is(err, cq.ErrTimedOut) {
		t.Fatal(err) // the reader knows the lane, and has parked it
	}
	post(t, w, 0, 2)
	postError(t, w, 2)
	clear(scribble(t, d, q.Name(), cq.ReaderFile).section(t, cq.SectHints, 0))
	woken := make(chan struct{})
	before := q.Stats().Sleeps
	go func() {
		defer close(woken)
		_, _ = sread(q, dst, -1, 8)
	}()
	asleep(t, q, before)
	wantErr(t, "credit", w.Credits().Add(6), cq.ErrFull)
	select {
	case <-woken:
	case <-time.After(tooLong):
		t.Error("nobody told the reader of the error")
		must(t, q.Signal())
		<-woken
	}
}

// FuzzEventLane has arbitrary bytes as a writer's words, slots and detail records. Whatever they
// are, the reader ends, hands out no more than there can be, and another writer's events come in
// order.
func FuzzEventLane(f *testing.F) {
	f.Add(fuzzLane(3, 1), []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(fuzzLane(8, 2), []byte{3, 0, 4, 0, 2, 0x80})
	f.Add(fuzzLane(9, 1), []byte{1, 3})
	f.Add(fuzzLane(^uint64(0), 0), []byte{0, 0, 0})
	for _, n := range []uint64{1, 40, 232, 233, ^uint64(0)} {
		long := fuzzLane(2, 1)
		poke(long, 512+16, n)
		f.Add(long, []byte{0, 5, 0})
		failed := append(fuzzLane(2, 2), make([]byte, 64)...)
		poke(failed, 1024+16, n)
		f.Add(failed, []byte{3, 4, 6})
	}
	f.Fuzz(func(t *testing.T, lane, steps []byte) {
		d := openDir(t)
		o := cq.EventOptions{Size: fuzzSize, MaxLanes: 2, Spin: -1, Wait: cq.WaitFD}
		if len(steps) > 0 && steps[0]&0x80 != 0 {
			o.Overrun = cq.OverrunQueue
		}
		e := shmtest.Got(cq.CreateEvents(cq.Named(d, "fuzz"), o)).Or(t)
		spec := cq.EventLaneSpec(1, e)
		must(t, e.Detach())
		row := make([]byte, cq.RowBytes)
		row[0] = 1
		plantLane(t, d, "fuzz", spec, lane, row)
		w := shmtest.Got(cq.AttachEvents(t.Context(), cq.Named(d, "fuzz"), cq.WriterOptions{})).Or(t)
		e, err := cq.OpenEvents(cq.Named(d, "fuzz"), cq.EventOptions{Existing: true, Spin: -1})
		must(t, err)
		if w.Lane() == 2 {
			for i := range uint64(4) {
				shmtest.Got(w.Write(&cq.Event{Context: 1000 + i, FID: fabric(1)})).Or(t)
			}
		} else {
			_, _ = w.Write(&cq.Event{Context: 1, Payload: make([]byte, 200)})
			_, _ = w.WriteErr(&cq.EventError{Context: 1})
		}
		fuzzSteps(t, steps, w.Lane() == 2, func(step byte) ([]uint64, error) {
			c, err := fuzzEventStep(t, e, step)
			if err != nil {
				return nil, err
			}
			return []uint64{c}, nil
		})
		must(t, w.Close())
		must(t, e.Close())
		must(t, os.RemoveAll(d.Path()+"/fuzz"))
	})
}

// fuzzEventStep makes one call of the reader's and returns the context of an event that was taken.
func fuzzEventStep(t *testing.T, e *cq.EventQueue, step byte) (uint64, error) {
	ev := cq.Event{Payload: make([]byte, 0, int(step>>3)*16)}
	bad := cq.EventError{ErrData: make([]byte, 0, int(step>>3)*16)}
	var err error
	switch step & 7 {
	case 0:
		_, err = e.Read(&ev, 0)
	case 1:
		if _, err = e.Read(&ev, cq.FlagPeek); err == nil {
			err = cq.ErrWouldBlock // nothing was taken
		}
	case 2:
		_, err = eqSread(e, &ev, 50*time.Microsecond)
	case 3:
		_, err = e.ReadErr(&bad, 0)
		ev.Context = bad.Context
	case 4:
		if _, err = e.ReadErr(&bad, cq.FlagPeek); err == nil {
			err = cq.ErrWouldBlock
		}
	case 5:
		err = errors.Join(e.Purge(cq.FID{}), cq.ErrWouldBlock)
	case 6:
		err = errors.Join(e.TryWait(), cq.ErrWouldBlock)
	case 7:
		cq.MarkEventLane(e, 1)
		err = cq.ErrWouldBlock
	}
	var too *cq.Error
	switch {
	case errors.Is(err, cq.ETooSmall) && errors.As(err, &too):
		need := too.Want.(int)
		ev.Payload = make([]byte, 0, need)
		if need > e.Options().DataMaxBytes {
			t.Fatal(err)
		}
		_, err = e.Read(&ev, 0)
	case err == cq.ErrAvail:
		_, err = e.ReadErr(&bad, 0)
		ev.Context = bad.Context
	}
	var lane *cq.LaneError
	if errors.As(err, &lane) && !errors.Is(err, syscall.EBADMSG) {
		t.Fatal(err)
	}
	return ev.Context, err
}
