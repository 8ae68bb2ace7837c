package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// origins are the ways in which a queue says whose an entry is. Each takes what comes next.
var origins = map[string]func(t *testing.T, q *cq.Queue) (contexts []uint64, from cq.Lane){
	"ReadContext": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		dst := make([]cq.Context, 8)
		n := shmtest.Got(readLane(q, dst, &from)).Or(t)
		return contexts(dst[:n]), from
	},
	"Peek": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		es := shmtest.Got(q.Peek(8)).Or(t)
		return peeked(t, q, es)
	},
	"PeekContext": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		es := shmtest.Got(q.PeekContext(soon(t), 8)).Or(t)
		return peeked(t, q, es)
	},
	"Entries": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		for e, err := range q.Entries(1) {
			must(t, err)
			from = shmtest.Got(q.PeekedLane()).Or(t)
			out = append(out, e.Context)
		}
		return out, from
	},
}

// readLane reads the entries of one writer, and says whose they are.
func readLane[T cq.Readable](q *cq.Queue, dst []T, from *cq.Lane) (int, error) {
	return cq.ReadContext(context.Background(), q, dst, cq.ReadOptions{From: from, Timeout: -1})
}

// peeked releases what was handed out, and says whose it was.
func peeked(t *testing.T, q *cq.Queue, es []cq.Entry) (out []uint64, from cq.Lane) {
	from = shmtest.Got(q.PeekedLane()).Or(t)
	for i := range es {
		out = append(out, es[i].Context)
	}
	must(t, q.Release(len(es)))
	return out, from
}

// TestOriginOthers: whatever a writer of another user puts into its entries, a read can tell that
// it is that one's, by what the kernel said.
func TestOriginOthers(t *testing.T) {
	t.Parallel()
	var qs []*cq.Queue
	var nexts []func(*testing.T, *cq.Queue) ([]uint64, cq.Lane)
	for _, next := range origins {
		for _, shared := range []bool{false, true} {
			qs = append(qs, anonymousOthers(t, cq.Options{Size: 8, Shared: shared}))
			nexts = append(nexts, next)
		}
	}
	var nears []*cq.Writer
	for _, q := range qs {
		nears = append(nears, join(t, q))
	}
	far := startWriters(t, othersSite, nil, qs...)
	for i, q := range qs {
		near := nears[i]
		post(t, near, 5, 7)
		far.do(t, "use", uint64(i))
		far.post(t, 5, 7) // the same contexts: it cannot be told by them
		seen := map[cq.Lane][]uint64{}
		for n := 0; n < 4; {
			got, from := nexts[i](t, q)
			n += len(got)
			id := from
			id.Published = 0
			seen[id] = append(seen[id], got...)
			if from.Published != 2 {
				t.Errorf("%+v has published 2", from)
			}
		}
		for _, want := range []cq.Lane{
			{Row: near.Lane(), PID: os.Getpid(), UID: os.Geteuid()},
			{Row: far.lane, PID: far.Process.Pid, UID: nobody}} {
			is := shmtest.Got(q.Lane(want.Row, shm.UUID{})).Or(t)
			is.Published = 0
			want.Object, want.Generation = is.Object, is.Generation
			if is != want || !slices.Equal(seen[want], upTo(5, 7)) {
				t.Errorf("row %d has %+v, want %+v; read %v", want.Row, is, want, seen)
			}
		}
		_, err := q.PeekedLane()
		wantErr(t, "nothing is handed out", err, cq.ErrInvalid)
	}
}

// TestOriginGenerations: the entries of writers that had one lane, or row, one after the other,
// come in reads of their own, also when those have left.
func TestOriginGenerations(t *testing.T) {
	for _, at := range []site{{}, {memfd: true, others: true}} {
		q := at.create(t, cq.Options{Size: 8, MaxLanes: 1})
		var before cq.Lane
		reads := func(i uint64) {
			dst, from := make([]cq.Context, 8), cq.Lane{}
			n, err := readLane(q, dst, &from)
			if err != nil || !slices.Equal(contexts(dst[:n]), upTo(2*i, 2*i+2)) || from.Row != 1 ||
				from.UID != os.Geteuid() || !at.others && from.Generation != i+1 ||
				at.others && from.Object == before.Object {
				t.Errorf("%v %d: %v, %v, %+v after %+v", at, i, dst[:n], err, from, before)
			}
			before = from
		}
		for i := range uint64(3) {
			w := shmtest.Got(at.tryAttach(t, q)).Or(t)
			post(t, w, 2*i, 2*i+2)
			must(t, w.Close())
			if at.others { // or there is no row for the next one
				reads(i)
			}
		}
		for i := uint64(0); i < 3 && !at.others; i++ {
			reads(i)
		}
	}
}

