package cq_test

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

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

// TestOverrun from end to end: what every lane published before is read, then the queue is overrun
// for good and every writer is told.
func TestOverrun(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue, Wait: cq.WaitFD})
	a, b := attach(t, d, q.Name()), attach(t, d, q.Name())
	post(t, a, 0, 4)
	post(t, b, 100, 103)
	must(t, b.Credit(1))
	wantErr(t, "overrun", a.Post(&cq.Entry{}), cq.ErrOverrun, syscall.EOVERFLOW, cq.EOverrun)
	got := overrun(t, q)
	slices.Sort(got)
	if want := append(upTo(0, 4), upTo(100, 103)...); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range 3 {
		_, err := cq.Read(q, make([]cq.Msg, 1))
		wantErr(t, "read", err, cq.ErrOverrun)
		_, err = sread(q, make([]cq.Msg, 1), -1)
		wantErr(t, "sread", err, cq.ErrOverrun)
		_, err = sread(q, make([]cq.Msg, 1), -1, 3)
		wantErr(t, "threshold", err, cq.ErrOverrun)
		_, err = q.Peek(1)
		wantErr(t, "peek", err, cq.ErrOverrun)
		_, err = q.PeekContext(t.Context(), 1)
		wantErr(t, "peek", err, cq.ErrOverrun)
		if err := q.ReadErr(&cq.ErrorEntry{}); err != cq.ErrWouldBlock {
			t.Error(err)
		}
		wantErr(t, "trywait: do not sleep", q.TryWait(), cq.ErrWouldBlock)
		for _, w := range []*cq.Writer{a, b} {
			wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrOverrun)
			wantErr(t, "error", w.PostError(&cq.ErrorEntry{}), cq.ErrOverrun)
			wantErr(t, "credit", w.Credit(1), cq.ErrOverrun)
			_, err := w.PostBatch(make([]cq.Entry, 2))
			wantErr(t, "batch", err, cq.ErrOverrun)
		}
		wantErr(t, "credited", b.PostCredited(&cq.Entry{}), cq.ErrOverrun)
	}
	// Who attaches now is told as well, and so is a successor.
	w := attach(t, d, q.Name())
	wantErr(t, "late writer", w.Post(&cq.Entry{}), cq.ErrOverrun)
	must(t, q.Detach())
	next, err := cq.Adopt(d, q.Name(), cq.Options{})
	must(t, err)
	if got := overrun(t, next); len(got) != 0 {
		t.Errorf("the successor reads %v", got)
	}
	wantErr(t, "post", a.Post(&cq.Entry{}), cq.ErrOverrun)
	must(t, next.Close())
}

// TestOverrunIsFinal: room that the reader makes before it knows does not bring a lane back.
func TestOverrunIsFinal(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	w := attach(t, d, q.Name())
	post(t, w, 0, 4)
	wantErr(t, "overrun", w.Post(&cq.Entry{}), cq.ErrOverrun)
	if got := read(t, q, 2); !slices.Equal(got, upTo(0, 2)) {
		t.Fatal(got)
	}
	wantErr(t, "post with room", w.Post(&cq.Entry{Context: 99}), cq.ErrOverrun)
	wantErr(t, "credit with room", w.Credit(1), cq.ErrOverrun)
	must(t, w.Close())
	w = attach(t, d, q.Name())
	wantErr(t, "post of a successor", w.Post(&cq.Entry{Context: 99}), cq.ErrOverrun)
	if got := overrun(t, q); !slices.Equal(got, upTo(2, 4)) {
		t.Errorf("got %v", got)
	}
}

// TestOverrunFromOwnLane is an overrun by the reader's own process.
func TestOverrunFromOwnLane(t *testing.T) {
	d, q := create(t, cq.Options{Size: 2, Overrun: cq.OverrunQueue})
	other := attach(t, d, q.Name())
	w, err := q.Writer()
	must(t, err)
	post(t, w, 0, 2)
	wantErr(t, "overrun", w.Post(&cq.Entry{}), cq.ErrOverrun)
	if got := overrun(t, q); !slices.Equal(got, upTo(0, 2)) {
		t.Error(got)
	}
	wantErr(t, "other lane", other.Post(&cq.Entry{}), cq.ErrOverrun)
	must(t, w.Close())
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
// end does not come.
func TestNothingAfterOverrun(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	a, b := attach(t, d, q.Name()), attach(t, d, q.Name())
	slot, _, err := b.Reserve(1)
	must(t, err)
	slot[0] = cq.Entry{Context: 99}
	for a.Post(&cq.Entry{}) == nil {
	}
	if got := overrun(t, q); len(got) != 4 {
		t.Errorf("got %v", got)
	}
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

// TestOverrunSuccessor: the successor of a reader whose queue was overrun must not be put to sleep.
func TestOverrunSuccessor(t *testing.T) {
	d, q := create(t, cq.Options{Size: 2, Overrun: cq.OverrunQueue, Wait: cq.WaitFD})
	w := attach(t, d, q.Name())
	for w.Post(&cq.Entry{}) == nil {
	}
	_ = overrun(t, q)
	must(t, w.Close())
	must(t, q.Detach())
	q, err := cq.Adopt(d, q.Name(), cq.Options{})
	must(t, err)
	defer q.Close()
	wantErr(t, "trywait", q.TryWait(), cq.ErrWouldBlock)
	_, err = sread(q, make([]cq.Msg, 1), -1)
	wantErr(t, "sread", err, cq.ErrOverrun)
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
	if got := overrun(t, q); !slices.Equal(got, upTo(1, 5)) {
		t.Errorf("got %v", got)
	}
}

// TestOverrunEvent: who only watches an event queue hears of the overrun of a queue that nobody
// reads, whichever lane it is of, and if it came before the event queue was bound; once.
func TestOverrunEvent(t *testing.T) {
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
			q, err := cq.Create(p.d, "small", cq.Options{Size: 2, Overrun: cq.OverrunQueue})
			must(t, err)
			defer func() { must(t, q.Close()) }()
			w := attach(t, p.d, "small")
			if tt.own {
				w, err = q.Writer()
				must(t, err)
				defer func() { must(t, w.Close()) }()
			}
			if !tt.late {
				must(t, q.BindEvents(tt.to(p)))
			}
			for w.Post(&cq.Entry{}) == nil {
			}
			if tt.next {
				must(t, q.Detach())
				q, err = cq.Adopt(p.d, "small", cq.Options{})
				must(t, err)
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
