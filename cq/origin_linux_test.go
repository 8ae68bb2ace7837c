package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// origins are the ways in which a queue says whose an entry is. Each takes what comes next.
var origins = map[string]func(t *testing.T, q *cq.Queue) (contexts []uint64, from cq.Lane){
	"ReadContext": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		dst := make([]cq.Context, 8)
		n, err := readLane(q, dst, &from)
		must(t, err)
		return contexts(dst[:n]), from
	},
	"Peek": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		es, err := q.Peek(8)
		must(t, err)
		return peeked(t, q, es)
	},
	"PeekContext": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		es, err := q.PeekContext(soon(t), 8)
		must(t, err)
		return peeked(t, q, es)
	},
	"Entries": func(t *testing.T, q *cq.Queue) (out []uint64, from cq.Lane) {
		for e, err := range q.Entries(1) {
			must(t, err)
			from, err = q.PeekedLane()
			must(t, err)
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
	from, err := q.PeekedLane()
	must(t, err)
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
	for name, next := range origins {
		for _, shared := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				q := anonymousOthers(t, cq.Options{Size: 8, Shared: shared})
				near, far := join(t, q), startWriter(t, othersSite, q, nil)
				post(t, near, 5, 7)
				far.post(t, 5, 7) // the same contexts: it cannot be told by them
				seen := map[cq.Lane][]uint64{}
				for n := 0; n < 4; {
					got, from := next(t, q)
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
					is, err := q.Lane(want.Row, shm.UUID{})
					must(t, err)
					is.Published = 0
					want.Object, want.Generation = is.Object, is.Generation
					if is != want || !slices.Equal(seen[want], upTo(5, 7)) {
						t.Errorf("row %d has %+v, want %+v; read %v", want.Row, is, want, seen)
					}
				}
				_, err := q.PeekedLane()
				wantErr(t, "nothing is handed out", err, cq.ErrInvalid)
			})
		}
	}
}

// TestOriginLeft: what was read is known to be a writer's also when that has left and its row is
// another one's.
func TestOriginLeft(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 1})
	var before cq.Lane
	for i := range uint64(3) {
		w := join(t, q)
		post(t, w, i, i+1)
		must(t, w.Close())
		dst, from := make([]cq.Context, 8), cq.Lane{}
		n, err := readLane(q, dst, &from)
		if n != 1 || err != nil || from.Object == before.Object || from.UID != os.Geteuid() {
			t.Errorf("%d: %d, %v, %+v after %+v", i, n, err, from, before)
		}
		before = from
		if _, err := q.Lane(1, shm.UUID{}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

// TestOriginGenerations: the entries of writers that had one lane, one after the other, come in
// reads of their own.
func TestOriginGenerations(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 1})
	for i := range uint64(3) {
		w := attach(t, d, q.Name())
		post(t, w, 2*i, 2*i+2)
		must(t, w.Close())
	}
	for i := range uint64(3) {
		dst, from := make([]cq.Context, 8), cq.Lane{}
		n, err := readLane(q, dst, &from)
		if err != nil || !slices.Equal(contexts(dst[:n]), upTo(2*i, 2*i+2)) ||
			from.Generation != i+1 || from.Row != 1 || from.UID != os.Geteuid() {
			t.Errorf("%d: %v, %v, %+v", i, dst[:n], err, from)
		}
	}
}

// TestOriginFailures: failures say whose they are, and events, only to those who ask.
func TestOriginFailures(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8})
	w := join(t, q)
	d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	ew := attachEvents(t, d, e.Name())
	for name, c := range map[string]struct {
		write func() error
		read  func(from *cq.Lane) error
		row   int
	}{
		"ReadErr": {func() error { return w.PostError(&cq.ErrorEntry{Err: cq.EOther}) },
			func(from *cq.Lane) error { return q.ReadErr(&cq.ErrorEntry{From: from}) }, w.Lane()},
		"event": {func() error { _, err := ew.Write(&cq.Event{}); return err },
			func(from *cq.Lane) error {
				_, err := e.Read(&cq.Event{}, cq.FlagPeek)
				must(t, err)
				_, err = e.Read(&cq.Event{From: from}, 0)
				return err
			}, ew.Lane()},
		"awaited event": {func() error { _, err := ew.Write(&cq.Event{}); return err },
			func(from *cq.Lane) error {
				_, err := e.ReadContext(soon(t), &cq.Event{From: from}, cq.ReadOptions{})
				return err
			}, ew.Lane()},
		"own event": {func() error { _, err := e.Write(&cq.Event{}); return err },
			func(from *cq.Lane) error { _, err := e.Read(&cq.Event{From: from}, 0); return err }, 0},
		"error event": {func() error {
			_, err := ew.WriteErr(&cq.EventError{Err: cq.EOther})
			return err
		},
			func(from *cq.Lane) error {
				_, err := e.Read(&cq.Event{}, 0)
				wantErr(t, "read", err, cq.ErrAvail)
				_, err = e.ReadErr(&cq.EventError{From: from}, 0)
				return err
			}, ew.Lane()},
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

// TestOriginHandler: a handler is told of each event and failure who wrote it.
func TestOriginHandler(t *testing.T) {
	got := make(chan cq.Lane)
	d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true,
		Handler: func(ev *cq.Event, err error) {
			var failed *cq.EventError
			switch {
			case ev != nil && ev.From != nil:
				got <- *ev.From
			case errors.As(err, &failed) && failed.From != nil:
				got <- *failed.From
			default:
				got <- cq.Lane{Row: -1}
			}
		}})
	w := attachEvents(t, d, e.Name())
	for _, c := range []struct {
		write    func(*cq.Event) (int, error)
		writeErr func(*cq.EventError) (int, error)
		row      int
	}{{w.Write, w.WriteErr, w.Lane()}, {e.Write, e.WriteErr, 0}, {w.Write, w.WriteErr, w.Lane()}} {
		for _, failed := range []bool{false, true} {
			var err error
			if failed {
				_, err = c.writeErr(&cq.EventError{Err: cq.EOther})
			} else {
				_, err = c.write(&cq.Event{})
			}
			must(t, err)
			if from := <-got; from.Row != c.row || from.PID != os.Getpid() || from.UID != os.Geteuid() {
				t.Errorf("failure %v of lane %d: %+v", failed, c.row, from)
			}
		}
	}
}
