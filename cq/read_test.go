package cq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestManyLanes keeps order per lane over more lanes than one word of hints has bits.
func TestManyLanes(t *testing.T) {
	const lanes, each = 70, 30
	d, q := create(t, cq.Options{Size: 8, MaxLanes: lanes})
	ws := make([]*cq.Writer, lanes)
	for i := range ws {
		ws[i] = attach(t, d, q.Name())
	}
	next := make([]uint64, lanes)
	dst := make([]cq.Tagged, 13)
	for read := 0; read < lanes*each; {
		for i, w := range ws {
			if n := w.Next(); n < each {
				_ = w.Post(&cq.Entry{Context: uint64(i), Tag: n})
			}
		}
		n := shmtest.Got(cq.Read(q, dst)).Or(t)
		for _, e := range dst[:n] {
			if e.Tag != next[e.Context] {
				t.Fatalf("lane %d: %d, want %d", e.Context, e.Tag, next[e.Context])
			}
			next[e.Context]++
		}
		read += n
	}
	if s := q.Stats(); s.Read != lanes*each || s.Lanes != lanes {
		t.Errorf("stats %+v", s)
	}
}

// TestMarks: only the marks that a writer may set arrive; sequence and kind are stamped.
func TestMarks(t *testing.T) {
	es := []cq.Entry{{Meta: ^cq.Meta(0), Context: 5}, {Meta: cq.MetaSolicited, Context: 6},
		{Meta: cq.MetaNoContext}}
	for name, post := range map[string]func(w *cq.Writer) error{
		"one by one": func(w *cq.Writer) error {
			return errors.Join(w.Post(&es[0]), w.Post(&es[1]), w.Post(&es[2]))
		},
		"batch": func(w *cq.Writer) error {
			_, err := w.PostBatch(es)
			return err
		},
		"in place": func(w *cq.Writer) error {
			a, _, err := w.Reserve(3)
			copy(a, es)
			return errors.Join(err, w.Commit(3))
		},
	} {
		t.Run(name, func(t *testing.T) { marks(t, post) })
	}
}

func marks(t *testing.T, post func(w *cq.Writer) error) {
	q, w := pair(t, cq.Options{Size: 4})
	must(t, post(w))
	dst := make([]cq.Entry, 3)
	n := shmtest.Got(cq.Read(q, dst)).Or(t)
	for i, want := range []cq.Meta{cq.MetaSolicited | cq.MetaNoContext, cq.MetaSolicited,
		cq.MetaNoContext} {
		if m := dst[i].Meta; m&^0xff != want|cq.Meta(i)<<32 || m.Seq() != uint32(i) {
			t.Errorf("entry %d of %d: %#x", i, n, m)
		}
		if got := dst[i].Flags&cq.FlagNoContext != 0; got != (want&cq.MetaNoContext != 0) {
			t.Errorf("entry %d: flags %v", i, dst[i].Flags)
		}
	}
	// A format without flags is not written over.
	must(t, w.Post(&cq.Entry{Meta: cq.MetaNoContext, Context: 8}))
	wantContexts(t, "read", read(t, q, 1), 8)
}

