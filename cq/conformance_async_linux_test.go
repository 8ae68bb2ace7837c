package cq_test

import (
	"context"
	"maps"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// withEvents runs a case with an event queue of its own.
func withEvents(t *testing.T, name string, f func(t *testing.T, e *cq.EventQueue)) {
	t.Helper()
	conformOnce(t, name, func(t *testing.T) {
		_, e := createEvents(t, cq.EventOptions{Size: 16})
		f(t, e)
	})
}

// TestConformanceMRComplete is a registration that ends with an event.
func TestConformanceMRComplete(t *testing.T) {
	withEvents(t, "event", func(t *testing.T, e *cq.EventQueue) {
		obj, at := payload(t, nil)
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e, Context: 77})
		must(t, err)
		defer r.Close()
		var ev cq.Event
		n, err := eqSread(e, &ev, tooLong)
		if n != cq.EventHeaderBytes || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		sameEvent(t, "read", ev, cq.Event{Event: cq.EventMRComplete, FID: r.FID(), Context: 77})
		if r.Key() == cq.KeyNotAvail {
			t.Error("it has no key")
		}
	})
	withEvents(t, "without-a-context", func(t *testing.T, e *cq.EventQueue) {
		obj, at := payload(t, nil)
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e, UserContext: "of the region"})
		must(t, err)
		defer r.Close()
		var ev cq.Event
		_, err = eqSread(e, &ev, tooLong)
		must(t, err)
		if ev.FID != r.FID() || ev.Context != 0 || r.UserContext() != "of the region" {
			t.Errorf("%+v", ev)
		}
	})
	withEvents(t, "purged-at-close", func(t *testing.T, e *cq.EventQueue) {
		obj, at := payload(t, nil)
		var rs []*cq.MemoryRegion
		for range 2 {
			r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
				Access: cq.FlagRemoteRead, Events: e})
			must(t, err)
			rs = append(rs, r)
		}
		must(t, rs[0].Close()) // waits for the registration, whose event nobody read
		var ev cq.Event
		_, err := eqSread(e, &ev, tooLong)
		if err != nil || ev.FID != rs[1].FID() {
			t.Errorf("%+v, %v", ev, err)
		}
		_, err = e.Read(&ev, 0)
		wantErr(t, "the closed one's", err, cq.ErrWouldBlock)
		must(t, rs[1].Close())
	})
	withEvents(t, "failure", func(t *testing.T, e *cq.EventQueue) {
		obj, _ := payload(t, nil)
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: 1 << 40, Length: 8,
			Access: cq.FlagRemoteRead, Events: e, Context: 78})
		must(t, err)
		defer r.Close()
		_, err = eqSread(e, &cq.Event{}, tooLong)
		wantErr(t, "read", err, cq.ErrAvail)
		var ev cq.EventError
		_, err = e.ReadErr(&ev, 0)
		must(t, err)
		if ev.FID != r.FID() || ev.Context != 78 {
			t.Errorf("%+v", ev)
		}
		wantErr(t, "entry", &ev, syscall.EINVAL)
	})
}

// TestConformanceAVAsync is fi_av_insert of a vector that is bound to an event queue.
func TestConformanceAVAsync(t *testing.T) {
	withEvents(t, "complete", func(t *testing.T, e *cq.EventQueue) {
		v := newVector(t, site{}, cq.AddressOptions{})
		wantErr(t, "without events", v.InsertAsync(sockaddrs(0, 1), 1), cq.ErrNoEQ, cq.ENoEQ)
		must(t, v.BindEvents(e))
		must(t, v.InsertAsync([][]byte{sockaddr(0), {1, 2}, sockaddr(1)}, 7))
		_, err := eqSread(e, &cq.Event{}, tooLong)
		wantErr(t, "the bad one comes first", err, cq.ErrAvail)
		var bad cq.EventError
		_, err = e.ReadErr(&bad, 0)
		if err != nil || bad.FID != v.FID() || bad.Context != 7 || bad.Data != 1 {
			t.Errorf("%+v, %v", bad, err)
		}
		wantErr(t, "entry", &bad, syscall.EINVAL)
		var ev cq.Event
		_, err = eqSread(e, &ev, tooLong)
		must(t, err)
		sameEvent(t, "then", ev, cq.Event{Event: cq.EventAVComplete, FID: v.FID(), Context: 7, Data: 2})
		finds(t, v, 0, sockaddr(0))
		finds(t, v, 1, sockaddr(1))
	})
}

// TestConformanceEQBound is an event queue with something bound to it.
func TestConformanceEQBound(t *testing.T) {
	withEvents(t, "busy-while-bound", func(t *testing.T, e *cq.EventQueue) {
		obj, at := payload(t, nil)
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})
		must(t, err)
		wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
		_, err = eqSread(e, &cq.Event{}, tooLong) // it goes on
		must(t, err)
		must(t, r.Close())
		must(t, e.Close())
	})
}

