package cq_test

import (
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestGlance: reads of a shared queue that is empty need no lock, and whatever happens then, the
// next read says it, whatever the read before saw.
func TestGlance(t *testing.T) {
	type state struct {
		d    *shm.Dir
		q    *cq.Queue
		w, x *cq.Writer
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
		"two hot": {happen: func(t *testing.T, s *state) {
			post(t, s.x, 1, 2)
			read(t, s.q, 1)
			post(t, s.x, 2, 3) // its lane is hot: it leaves no mark
		}},
		"handed out": {happen: func(t *testing.T, s *state) {
			post(t, s.w, 1, 2)
			_, err := s.q.Peek(1)
			must(t, err)
			t.Cleanup(func() { must(t, s.q.Release(1)) })
		}, want: cq.ErrBusy},
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
			test.happen(t, s)
			n, err := cq.Read(q, make([]cq.Msg, 1))
			if err != test.want || err == nil && n != 1 {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

// TestGlanceDrives: what is bound with manual progress is driven by reads of an empty queue too,
// from when it is bound.
func TestGlanceDrives(t *testing.T) {
	_, q := create(t, cq.Options{Shared: true})
	_, _ = cq.Read(q, make([]cq.Msg, 1))
	f := &feeder{}
	unbind, err := q.Bind(f, true)
	must(t, err)
	defer unbind()
	for n := int64(1); n < 4; n++ {
		if _, err := cq.Read(q, make([]cq.Msg, 1)); err != cq.ErrWouldBlock {
			t.Error(err)
		}
		if f.calls.Load() < n {
			t.Errorf("read %d does not drive", n)
		}
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

// TestGlanceBesideClose: who looks while the queue is closed finds it empty or closed.
func TestGlanceBesideClose(t *testing.T) {
	for range 50 {
		_, q := create(t, cq.Options{Shared: true, Size: 8})
		var lookers sync.WaitGroup
		begun := make(chan struct{}, 2)
		for range 2 {
			lookers.Go(func() {
				dst := make([]cq.Msg, 1)
				for n := 0; ; n++ {
					_, err := cq.Read(q, dst)
					if n == 100 {
						begun <- struct{}{}
					}
					if err == cq.ErrClosed {
						return
					}
					if err != cq.ErrWouldBlock {
						t.Error(err)
					}
				}
			})
		}
		<-begun
		<-begun
		must(t, q.Close())
		lookers.Wait()
	}
}