func TestPeekRelease(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8})
	a, b := attach(t, d, q.Name()), attach(t, d, q.Name())
	wantErr(t, "release of nothing", q.Release(1), cq.ErrInvalid)
	must(t, q.Release(0))
	for _, n := range []int{0, -1} {
		_, err := q.Peek(n)
		wantErr(t, "peek", err, cq.ErrInvalid)
		wantField(t, err, "n")
	}
	if _, err := q.Peek(1); err != cq.ErrWouldBlock {
		t.Fatal(err)
	}
	post(t, a, 0, 5)
	post(t, b, 100, 105)
	es := shmtest.Got(q.Peek(3)).Or(t)
	base := es[0].Context
	check := func(es []cq.Entry, from, n uint64) {
		t.Helper()
		if uint64(len(es)) != n || es[0].Context != base+from || es[n-1].Context != base+from+n-1 {
			t.Errorf("got %d entries from %d, want %d from %d", len(es), es[0].Context, n, base+from)
		}
	}
	check(es, 0, 3)
	if _, err := cq.Read(q, make([]cq.Msg, 1)); err != cq.ErrBusy {
		t.Errorf("read while peeked: %v", err)
	}
	if err := q.ReadErr(&cq.ErrorEntry{}); err != cq.ErrBusy {
		t.Errorf("readerr while peeked: %v", err)
	}
	must(t, q.Release(1)) // the next peek goes on behind what is out
	es = shmtest.Got(q.Peek(9)).Or(t)
	check(es, 3, 2)
	if _, err := q.Peek(1); err != cq.ErrWouldBlock {
		t.Errorf("peek beyond the lane: %v", err)
	}
	wantErr(t, "release of more", q.Release(5), cq.ErrInvalid)
	wantErr(t, "release of less than nothing", q.Release(-1), cq.ErrInvalid)
	must(t, q.Release(4))
	wantErr(t, "release again", q.Release(1), cq.ErrInvalid)
	es = shmtest.Got(q.Peek(8)).Or(t)
	base = 100 - base
	check(es, 0, 5)
	must(t, q.Release(5))
}

// TestPeekWrap peeks across the end of the lane: a span ends there, the next goes on.
func TestPeekWrap(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	post(t, w, 0, 6)
	_ = drain(t, q)
	post(t, w, 6, 14)
	var got []uint64
	for {
		es, err := q.Peek(5)
		if err == cq.ErrWouldBlock {
			break
		}
		must(t, err)
		for i := range es {
			got = append(got, es[i].Context)
		}
	}
	if !slices.Equal(got, upTo(6, 14)) {
		t.Errorf("%v", got)
	}
	wantErr(t, "post to a lane whose entries are all out", w.Post(&cq.Entry{}), cq.ErrFull)
	must(t, q.Release(3))
	if w.Free() != 3 {
		t.Errorf("%d free, want 3", w.Free())
	}
	must(t, q.Release(5))
	if got := q.Stats().Read; got != 14 {
		t.Errorf("%d read", got)
	}
}

// takeAll reads everything and writes it down: a number for a completion, an E before a failure.
func takeAll(t *testing.T, q *cq.Queue) []string {
	t.Helper()
	var out []string
	dst := make([]cq.Context, 3)
	for {
		n, err := cq.Read(q, dst)
		for _, e := range dst[:n] {
			out = append(out, fmt.Sprint(e.Context))
		}
		switch err {
		case nil:
		case cq.ErrWouldBlock:
			return out
		case cq.ErrAvail:
			if _, err := cq.Read(q, dst); err != cq.ErrAvail {
				t.Fatalf("an error that nobody took is gone: %v", err)
			}
			if _, err := q.Peek(1); err != cq.ErrAvail {
				t.Fatalf("peek: %v", err)
			}
			var e cq.ErrorEntry
			must(t, q.ReadErr(&e))
			out = append(out, fmt.Sprint("E", e.Context))
		default:
			t.Fatal(err)
		}
	}
}

// TestPeekStopsAtError hands out what is before the error, and the error after the release.
func TestPeekStopsAtError(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	post(t, w, 0, 2)
	postError(t, w, 2)
	post(t, w, 3, 4)
	es := shmtest.Got(q.Peek(8)).Or(t)
	if len(es) != 2 {
		t.Fatalf("%d entries", len(es))
	}
	if _, err := q.Peek(8); err != cq.ErrWouldBlock {
		t.Errorf("behind it an error stands: %v", err)
	}
	must(t, q.Release(2))
	if got := takeAll(t, q); !slices.Equal(got, []string{"E2", "3"}) {
		t.Error(got)
	}
}

// TestErrorIsNext: an error that was found stays what comes next, also if lanes before it in the
// round have something by now.
func TestErrorIsNext(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, MaxLanes: 2})
	first, second := attach(t, d, q.Name()), attach(t, d, q.Name())
	postError(t, second, 7)
	_, err := q.Peek(1) // begins at the first lane, and will again
	wantErr(t, "peek", err, cq.ErrAvail)
	post(t, first, 0, 1)
	_, err = cq.Read(q, make([]cq.Context, 2))
	wantErr(t, "read", err, cq.ErrAvail)
	_, err = q.Peek(1)
	wantErr(t, "peek", err, cq.ErrAvail)
	var e cq.ErrorEntry
	must(t, q.ReadErr(&e))
	if got := read(t, q, 1); e.Context != 7 || !slices.Equal(got, upTo(0, 1)) {
		t.Errorf("error %d, then %v", e.Context, got)
	}
}