// TestOriginShortCuts: a read says whose its entries are also where it has a short cut around the
// look at all lanes.
func TestOriginShortCuts(t *testing.T) {
	t.Parallel()
	for name, lanes := range map[string]int{"many-lanes": 200, "a-feeder": 4} {
		t.Run(name, func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, MaxLanes: lanes})
			if name == "a-feeder" {
				unbind := shmtest.Got(q.Bind(&feeder{again: -1}, true)).Or(t)
				defer unbind()
			}
			w := attach(t, d, q.Name())
			for i := range uint64(5) {
				post(t, w, i, i+1)
				dst, from := make([]cq.Context, 8), cq.Lane{}
				n, err := readLane(q, dst, &from)
				if n != 1 || err != nil || from.Row != w.Lane() || from.Published != i+1 {
					t.Errorf("read %d: %d, %v, %+v", i, n, err, from)
				}
			}
		})
	}
}

// TestOriginFailures: failures say whose they are, and events, only to those who ask. A handler is
// told of each.
func TestOriginFailures(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8})
	w := join(t, q)
	d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	ew := attachEvents(t, d, e.Name())
	got := make(chan cq.Lane)
	handled := shmtest.Have(cq.CreateEvents(cq.Named(d, "handled"), cq.EventOptions{Size: 8,
		Write: true, Handler: func(ev *cq.Event, err error) {
			var failed *cq.EventError
			switch {
			case ev != nil && ev.From != nil:
				got <- *ev.From
			case errors.As(err, &failed) && failed.From != nil:
				got <- *failed.From
			default:
				got <- cq.Lane{Row: -1}
			}
		}})).In(t)
	hw := attachEvents(t, d, "handled")
	told := func(from *cq.Lane) error {
		if lane := <-got; from != nil {
			*from = lane
		}
		return nil
	}
	failed := func(w interface {
		WriteErr(*cq.EventError) (int, error)
	}) error {
		_, err := w.WriteErr(&cq.EventError{Err: cq.EOther})
		return err
	}
	written := func(w interface {
		Write(*cq.Event) (int, error)
	}) error {
		_, err := w.Write(&cq.Event{})
		return err
	}
	for name, c := range map[string]struct {
		write func() error
		read  func(from *cq.Lane) error
		row   int
	}{
		"ReadErr": {func() error { return w.PostError(&cq.ErrorEntry{Err: cq.EOther}) },
			func(from *cq.Lane) error { return q.ReadErr(&cq.ErrorEntry{From: from}) }, w.Lane()},
		"event": {func() error { return written(ew) },
			func(from *cq.Lane) error {
				shmtest.Got(e.Read(&cq.Event{}, cq.FlagPeek)).Or(t)
				_, err := e.Read(&cq.Event{From: from}, 0)
				return err
			}, ew.Lane()},
		"awaited event": {func() error { return written(ew) },
			func(from *cq.Lane) error {
				_, err := e.ReadContext(soon(t), &cq.Event{From: from}, cq.ReadOptions{})
				return err
			}, ew.Lane()},
		"own event": {func() error { return written(e) },
			func(from *cq.Lane) error { _, err := e.Read(&cq.Event{From: from}, 0); return err }, 0},
		"error event": {func() error { return failed(ew) },
			func(from *cq.Lane) error {
				_, err := e.Read(&cq.Event{}, 0)
				wantErr(t, "read", err, cq.ErrAvail)
				_, err = e.ReadErr(&cq.EventError{From: from}, 0)
				return err
			}, ew.Lane()},
		"handled":             {func() error { return written(hw) }, told, hw.Lane()},
		"handled failure":     {func() error { return failed(hw) }, told, hw.Lane()},
		"own handled":         {func() error { return written(handled) }, told, 0},
		"own handled failure": {func() error { return failed(handled) }, told, 0},
	} {
		must(t, c.write())
		var from cq.Lane
		must(t, c.read(&from))
		if from.Row != c.row || from.PID != os.Getpid() || from.UID != os.Geteuid() ||
			from.Published == 0 {
			t.Errorf("%s: %+v", name, from)
		}
		must(t, c.write())
		must(t, c.read(nil))
	}
}

