package cq_test

import (
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestCloseThatFailsLosesNoReport closes an event queue all the time while a registration reports
// to it, which is refused and must not turn the report away.
func TestCloseThatFailsLosesNoReport(t *testing.T) {
	shmtest.Long(t)
	_, e := createEvents(t, cq.EventOptions{Size: 16})
	obj, at := payload(t, nil)
	for range 300 {
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})
		must(t, err)
		var read atomic.Bool
		closing := make(chan struct{})
		go func() {
			defer close(closing)
			for !read.Load() {
				wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}()
		_, err = eqSread(e, &cq.Event{}, time.Minute)
		read.Store(true)
		<-closing
		must(t, err)
		must(t, r.Close())
	}
}

// TestFollowEvents: an event queue between users is left and followed alike, with its records.
func TestFollowEvents(t *testing.T) {
	shmtest.Conforms(t)
	o := cq.EventOptions{Size: 8, Trust: cq.CrossUser, Allow: bothUsers(), DataMaxBytes: 100}
	open := func() *cq.EventQueue {
		e, err := cq.CreateEvents(cq.Unnamed("events"), o)
		must(t, err)
		return e
	}
	former, next := open(), open()
	defer next.Close()
	a, b := connect(t, unix.SOCK_STREAM)
	done := make(chan error, 1)
	go func() { done <- former.Accept(soon(t), a) }()
	w, err := cq.AttachEvents(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser})
	must(t, errors.Join(err, <-done))
	for i := range uint64(4) {
		_, err = w.Write(&cq.Event{Event: cq.EventUser, Context: i, Payload: eventBytes(i)})
		must(t, err)
	}
	_, err = w.WriteErr(&cq.EventError{Context: 4, Err: cq.ETrunc, ErrData: eventBytes(4)})
	must(t, err)
	ev := cq.Event{Payload: make([]byte, 0, 100)}
	_, err = former.Read(&ev, 0)
	must(t, err)
	must(t, errors.Join(a.Close(), b.Close()))
	must(t, former.Detach())
	<-w.ReaderGone()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write", err, cq.ErrPeerGone)

	a, b = connect(t, unix.SOCK_STREAM)
	go func() { done <- next.Accept(soon(t), a) }()
	w2, err := w.Follow(soon(t), b)
	must(t, errors.Join(err, <-done))
	defer w2.Close()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write to the former", err, cq.ErrClosed)
	_, err = w2.Write(&cq.Event{Event: cq.EventUser, Context: 5, Payload: eventBytes(5)})
	must(t, err)
	for _, i := range []uint64{1, 2, 3, 4, 5} {
		if i == 4 {
			bad := cq.EventError{ErrData: make([]byte, 0, 100)}
			_, err := next.ReadErr(&bad, 0)
			if err != nil || bad.Context != i || string(bad.ErrData) != string(eventBytes(i)) {
				t.Errorf("%v, %+v", err, bad)
			}
			continue
		}
		_, err := next.Read(&ev, 0)
		if err != nil || ev.Context != i || string(ev.Payload) != string(eventBytes(i)) {
			t.Errorf("%d: %v, %+v", i, err, ev)
		}
	}
}

func eventBytes(i uint64) []byte {
	b := make([]byte, 60+10*int(i)%40)
	for k := range b {
		b[k] = byte(i) + byte(k)
	}
	return b
}

// TestFollowTells: who follows hears of both readers through the event queue that it was bound to.
func TestFollowTells(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eq, err := cq.CreateEvents(cq.Unnamed("deaths"), cq.EventOptions{})
	must(t, err)
	defer eq.Close()
	first := startReader(t, othersSite)
	w := first.attach()
	must(t, w.BindEvents(eq))
	post(t, w, 0, 3)
	first.expect("read", 1, "0")
	former := w.Stats().Reader
	first.end(w)
	second := startReader(t, othersSite)
	next := second.follow(w)
	want := []struct {
		kind        cq.EventKind
		pid         int
		generation  uint64
		first, last uint64
	}{
		{cq.EventPeerDeath, first.Process.Pid, former, 1, 3},
		{cq.EventPeerNew, second.Process.Pid, next.Stats().Reader, 0, 2},
		{cq.EventPeerDeath, second.Process.Pid, next.Stats().Reader, 2, 2},
	}
	for i, tt := range want {
		if i == 2 {
			second.expect("read", 2, "1 2")
			second.end(next)
		}
		ev := cq.Event{Payload: make([]byte, 0, 128)}
		_, err := eq.ReadContext(soon(t), &ev, cq.ReadOptions{})
		must(t, err)
		p, err := cq.ParsePeerEntry(ev.Payload)
		must(t, err)
		if ev.Event != tt.kind || p.PID != tt.pid || p.Generation != tt.generation ||
			p.Role != cq.PeerReader || p.First != tt.first || p.End != tt.last {
			t.Errorf("event %d: %v %+v, want %+v", i, ev.Event, p, tt)
		}
	}
	must(t, next.Close())
}
