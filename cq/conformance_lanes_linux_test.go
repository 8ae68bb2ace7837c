package cq_test

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
)

// crowded is how many entries a busy writer has waiting, many times what a lane gives in its turn.
const crowded = 250

// TestConformanceLanes is what reads owe where a queue has several writers.
func TestConformanceLanes(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 256}
	for name, take := range map[string]func(*testing.T, *cq.Queue) []uint64{
		"reads": func(t *testing.T, q *cq.Queue) []uint64 { return read(t, q, 2*crowded) },
		"small-reads": func(t *testing.T, q *cq.Queue) (got []uint64) {
			for range crowded + 1 {
				got = append(got, read(t, q, 1)...)
			}
			return got
		},
		"peeks": peekCrowd,
	} {
		each := "no-writer-starves"
		conform(t, each+"/"+name, o, func(t *testing.T, r *rig) {
			ws := []sink{r.w, r.attach(t)}
			for busy, w := range ws {
				postMany(t, w, crowded)
				postTo(t, ws[1-busy], crowded, crowded+1)
				got := take(t, r.q)
				if at := slices.Index(got, crowded); at < 0 || at > 64 {
					t.Errorf("writer %d is busy: what the other one has comes at %d", busy, at)
				}
				_ = drain(t, r.q)
			}
		})
	}
	conform(t, "nothing-behind-an-error", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		other := r.attach(t)
		for i := range uint64(80) { // wherever the ring ends
			if i >= 40 { // and where reads have two lanes to go round
				postTo(t, other, 100, 101)
				wantContexts(t, "another writer", drain(t, r.q), 100)
			}
			ahead := i % 5
			r.post(t, 0, ahead)
			r.postError(t, ahead)
			r.post(t, ahead+1, ahead+3)
			if ahead > 0 {
				wantContexts(t, "ahead of the error", read(t, r.q, 8), upTo(0, ahead)...)
			}
			n, err := cq.Read(r.q, make([]cq.Context, 8))
			wantErr(t, "at the error", err, cq.ErrAvail)
			var e cq.ErrorEntry
			must(t, r.q.ReadErr(&e))
			if n != 0 || e.Context != ahead {
				t.Fatalf("%d entries, and the error is of %d; want %d", n, e.Context, ahead)
			}
			wantContexts(t, "behind it", read(t, r.q, 8), ahead+1, ahead+2)
			if i%2 == 0 { // twice nothing: a read of one lane takes the short cut then
				_ = drain(t, r.q)
				_ = drain(t, r.q)
			}
		}
	})
	conform(t, "no-error-among-the-peeked", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		other := r.attach(t)
		r.post(t, 0, 2)
		es, err := r.q.Peek(2)
		if len(es) != 2 || err != nil {
			t.Fatalf("%d, %v", len(es), err)
		}
		must(t, other.PostError(&cq.ErrorEntry{Context: 7, Err: cq.EOther}))
		for left := 2; left > 0; left-- {
			wantErr(t, "while entries are handed out", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrBusy)
			must(t, r.q.Release(1))
		}
		var e cq.ErrorEntry
		if err := r.q.ReadErr(&e); err != nil || e.Context != 7 {
			t.Errorf("then %+v, %v", e, err)
		}
	})
	eo := cq.EventOptions{Size: 256, MaxLanes: 4}
	conformEQ(t, "no-event-writer-starves", eo, func(t *testing.T, r *eqRig) {
		ws := []eventWriter{r.w, r.near(t)}
		for busy, w := range ws {
			writeEvents(t, w, 0, crowded)
			writeEvents(t, ws[1-busy], crowded, crowded+1)
			got := drainEvents(t, r.e)
			if at := slices.Index(got, crowded); at < 0 || at > 64 {
				t.Errorf("writer %d is busy: the event of the other one comes at %d", busy, at)
			}
		}
	})
}

func postMany(t *testing.T, w sink, n uint64) {
	t.Helper()
	es := make([]cq.Entry, n)
	for i := range es {
		es[i] = cq.Entry{Context: uint64(i)}
	}
	if k, err := w.PostBatch(es); k != len(es) || err != nil {
		t.Fatalf("%d of %d, %v", k, n, err)
	}
}

func peekCrowd(t *testing.T, q *cq.Queue) (got []uint64) {
	t.Helper()
	for len(got) <= crowded {
		got = append(got, peekSome(t, q)...)
	}
	return got
}

func peekSome(t *testing.T, q *cq.Queue) (got []uint64) {
	t.Helper()
	es, err := q.Peek(8)
	must(t, err)
	for i := range es {
		got = append(got, es[i].Context)
	}
	must(t, q.Release(len(es)))
	return got
}