// TestPublished: how much a writer published is known while it is there and when it is gone, read
// or not, whatever kind of queue it is.
func TestPublished(t *testing.T) {
	d := shmtest.Have(shm.OpenDir("")).In(t)
	named := shmtest.Got(cq.Create(cq.Named(d, "published"), cq.Options{})).Or(t)
	w1 := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "published"), cq.WriterOptions{})).Or(t)
	own := anonymous(t, cq.Options{})
	w2 := shmtest.Got(tryJoin(t, own)).Or(t)
	others := anonymousOthers(t, cq.Options{})
	w3 := join(t, others)
	for _, c := range []struct {
		q *cq.Queue
		w *cq.Writer
	}{{named, w1}, {own, w2}, {others, w3}} {
		lane := shmtest.Got(c.q.Lane(c.w.Lane(), shm.UUID{})).Or(t)
		check := func(want uint64) {
			t.Helper()
			if l, err := c.q.Lane(lane.Row, lane.Object); err != nil || l.Published != want {
				t.Errorf("%s: %+v, %v, want %d", c.q.Name(), l, err, want)
			}
		}
		check(0)
		for i := range uint64(5) {
			must(t, c.w.Post(&cq.Entry{Context: i}))
			check(c.w.Next())
		}
		must(t, c.w.Close())
		check(5)
		var es [8]cq.Msg
		if n, err := cq.Read(c.q, es[:]); n != 5 {
			t.Errorf("read %d, %v", n, err)
		}
		_, _ = cq.Read(c.q, es[:]) // may retire the lane
		check(5)
		if _, err := c.q.Lane(1<<20, lane.Object); !errors.Is(err, cq.ErrInvalid) {
			t.Errorf("lane that there is not: %v", err)
		}
	}
	publishedInOneRow(t)
	must(t, named.Close())
	if _, err := named.Lane(1, shm.UUID{1}); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// publishedInOneRow: of writers of other users who had a row one after the other each is asked for
// by its own lane.
func publishedInOneRow(t *testing.T) {
	t.Helper()
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 1})
	var lanes []shm.UUID
	total := uint64(0)
	want := func(which int, n uint64, stale bool) {
		t.Helper()
		got, err := q.Lane(1, lanes[which])
		if errors.Is(err, shm.ErrStale) != stale || !stale && (err != nil || got.Published != n ||
			got.Row != 1 || got.Object != lanes[which] || got.UID != os.Geteuid()) {
			t.Errorf("writer %d of %d: %+v, %v, want %d, stale %v", which, len(lanes), got, err, n,
				stale)
		}
	}
	for i := range 3 {
		w := join(t, q)
		lane := shmtest.Got(q.Lane(1, shm.UUID{})).Or(t)
		lanes = append(lanes, lane.Object)
		want(i, total, false)
		if i > 0 {
			want(i-1, total, false)
		}
		post(t, w, 0, 2)
		total += 2
		want(i, total, false)
		if i > 0 {
			want(i-1, total-2, false) // not the entries of the next one
		}
		if i > 1 {
			want(i-2, 0, true)
		}
		must(t, w.Close())
		for retired := uint64(i) + 1; q.Stats().Retired < retired; {
			_ = drain(t, q)
		}
		want(i, total, false)
	}
	if _, err := q.Lane(1, shm.UUID{1}); !errors.Is(err, shm.ErrStale) {
		t.Errorf("by another object: %v", err)
	}
	if _, err := q.Lane(1, shm.UUID{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("object of a row without a writer: %v", err)
	}
}