// TestGlance: reads of a shared queue that is empty need no lock, and whatever happens then, the
// next read says it, whatever the read before saw.
func TestGlance(t *testing.T) {
	type state struct {
		d    *shm.Dir
		q    *cq.Queue
		w, x *cq.Writer
		f    *feeder // bound if it posts
	}
	nothing := func(t *testing.T, q *cq.Queue) {
		t.Helper()
		for range 3 {
			if _, err := cq.Read(q, make([]cq.Msg, 1)); err != cq.ErrWouldBlock {
				t.Fatal(err)
			}
		}
		if !cq.IsEmpty(q) {
			t.Fatal("an empty queue needs the lock")
		}
	}
	closes := func(t *testing.T, s *state) { must(t, s.q.Close()) }
	tests := map[string]struct {
		o      cq.Options
		fresh  bool // nothing was posted before
		every  int  // how often the feeder posts
		happen func(t *testing.T, s *state)
		want   error
	}{
		"post":             {happen: func(t *testing.T, s *state) { post(t, s.w, 1, 2) }},
		"post of a parked": {happen: func(t *testing.T, s *state) { post(t, s.x, 1, 2) }},
		"post of a newcomer": {happen: func(t *testing.T, s *state) {
			post(t, attach(t, s.d, s.q.Name()), 1, 2)
		}},
		"error": {happen: func(t *testing.T, s *state) { postError(t, s.w, 1) },
			want: cq.ErrAvail},
		"post of a feeder": {every: 1, happen: func(t *testing.T, s *state) { s.f.w = s.w }},
		"two hot": {happen: func(t *testing.T, s *state) {
			post(t, s.x, 1, 2)
			read(t, s.q, 1)
			post(t, s.x, 2, 3) // its lane is hot: it leaves no mark
		}},
		"two hot of a new one": {fresh: true, happen: func(t *testing.T, s *state) {
			post(t, s.w, 0, 1)
			post(t, s.x, 0, 1)
			read(t, s.q, 2)
			post(t, s.x, 1, 2)
		}},
		"handed out": {happen: func(t *testing.T, s *state) {
			post(t, s.w, 1, 2)
			shmtest.Got(s.q.Peek(1)).Or(t)
			t.Cleanup(func() { must(t, s.q.Release(1)) })
		}, want: cq.ErrBusy},
		"left by who had the lock": {happen: func(t *testing.T, s *state) {
			post(t, s.w, 1, 4)
			shmtest.Got(s.q.Peek(1)).Or(t)
			must(t, s.q.Release(1))
			read(t, s.q, 1) // which looks closer, and opens the door again
		}},
		"overrun": {o: cq.Options{Overrun: cq.OverrunQueue}, want: cq.ErrOverrun,
			happen: func(t *testing.T, s *state) {
				post(t, s.w, 0, 8)
				wantErr(t, "overrun", s.w.Post(&cq.Entry{}), cq.ErrOverrun)
				read(t, s.q, 8)
			}},
		"close":              {happen: closes, want: cq.ErrClosed},
		"close of a new one": {fresh: true, happen: closes, want: cq.ErrClosed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := test.o
			o.Shared, o.Size = true, 8
			d, q := create(t, o)
			nothing(t, q)
			s := &state{d: d, q: q, w: attach(t, d, q.Name()), x: attach(t, d, q.Name())}
			nothing(t, q)
			if !test.fresh {
				post(t, s.w, 0, 1)
				read(t, q, 1)
				nothing(t, q)
			}
			if s.f = (&feeder{every: test.every}); test.every > 0 {
				unbind := shmtest.Got(q.Bind(s.f, true)).Or(t)
				t.Cleanup(unbind)
				nothing(t, q)
			}
			test.happen(t, s)
			n, err := cq.Read(q, make([]cq.Msg, 1))
			if err != test.want || err == nil && n != 1 {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// TestGlanceNever: a queue that has an entry at every moment is never found empty, while entries
// come in two lanes and are taken, whose marks and heat come and go with them.
func TestGlanceNever(t *testing.T) {
	d, q := create(t, cq.Options{Shared: true, Size: 8, Wait: cq.WaitFD})
	ws := []*cq.Writer{attach(t, d, q.Name()), attach(t, d, q.Name())}
	post(t, ws[0], 0, 1)
	var lookers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		lookers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				for range 100 {
					if cq.IsEmpty(q) {
						t.Error("found empty")
						return
					}
				}
			}
		})
	}
	for i := range uint64(20_000) {
		w := ws[0]
		switch i % 32 {
		case 0, 1:
			w = ws[1]
		case 8: // both are parked, and for some rounds the first alone has entries
			wantErr(t, "trywait", q.TryWait(), cq.ErrWouldBlock)
		}
		post(t, w, i, i+1)
		read(t, q, 1)
	}
	close(stop)
	lookers.Wait()
}

