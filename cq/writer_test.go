package cq_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

func TestPostBatch(t *testing.T) {
	for _, size := range []uint64{1, 2, 8} {
		for start := range size { // every position of the wrap
			q, w := pair(t, cq.Options{Size: int(size)})
			post(t, w, 0, start)
			_ = drain(t, q)
			batch := make([]cq.Entry, size+3)
			for i := range batch {
				batch[i].Context = 100 + uint64(i)
			}
			if n, err := w.PostBatch(nil); n != 0 || err != nil {
				t.Errorf("nothing: %d, %v", n, err)
			}
			if n, err := w.PostBatch(batch); n != int(size) || err != nil {
				t.Errorf("more than fits: %d, %v", n, err)
			}
			if n, err := w.PostBatch(batch[size:]); n != 0 || err != cq.ErrFull {
				t.Errorf("full: %d, %v", n, err)
			}
			if s := w.Stats(); s.Posted != start+size || s.Refused != 1 || s.Publishes != start+1 {
				t.Errorf("%+v", s)
			}
			if w.Next() != start+size {
				t.Errorf("next %d", w.Next())
			}
			wantContexts(t, "the first", read(t, q, 3), upTo(100, 100+min(3, size))...)
			wantContexts(t, "the rest", drain(t, q), upTo(100+min(3, size), 100+size)...)
			must(t, w.Close())
			must(t, q.Close())
		}
	}
}

func TestReserveCommit(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	post(t, w, 0, 5)
	_ = drain(t, q)
	for _, n := range []int{0, -1} {
		_, _, err := w.Reserve(n)
		wantErr(t, "reserve", err, cq.ErrInvalid)
		wantField(t, err, "n")
	}
	a, b, err := w.Reserve(math.MaxInt)
	if len(a) != 3 || len(b) != 5 || err != nil {
		t.Fatalf("%d and %d slots, %v", len(a), len(b), err)
	}
	if got := drain(t, q); got != nil {
		t.Errorf("reserved is not published: %v", got)
	}
	for _, k := range []int{-1, 9} {
		err := w.Commit(k)
		wantErr(t, "commit", err, cq.ErrInvalid)
		wantField(t, err, "k")
	}
	for i := range a {
		a[i] = cq.Entry{Context: 5 + uint64(i)}
	}
	b[0] = cq.Entry{Context: 8}
	must(t, w.Commit(4)) // the rest is not published
	wantErr(t, "commit twice", w.Commit(1), cq.ErrInvalid)
	wantContexts(t, "drained", drain(t, q), upTo(5, 9)...)
	// A second Reserve returns the same slots; what was not committed never was.
	_, _, err = w.Reserve(2)
	must(t, err)
	a, b, err = w.Reserve(1)
	if len(a) != 1 || len(b) != 0 || err != nil {
		t.Fatal(len(a), len(b), err)
	}
	a[0] = cq.Entry{Context: 9}
	must(t, w.Commit(1))
	must(t, w.Commit(0))
	post(t, w, 10, 11)
	wantContexts(t, "drained", drain(t, q), upTo(9, 11)...)
}

// TestCredits: promised room is not handed out otherwise, and a credited post finds it.
func TestCredits(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	if err := w.Credits().Post(&cq.Entry{}); err != cq.ErrNoCredit {
		t.Errorf("without credit: %v", err)
	}
	if err := w.Credits().PostError(&cq.ErrorEntry{}); err != cq.ErrNoCredit {
		t.Errorf("without credit: %v", err)
	}
	wantErr(t, "less than none", w.Credits().Add(-1), cq.ErrInvalid)
	must(t, w.Credits().Add(0))
	must(t, w.Credits().Add(3))
	if w.Credits().Len() != 3 || w.Free() != 5 {
		t.Errorf("%d credits, %d free", w.Credits().Len(), w.Free())
	}
	for _, n := range []int{6, math.MaxInt, math.MaxInt - 2, math.MaxInt32} {
		wantErr(t, fmt.Sprint(n, " more"), w.Credits().Add(n), cq.ErrFull)
	}
	if w.Credits().Len() != 3 {
		t.Fatalf("a refused credit counts: %d", w.Credits().Len())
	}
	if n, err := w.PostBatch(make([]cq.Entry, 8)); n != 5 || err != nil {
		t.Errorf("flood: %d, %v", n, err)
	}
	if _, _, err := w.Reserve(1); err != cq.ErrFull {
		t.Errorf("promised room was handed out: %v", err)
	}
	if err := w.PostError(&cq.ErrorEntry{}); err != cq.ErrFull {
		t.Errorf("promised room was handed out: %v", err)
	}
	must(t, w.Credits().Post(&cq.Entry{Context: 50}))
	must(t, w.Credits().PostError(&cq.ErrorEntry{Context: 51, Err: cq.ETrunc}))
	w.Credits().Return(0)
	w.Credits().Return(-3)
	w.Credits().Return(100)
	if w.Credits().Len() != 0 {
		t.Errorf("%d credits", w.Credits().Len())
	}
	post(t, w, 52, 53)
	got := takeAll(t, q)
	if !slices.Equal(got[5:], []string{"50", "E51", "52"}) {
		t.Errorf("after the flood: %v", got)
	}
}

