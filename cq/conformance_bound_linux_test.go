package cq_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestConformanceCQBound is a queue with something bound to it.
func TestConformanceCQBound(t *testing.T) {
	t.Parallel()
	conform(t, "busy-while-bound", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.w.Bind(cq.FlagTransmit))
		must(t, r.w.Begin(0))
		unbind := shmtest.Got(r.q.Bind(&feeder{again: -1}, false)).Or(t)
		busy := func(what string) {
			for range 2 {
				wantErr(t, "close of the queue "+what, r.q.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}
		wantErr(t, "close of a bound writer", r.w.Close(), cq.ErrBusy, syscall.EBUSY)
		busy("with an endpoint and a feeder")
		must(t, r.w.Complete(&cq.Entry{Context: 1, Flags: cq.FlagSend}, 0))
		wantContexts(t, "the operation that was begun", read(t, r.q, 2), 1)
		must(t, r.w.Unbind())
		busy("with a feeder")
		if !r.memfd {
			wantErr(t, "detach with a feeder", r.q.Detach(), cq.ErrBusy, syscall.EBUSY)
		}
		must(t, r.w.Bind(cq.FlagTransmit))
		unbind()
		unbind()
		if !r.far { // an endpoint of another process does not keep it
			busy("with an endpoint")
			must(t, r.w.Unbind())
		}
		must(t, r.q.Close())
	})
}

// natives are the wait objects, and how a user of the library is refused who asks for one.
var natives = map[cq.WaitObject]error{cq.WaitNone: cq.ErrNoData, cq.WaitUnspec: syscall.ENOSYS,
	cq.WaitYield: syscall.ENOSYS, cq.WaitFD: nil, cq.WaitPollFD: nil, cq.WaitMutexCond: nil}

// wantNative checks what a queue of either kind, which has a wait object, says when it is asked.
func wantNative(t *testing.T, has, wait cq.WaitObject, q interface {
	GetWait() (cq.Native, error)
}) {
	t.Helper()
	n, err := q.GetWait()
	if has != wait || n.Object != wait || (n.FD >= 0) != (wait == cq.WaitFD) ||
		(len(n.PollFDs) == 1) != (wait == cq.WaitPollFD) ||
		(n.Cond != nil) != (wait == cq.WaitMutexCond) {
		t.Errorf("%v: %+v; want %v", has, n, wait)
	}
	if refused := natives[wait]; refused != nil {
		wantErr(t, "getwait", err, refused)
		return
	}
	must(t, err)
	if again, err := q.GetWait(); err != nil || again.ChangeIndex != n.ChangeIndex {
		t.Errorf("the list is the same but its index is not: %+v, %v", again, err)
	}
}

// TestConformanceCQControl is fi_control of a queue.
func TestConformanceCQControl(t *testing.T) {
	t.Parallel()
	for wait := range natives {
		name := "getwait"
		conform(t, name+"/"+wait.String(), cq.Options{Wait: wait}, func(t *testing.T, r *rig) {
			wantNative(t, r.q.Options().Wait, wait, r.q)
		})
	}
}

// TestConformanceCQIterator is ibv_start_poll, ibv_next_poll and ibv_end_poll.
func TestConformanceCQIterator(t *testing.T) {
	t.Parallel()
	conform(t, "all", cq.Options{Size: 64}, func(t *testing.T, r *rig) {
		for range r.q.Entries(0) {
			t.Error("an empty queue has an entry")
		}
		r.post(t, 0, 40)
		var got []uint64
		for e, err := range r.q.Entries(0) {
			must(t, err)
			got = append(got, e.Context)
		}
		wantContexts(t, "all", got, upTo(0, 40)...)
		wantContexts(t, "they are gone", drain(t, r.q))
	})
	conform(t, "some", cq.Options{Size: 64}, func(t *testing.T, r *rig) {
		r.post(t, 0, 10)
		var got []uint64
		for e, err := range r.q.Entries(3) {
			must(t, err)
			got = append(got, e.Context)
		}
		wantContexts(t, "a limit", got, 0, 1, 2)
		for e, err := range r.q.Entries(0) {
			must(t, err)
			if e.Context == 5 {
				break
			}
		}
		func() {
			defer func() { wantErr(t, "panic", recover().(error), io.EOF) }()
			for e := range r.q.Entries(0) {
				if e.Context == 7 {
					panic(io.EOF) // which leaves the entry that it comes of
				}
			}
		}()
		wantContexts(t, "what a break and a panic left", drain(t, r.q), 7, 8, 9)
		r.post(t, 10, 11)
		r.postError(t, 11)
		got = nil
		for e, err := range r.q.Entries(0) {
			if err != nil {
				wantErr(t, "at the error", err, cq.ErrAvail)
				break
			}
			got = append(got, e.Context)
		}
		wantContexts(t, "ahead of the error", got, 10)
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		r.post(t, 12, 13)
		if es, err := r.q.Peek(1); len(es) != 1 {
			t.Fatal(err)
		}
		for _, err := range r.q.Entries(0) {
			wantErr(t, "while entries are handed out", err, cq.ErrBusy)
		}
		must(t, r.q.Release(1))
	})
}