// TestDoor: whoever takes the lock of a shared queue waits for a goroutine that takes from the lane
// without it; what that one leaves is read then.
func TestDoor(t *testing.T) {
	calls := map[string]func(t *testing.T, q *cq.Queue){
		"read": func(t *testing.T, q *cq.Queue) { read(t, q, 1) },
		"peek": func(t *testing.T, q *cq.Queue) {
			es, err := q.Peek(1)
			if err != nil || es[0].Context != 1 || q.Release(1) != nil {
				t.Error(es, err)
			}
		},
		"wait":  func(t *testing.T, q *cq.Queue) { wantErr(t, "trywait", q.TryWait(), cq.ErrWouldBlock) },
		"close": func(t *testing.T, q *cq.Queue) { must(t, q.Close()) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Shared: true, Size: 8, Wait: cq.WaitFD})
			post(t, w, 0, 2)
			read(t, q, 1)
			var left atomic.Bool
			leave := cq.GoIn(q)
			defer later(func() { left.Store(true); leave() })()
			call(t, q)
			if !left.Load() {
				t.Error("somebody was inside")
			}
		})
	}
}

// TestOpenAround: a read without the lock goes on around the end of the ring.
func TestOpenAround(t *testing.T) {
	q, w := pair(t, cq.Options{Shared: true, Size: 8})
	post(t, w, 0, 6)
	read(t, q, 6)
	post(t, w, 6, 14)
	dst, src := make([]cq.Msg, 8), make([]cq.Addr, 8)
	n, err := cq.ReadFrom(q, dst, src)
	if n != 8 || dst[7].Context != 13 || src[7] != cq.AddrNotAvail {
		t.Error(n, err, dst, src)
	}
}

// blocking are the wait objects with which a queue can block.
var blocking = []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield}

func eachWait(t *testing.T, f func(t *testing.T, o cq.Options)) {
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) { f(t, cq.Options{Size: 8, Wait: wait, Spin: -1}) })
	}
}

// atLeast waits for min entries into a buffer for 32.
func atLeast(q *cq.Queue, min int, timeout time.Duration) (int, error) {
	return sread(q, make([]cq.Context, 32), timeout, min)
}

// TestThresholdPart: whatever ends the wait, what is there is the result.
func TestThresholdPart(t *testing.T) {
	for name, end := range map[string]func(q *cq.Queue, cancel func()){
		"context":    func(_ *cq.Queue, cancel func()) { cancel() },
		"signal":     func(q *cq.Queue, _ func()) { _ = q.Signal() },
		"signal all": func(q *cq.Queue, _ func()) { _ = q.SignalAll() },
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 8, Spin: -1})
			post(t, w, 0, 2)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer repeatedly(func(uint64) { end(q, cancel) })()
			n, err := cq.ReadContext(ctx, q, make([]cq.Msg, 4), cq.ReadOptions{Threshold: 3})
			if n != 2 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

const short = 5 * time.Millisecond

func wait(q *cq.Queue, timeout time.Duration) error {
	_, err := sread(q, make([]cq.Context, 4), timeout)
	return err
}
