package cq_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// feeder posts a completion every few times that it is driven.
type feeder struct {
	w      *cq.Writer
	every  int
	calls  atomic.Int64
	overun atomic.Pointer[cq.Queue]
	again  time.Duration
}

func (f *feeder) Progress() time.Duration {
	if n := f.calls.Add(1); f.w != nil && n%int64(f.every) == 0 {
		_ = f.w.Post(&cq.Entry{Context: uint64(n)})
	}
	return f.again
}

func (f *feeder) Overrun(q *cq.Queue) { f.overun.Store(q) }

// TestBindKeepsOpen: what is bound to a queue keeps it from being closed.
func TestBindKeepsOpen(t *testing.T) {
	d := openDir(t)
	q, err := cq.Create(d, queueName(t), cq.Options{})
	must(t, err)
	f := &feeder{}
	unbind, err := q.Bind(f, false)
	must(t, err)
	wantErr(t, "bound", q.Close(), cq.ErrBusy)
	wantErr(t, "bound", q.Detach(), cq.ErrBusy)
	if _, err := cq.Read(q, make([]cq.Msg, 1)); err != cq.ErrAgain || f.calls.Load() != 0 {
		t.Errorf("%v; a feeder that drives itself was driven %d times", err, f.calls.Load())
	}
	unbind()
	unbind()
	must(t, q.Close())
	_, err = q.Bind(f, false)
	wantErr(t, "closed", err, cq.ErrClosed)
}

// TestOverrunNotice: an overrun is told to the bound event queue and to feeders, once, and the
// queue's valid entries are still read.
func TestOverrunNotice(t *testing.T) {
	d := openDir(t)
	q, w := member(t, d, "q", cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	events, err := cq.CreateEvents(d, "events", cq.EventOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, events.Close()) })
	q.BindEvents(events)
	f := &feeder{}
	unbind, err := q.Bind(f, false)
	must(t, err)
	t.Cleanup(unbind)
	post(t, w, 0, 4)
	wantErr(t, "the fifth", w.Post(&cq.Entry{}), cq.ErrOverrun)
	var e cq.EventError
	if _, err := events.ReadErr(&e); err != cq.ErrAgain {
		t.Errorf("before the reader knows: %v", err)
	}
	if got := read(t, q, 8); len(got) != 4 {
		t.Errorf("read %v", got)
	}
	for range 2 {
		_, err = cq.Read(q, make([]cq.Msg, 8))
		wantErr(t, "drained", err, cq.ErrOverrun, cq.EOverrun)
	}
	if _, err := events.ReadErr(&e); err != nil || e.FID != q.FID() || !errors.Is(&e, cq.EOverrun) {
		t.Errorf("event %v, %v", &e, err)
	}
	if _, err := events.ReadErr(&e); err != cq.ErrAgain {
		t.Errorf("a second event: %v", err)
	}
	if f.overun.Load() != q {
		t.Error("the feeder was not told")
	}
}

// TestEventsInSets waits for completions and events with one set, and with an event queue that was
// opened for it.
func TestEventsInSets(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	q, w := member(t, d, "q", cq.Options{}, s)
	events, err := cq.CreateEvents(d, "events",
		cq.EventOptions{Write: true, Wait: cq.WaitInSet, WaitSet: s})
	must(t, err)
	t.Cleanup(func() { must(t, events.Close()) })
	_, err = events.ReadTimeout(&cq.Event{}, 0)
	wantErr(t, "sread", err, cq.ErrNoWait)
	dst := make([]cq.Waitable, 2)
	for range 10 {
		wait := later(func() {
			_, err := events.Write(&cq.Event{Event: cq.EventUser})
			must(t, err)
		})
		if n, err := s.Wait(t.Context(), dst); n != 1 || err != nil || dst[0] != cq.Waitable(events) {
			t.Fatal(n, err)
		}
		wait()
		if _, err := events.Read(&cq.Event{}); err != nil {
			t.Fatal(err)
		}
		wait = later(func() { post(t, w, 0, 1) })
		if n, err := s.Wait(t.Context(), dst); n != 1 || err != nil || dst[0] != cq.Waitable(q) {
			t.Fatal(n, err)
		}
		wait()
		drain(t, q)
	}
	handled, err := cq.CreateEvents(d, "handled",
		cq.EventOptions{Handler: func(*cq.Event, error) {}})
	must(t, err)
	wantErr(t, "one with a handler", s.Add(handled), cq.ErrHandled)
	must(t, handled.Close())
}