// withEvents runs a case with an event queue of its own.
func withEvents(t *testing.T, name string, f func(t *testing.T, e *cq.EventQueue)) {
	t.Helper()
	conformOnce(t, name, func(t *testing.T) {
		_, e := createEvents(t, cq.EventOptions{Size: 16})
		f(t, e)
	})
}

// TestConformanceEQBound is an event queue with something bound to it.
func TestConformanceEQBound(t *testing.T) {
	withEvents(t, "busy-while-bound", func(t *testing.T, e *cq.EventQueue) {
		obj, at := payload(t, nil)
		r := shmtest.Got(cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})).Or(t)
		wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
		_, err := eqSread(e, &cq.Event{}, tooLong) // it goes on
		must(t, err)
		must(t, r.Close())
		must(t, e.Close())
	})
}

// TestConformanceContext: a context ends every call that blocks, at once, and what comes after that
// is not lost.
func TestConformanceContext(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Spin: time.Hour, UserContext: 0} // which ends looking too
	conform(t, "every-blocking-call", o, contextEveryBlockingCall)
}

func contextEveryBlockingCall(t *testing.T, r *rig) {
	e := shmtest.Have(cq.CreateEvents(cq.Named(r.d, "events"),
		cq.EventOptions{Size: 4, Write: true})).In(t)
	count := shmtest.Have(cq.CreateCounter(cq.Named(r.d, "counter"), cq.CounterOptions{})).In(t)
	c, s := channel(t, r.d), waitSet(t, r.d, cq.WaitSetOptions{})
	attachTo(t, c, r.q)
	addTo(t, s, r.q)
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	must(t, c.Inject(r.q))
	gets(t, "an event that nobody acknowledges", c, r.q)

	unnamed := shmtest.Have(cq.Create(cq.Unnamed("unnamed"), cq.Options{Size: 4})).In(t)
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
	ended, cancel := context.WithCancel(t.Context())
	cancel() // what is there is returned all the same
	n, err := cq.ReadContext(ended, r.q, dst, cq.ReadOptions{})
	must(t, errors.Join(err, count.Add(1), count.Wait(ended, 1, cq.WaitOptions{})))
	wantContexts(t, "queue", contexts(dst[:n]), 1)
	r.post(t, 2, 3)
	es := shmtest.Got(r.q.PeekContext(ended, 1)).Or(t)
	must(t, r.q.Release(len(es)))
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
	why := errors.New("no more interest")
	ended, end := context.WithCancelCause(t.Context())
	done := later(func() { end(why) })
	wantErr(t, name, call(ended), context.Canceled, why)
	done()
	wantErr(t, name+" of an ended one", call(ended), context.Canceled, why)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := call(ctx)
	wantErr(t, name, err, context.DeadlineExceeded)
	if errors.Is(err, cq.ErrTimedOut) {
		t.Errorf("%s: a context's deadline is not a timeout of ours: %v", name, err)
	}
}

// meetings are the calls that wait for another party, which never comes.
func meetings(t *testing.T, d *shm.Dir, q *cq.Queue) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"attach": func(ctx context.Context) error {
			_, err := cq.Attach(ctx, cq.Named(d, "nowhere"), cq.WriterOptions{Wait: true})
			return err
		},
		"attach events": func(ctx context.Context) error {
			_, err := cq.AttachEvents(ctx, cq.Named(d, "nowhere"), cq.WriterOptions{Wait: true})
			return err
		},
		"accept": func(ctx context.Context) error {
			a, _ := shmtest.Connected(t, unix.SOCK_STREAM) // to somebody who is silent
			return q.Accept(ctx, a)
		},
		"attach over a socket": func(ctx context.Context) error {
			_, b := shmtest.Connected(t, unix.SOCK_STREAM)
			_, err := cq.Attach(ctx, cq.Over(b), cq.WriterOptions{})
			return err
		},
		"attach events over a socket": func(ctx context.Context) error {
			_, b := shmtest.Connected(t, unix.SOCK_STREAM)
			_, err := cq.AttachEvents(ctx, cq.Over(b), cq.WriterOptions{})
			return err
		},
	}
}