// TestCreditsNeverFail plays random floods and credits against a reader of random appetite.
func TestCreditsNeverFail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q, w := pair(t, cq.Options{Size: 16})
	for step := range 20000 {
		switch rng.IntN(5) {
		case 0:
			if free := w.Free(); w.Credits().Add(rng.IntN(4)) != nil && free >= 4 {
				t.Fatalf("step %d: no credit with %d free", step, free)
			}
		case 1:
			if _, err := w.PostBatch(make([]cq.Entry, 1+rng.IntN(20))); err != nil && err != cq.ErrFull {
				t.Fatal(err)
			}
		case 2:
			if w.Credits().Len() > 0 {
				if err := w.Credits().Post(&cq.Entry{}); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
		case 3:
			w.Credits().Return(rng.IntN(2))
		case 4:
			_ = read(t, q, 1+rng.IntN(9))
		}
	}
}

// TestOwnLane: the reader's process posts to its own queue.
func TestOwnLane(t *testing.T) {
	eachWait(t, func(t *testing.T, o cq.Options) {
		o.Size = 4
		d, q := create(t, o)
		other := attach(t, d, q.Name())
		w := shmtest.Got(q.Writer()).Or(t)
		if w.Lane() != 0 || w.Stats().Size != 4 {
			t.Errorf("lane %d, cap %d", w.Lane(), w.Stats().Size)
		}
		_, err := q.Writer()
		wantErr(t, "a second one", err, cq.ErrBusy, syscall.EBUSY)
		wantErr(t, "close with it", q.Close(), cq.ErrBusy)
		wantErr(t, "detach with it", q.Detach(), cq.ErrBusy)
		post(t, w, 0, 4)
		wantErr(t, "full", w.Post(&cq.Entry{}), cq.ErrFull)
		post(t, other, 0, 4)
		if got := drain(t, q); len(got) != 8 {
			t.Error(got)
		}
		wait := later(func() { post(t, w, 9, 10) })
		if n, err := sread(q, make([]cq.Msg, 1), -1); n != 1 || err != nil {
			t.Error(n, err)
		}
		wait()
		post(t, w, 10, 12)
		must(t, w.Close())
		must(t, w.Close())
		again, err := q.Writer() // goes on where the first one stopped
		must(t, err)
		if again.Next() != 7 {
			t.Errorf("next %d", again.Next())
		}
		postError(t, again, 12)
		must(t, again.Close())
		if got := takeAll(t, q); !slices.Equal(got, []string{"10", "11", "E12"}) {
			t.Error(got)
		}
	})
}

// overrun reads the queue until it reports its end and returns what came before.
func overrun(t *testing.T, q *cq.Queue) (got []uint64) {
	t.Helper()
	dst := make([]cq.Context, 3)
	for {
		n, err := cq.Read(q, dst)
		got = append(got, contexts(dst[:n])...)
		switch {
		case err == cq.ErrOverrun:
			return got
		case err != nil:
			t.Fatalf("%v after %v", err, got)
		}
	}
}

// TestOverrunIsFinal: room that the reader makes before it knows does not bring a lane back.
func TestOverrunIsFinal(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	w := attach(t, d, q.Name())
	post(t, w, 0, 4)
	wantErr(t, "overrun", w.Post(&cq.Entry{}), cq.ErrOverrun)
	wantContexts(t, "read", read(t, q, 2), upTo(0, 2)...)
	wantErr(t, "post with room", w.Post(&cq.Entry{Context: 99}), cq.ErrOverrun)
	wantErr(t, "credit with room", w.Credits().Add(1), cq.ErrOverrun)
	must(t, w.Close())
	w = attach(t, d, q.Name())
	wantErr(t, "post of a successor", w.Post(&cq.Entry{Context: 99}), cq.ErrOverrun)
	wantContexts(t, "got", overrun(t, q), upTo(2, 4)...)
}