// TestConformanceContext: a context ends every call that blocks, at once, and what comes after that
// is not lost.
func TestConformanceContext(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Spin: -1, UserContext: 0}
	conform(t, "every-blocking-call", o, contextEveryBlockingCall)
}

func contextEveryBlockingCall(t *testing.T, r *rig) {
	e, err := cq.CreateEvents(r.d, "events", cq.EventOptions{Size: 4, Write: true})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	count, err := cq.CreateCounter(r.d, "counter", cq.CounterOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, count.Close()) })
	c, s := channel(t, r.d), waitSet(t, r.d, cq.WaitSetOptions{})
	attachTo(t, c, r.q)
	addTo(t, s, r.q)
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	must(t, c.Inject(r.q))
	gets(t, "an event that nobody acknowledges", c, r.q)

	unnamed, err := cq.CreateAnonymous("unnamed", cq.Options{Size: 4})
	must(t, err)
	t.Cleanup(func() { must(t, unnamed.Close()) })
	other, left := r.another(t, 1, cq.Options{}), channel(t, r.d)
	attachTo(t, left, other.q)
	must(t, left.Inject(other.q))
	gets(t, "one more", left, other.q)

	dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
	calls := map[string]func(ctx context.Context) error{
		"sread": func(ctx context.Context) error {
			_,
				err := cq.ReadContext(ctx, r.q, dst, cq.ReadOptions{})
			return err
		},
		"sreadfrom": func(ctx context.Context) error {
			_, err := cq.ReadContext(ctx, r.q, dst, cq.ReadOptions{Source: src})
			return err
		},
		"threshold": func(ctx context.Context) error {
			_, err := cq.ReadContext(ctx, r.q, dst, cq.ReadOptions{Threshold: 3})
			return err
		},
		"peek": func(ctx context.Context) error { _, err := r.q.PeekContext(ctx, 4); return err },
		"eq": func(ctx context.Context) error {
			_, err := e.ReadContext(ctx, &cq.Event{}, cq.ReadOptions{})
			return err
		},
		"eq peek": func(ctx context.Context) error {
			_, err := e.ReadContext(ctx, &cq.Event{}, cq.ReadOptions{Flags: cq.FlagPeek})
			return err
		},
		"counter": func(ctx context.Context) error { return count.Wait(ctx, 1, cq.WaitOptions{}) },
		"set": func(ctx context.Context) error {
			_, err := s.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{})
			return err
		},
		"channel": func(ctx context.Context) error {
			_,
				err := c.GetEvent(ctx, cq.WaitOptions{})
			return err
		},
		"detach": func(ctx context.Context) error { return left.Detach(ctx, other.q) },
	}
	maps.Copy(calls, meetings(t, r.d, unnamed))
	for name, call := range calls {
		endsWithContext(t, name, call)
	}
	r.post(t, 1, 2)
	if n, err := setWait(s, make([]cq.Waitable, 1), tooLong); n != 1 || err != nil {
		t.Errorf("set: %d, %v", n, err)
	}
	gets(t, "channel", c, r.q)
	wantContexts(t, "queue", drain(t, r.q), 1)
	writeEvents(t, e, 2, 3)
	wantContexts(t, "events", drainEvents(t, e), 2)
	must(t, left.Ack(other.q, 1))
	must(t, left.Detach(t.Context(), other.q))
	must(t, join(t, unnamed).Post(&cq.Entry{Context: 3}))
	wantContexts(t, "who came later", drain(t, unnamed), 3)
}

// endsWithContext has a call that blocks end by cancelling, before and while it waits, and by a
// deadline.
func endsWithContext(t *testing.T, name string, call func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := later(cancel)
	wantErr(t, name, call(ctx), context.Canceled)
	done()
	wantErr(t, name+" of an ended one", call(ctx), context.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wantErr(t, name, call(ctx), context.DeadlineExceeded)
}

// meetings are the calls that wait for another party, which never comes.
func meetings(t *testing.T, d *shm.Dir, q *cq.Queue) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"attach": func(ctx context.Context) error {
			_, err := cq.Attach(ctx, d, "nowhere", cq.WriterOptions{Wait: true})
			return err
		},
		"attach events": func(ctx context.Context) error {
			_, err := cq.AttachEvents(ctx, d, "nowhere", cq.WriterOptions{Wait: true})
			return err
		},
		"accept": func(ctx context.Context) error {
			a, _ := connect(t, unix.SOCK_STREAM) // to somebody who is silent
			return q.Accept(ctx, a)
		},
		"attach over a socket": func(ctx context.Context) error {
			_, b := connect(t, unix.SOCK_STREAM)
			_, err := cq.AttachConn(ctx, b, cq.WriterOptions{})
			return err
		},
		"attach events over a socket": func(ctx context.Context) error {
			_, b := connect(t, unix.SOCK_STREAM)
			_, err := cq.AttachEventsConn(ctx, b, cq.WriterOptions{})
			return err
		},
	}
}