// TestOverrunWakes: a sleeping reader with an empty queue is told of a lane that it cannot see
// entries of, since others took them.
func TestOverrunWakes(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 2, Overrun: cq.OverrunQueue, Spin: -1})
	defer later(func() {
		for w.Post(&cq.Entry{}) == nil {
		}
	})()
	for {
		_, err := sread(q, make([]cq.Msg, 1), time.Minute)
		if err != nil {
			wantErr(t, "read", err, cq.ErrOverrun)
			return
		}
	}
}

// TestNothingAfterOverrun: what was reserved before and is committed after the queue reported its
// end does not come. Nor can one post who gets a free row between the read that found the end and
// the one that reports it.
func TestNothingAfterOverrun(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, MaxLanes: 3, Overrun: cq.OverrunQueue})
	a, b, c := attach(t, d, q.Name()), attach(t, d, q.Name()), attach(t, d, q.Name())
	slot, _, err := b.Reserve(1)
	must(t, err)
	slot[0] = cq.Entry{Context: 99}
	post(t, a, 0, 4)
	wantErr(t, "overrun", a.Post(&cq.Entry{}), cq.ErrOverrun)
	wantContexts(t, "ahead", read(t, q, 4), upTo(0, 4)...)
	post(t, c, 4, 5)
	must(t, c.Close())
	wantContexts(t, "of another", read(t, q, 4), 4)
	late := attach(t, d, q.Name())
	wantErr(t, "post of a late one", late.Post(&cq.Entry{Context: 99}), cq.ErrOverrun)
	wantContexts(t, "then", overrun(t, q))
	must(t, b.Commit(1))
	for range 3 {
		if n, err := cq.Read(q, make([]cq.Msg, 1)); n != 0 || err != cq.ErrOverrun {
			t.Errorf("%d, %v", n, err)
		}
		if _, err := q.Peek(1); err != cq.ErrOverrun {
			t.Error(err)
		}
	}
}

// TestOverrunAfterLook: a lane is filled and overruns between the look that found it empty and the
// one at whether it overran. What it holds comes first.
func TestOverrunAfterLook(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	post(t, w, 0, 1)
	_ = read(t, q, 1)
	post(t, w, 1, 5)
	wantErr(t, "overrun", w.Post(&cq.Entry{}), cq.ErrOverrun)
	wantErr(t, "the look", cq.LookAgain(q, w.Lane()), cq.ErrWouldBlock)
	wantContexts(t, "got", overrun(t, q), upTo(1, 5)...)
}

// TestOverrunEvent: who only watches an event queue hears of the overrun of a queue that nobody
// reads, whichever lane it is of, and if it came before the event queue was bound; once.
func TestOverrunEvent(t *testing.T) {
	shmtest.Conforms(t)
	for _, tt := range []struct {
		name string
		to   func(*boundParts) cq.EventSink
		own  bool
		late bool // the queue is bound when it is overrun already
		next bool // by a successor
	}{
		{name: "own lane", to: toEvents, own: true},
		{name: "another lane", to: toEvents},
		{name: "by a writer of events", to: func(p *boundParts) cq.EventSink { return p.ew }},
		{name: "before it was bound", to: toEvents, late: true},
		{name: "before there was a successor", to: toEvents, late: true, next: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBoundParts(t)
			q, err := cq.Create(cq.Named(p.d, "small"), cq.Options{Size: 2, Overrun: cq.OverrunQueue})
			must(t, err)
			defer func() { must(t, q.Close()) }()
			w := attach(t, p.d, "small")
			if tt.own {
				w = shmtest.Got(q.Writer()).Or(t)
				defer func() { must(t, w.Close()) }()
			}
			if !tt.late {
				must(t, q.BindEvents(tt.to(p)))
			}
			for w.Post(&cq.Entry{}) == nil {
			}
			if tt.next {
				must(t, q.Detach())
				q = shmtest.Got(cq.Open(cq.Named(p.d, "small"), cq.Options{Existing: true})).Or(t)
			}
			if tt.late {
				must(t, q.BindEvents(tt.to(p)))
			}
			_, err = eqSread(p.e, &cq.Event{}, time.Minute)
			wantErr(t, "read of events", err, cq.ErrAvail)
			var ev cq.EventError
			if _, err = p.e.ReadErr(&ev, 0); err != nil || ev.FID != q.FID() || ev.Err != cq.EOverrun {
				t.Errorf("%+v, %v", ev, err)
			}
			_ = overrun(t, q)
			_, err = p.e.Read(&cq.Event{}, 0)
			wantErr(t, "once", err, cq.ErrWouldBlock)
		})
	}
}
