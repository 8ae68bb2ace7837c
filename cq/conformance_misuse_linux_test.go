package cq_test

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceMisuse: what makes no sense is refused with a reason, where other libraries crash.
func TestConformanceMisuse(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Wait: cq.WaitFD, UserContext: 0}
	conform(t, "arguments", o, func(t *testing.T, r *rig) {
		s, p, c := waitSet(t, r.d, cq.WaitSetOptions{}), pollSet(t, r), channel(t, r.d)
		for name, err := range map[string]error{
			"wait set: nothing":     s.Add(nil),
			"wait set: nil":         s.Add((*cq.Queue)(nil)),
			"wait set: nil events":  s.Add((*cq.EventQueue)(nil)),
			"wait set: nil counter": s.Add((*cq.Counter)(nil)),
			"wait set: remove nil":  s.Remove(nil),
			"poll set: nothing":     p.Add(nil),
			"poll set: nil counter": p.Add((*cq.Counter)(nil)),
			"poll set: remove nil":  p.Remove((*cq.Counter)(nil)),
			"trywait: nothing":      cq.TryWait(nil),
			"trywait: nil":          cq.TryWait(r.q, (*cq.EventQueue)(nil)),
			"channel: attach nil":   c.Attach(nil),
			"channel: arm nil":      c.RequestNotify(nil, cq.NotifyAny),
			"channel: arm for none": c.RequestNotify(r.q, 0),
			"channel: arm for more": c.RequestNotify(r.q, 3),
			"channel: ack nil":      c.Ack(nil, 1),
			"channel: detach nil":   c.Detach(t.Context(), nil),
			"channel: inject nil":   c.Inject(nil),
			"release of nothing":    r.q.Release(1),
			"release of less":       r.q.Release(-1),
			"peek of none":          errOf(r.q.Peek(0)),
			"bind nil":              bindNil(r.q),
			"credit of less":        r.w.Credit(-1),
			"sources differ":        errOf(cq.ReadFrom(r.q, make([]cq.Msg, 2), nil)),
		} {
			wantErr(t, name, err, cq.ErrInvalid)
		}
		for name, err := range map[string]error{"arm": c.RequestNotify(r.q, cq.NotifyAny),
			"ack":    c.Ack(r.q, 1),
			"inject": c.Inject(r.q), "detach": c.Detach(t.Context(), r.q), "set": s.Remove(r.q),
			"poll set": p.Remove(r.q)} {
			wantErr(t, name+" of what is not there", err, fs.ErrNotExist)
		}
		r.post(t, 1, 2)
		wantContexts(t, "it goes on", read(t, r.q, 4), 1)
	})
	conform(t, "closed", o, func(t *testing.T, r *rig) {
		s, c := waitSet(t, r.d, cq.WaitSetOptions{}), channel(t, r.d)
		must(t, r.w.Credit(1))
		r.post(t, 0, 2)
		other := r.another(t, 1, o)
		other.post(t, 0, 2)
		if !r.far {
			closedWriter(t, r.attach(t).(*nearWriter).Writer)
		}
		must(t, r.q.Close())
		for name, err := range map[string]error{
			"post":           r.w.Post(&cq.Entry{}),
			"error":          r.w.PostError(&cq.ErrorEntry{}),
			"batch":          errOf(r.w.PostBatch(make([]cq.Entry, 2))),
			"credit":         r.w.Credit(1),
			"credited":       r.w.PostCredited(&cq.Entry{}),
			"error credited": r.w.PostErrorCredited(&cq.ErrorEntry{}),
		} {
			wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
		}
		closedQueue(t, r.q, s, c)
		must(t, errors.Join(r.w.Close(), r.w.Close()))
		if r.memfd {
			return // nobody could take it over
		}
		must(t, errors.Join(other.q.Detach(), other.q.Detach()))
		closedQueue(t, other.q, s, c)
		q, err := cq.Open(cq.Named(r.d, other.q.Name()), cq.Options{Existing: true})
		must(t, err)
		must(t, q.Close())
	})
}

// closedWriter calls everything of a writer that was closed.
func closedWriter(t *testing.T, w *cq.Writer) {
	t.Helper()
	must(t, w.Credits().Add(1))
	slot, _, err := w.Reserve(1)
	must(t, err)
	slot[0] = cq.Entry{}
	must(t, errors.Join(w.Close(), w.Close()))
	for name, err := range map[string]error{
		"post":           w.Post(&cq.Entry{}),
		"batch":          errOf(w.PostBatch(make([]cq.Entry, 1))),
		"commit":         w.Commit(1),
		"error":          w.PostError(&cq.ErrorEntry{}),
		"credit":         w.Credits().Add(1),
		"credited":       w.Credits().Post(&cq.Entry{}),
		"error credited": w.Credits().PostError(&cq.ErrorEntry{}),
	} {
		wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
	}
	_, _, err = w.Reserve(1)
	wantErr(t, "reserve", err, cq.ErrClosed)
	if w.Stats() != (cq.WriterStats{}) || w.Free() != 0 || w.Next() != 0 {
		t.Errorf("%+v, %d free", w.Stats(), w.Free())
	}
	w.Credits().Return(1)
}

// closedQueue calls everything of a queue that was closed or detached.
func closedQueue(t *testing.T, q *cq.Queue, s *cq.WaitSet, c *cq.Channel) {
	t.Helper()
	dst := make([]cq.Msg, 1)
	for name, err := range map[string]error{
		"read":        errOf(cq.Read(q, dst)),
		"readfrom":    errOf(cq.ReadFrom(q, dst, make([]cq.Addr, 1))),
		"sread":       errOf(sread(q, dst, -1)),
		"threshold":   errOf(sread(q, dst, -1, 2)),
		"context":     errOf(cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{})),
		"peek":        errOf(q.Peek(1)),
		"peekcontext": errOf(q.PeekContext(t.Context(), 1)),
		"readerr":     q.ReadErr(&cq.ErrorEntry{}),
		"release":     q.Release(1),
		"signal":      q.Signal(),
		"signal all":  q.SignalAll(),
		"trywait":     cq.TryWait(q),
		"control":     errOf(q.GetWait()),
		"writer":      errOf(q.Writer()),
		"bind":        errOf(q.Bind(&fed{}, true)),
		"set":         s.Add(q),
		"channel":     c.Attach(q),
	} {
		wantErr(t, name, err, cq.ErrClosed, os.ErrClosed, syscall.ESHUTDOWN)
	}
	for _, err := range q.Entries(0) {
		wantErr(t, "iterator", err, cq.ErrClosed)
	}
	must(t, q.Close())
	if q.Stats() != (cq.Stats{}) || waitFD(q) != -1 || q.Name() == "" || q.Options().Size != 8 ||
		q.Redelivered() {
		t.Errorf("descriptor %d, %+v", waitFD(q), q.Stats())
	}
}

// TestConformanceMisuseClosed is the same for event queues and counters.
func TestConformanceMisuseClosed(t *testing.T) {
	t.Parallel()
	conformEQ(t, "event-queue", cq.EventOptions{Wait: cq.WaitFD}, func(t *testing.T, r *eqRig) {
		near := r.near(t)
		must(t, errors.Join(near.Close(), near.Close()))
		_, err := near.WriteErr(&cq.EventError{})
		wantErr(t, "write after the writer's close", err, cq.ErrClosed)
		must(t, r.e.Close())
		for name, err := range map[string]error{
			"read":    errOf(r.e.Read(&cq.Event{}, 0)),
			"sread":   errOf(eqSread(r.e, &cq.Event{}, -1)),
			"peek":    errOf(r.e.Read(&cq.Event{}, cq.FlagPeek)),
			"readerr": errOf(r.e.ReadErr(&cq.EventError{}, 0)),
			"write":   errOf(r.w.Write(&cq.Event{})),
			"signal":  r.e.Signal(),
			"trywait": cq.TryWait(r.e),
			"control": errOf(r.e.GetWait()),
			"purge":   r.e.Purge(fabric(1)),
			"set":     waitSet(t, r.d, cq.WaitSetOptions{}).Add(r.e),
		} {
			wantErr(t, name, err, cq.ErrClosed)
		}
		must(t, r.e.Close())
	})
	conformCounter(t, "counter", cq.CounterOptions{Wait: cq.WaitFD}, func(t *testing.T, r *countRig) {
		unbind, err := r.c.Bind(&fed{})
		must(t, err)
		wantErr(t, "close while bound", r.c.Close(), cq.ErrBusy, syscall.EBUSY)
		must(t, r.c.Add(0)) // it is still open
		unbind()
		must(t, r.c.Close())
		for name, err := range map[string]error{
			"add":     r.c.Add(1),
			"adderr":  r.c.AddErr(1),
			"set":     r.c.Set(1),
			"seterr":  r.c.SetErr(1),
			"reached": cntrWait(r.c, 0, -1),
			"bind":    errOf(r.c.Bind(&fed{})),
			"read":    errOf(r.c.Read()),
			"readerr": errOf(r.c.ReadErr()),
			"wait":    cntrWait(r.c, 5, -1),
			"trywait": cq.TryWait(r.c),
			"member":  waitSet(t, r.d, cq.WaitSetOptions{}).Add(r.c),
		} {
			wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
		}
		_, err = cq.AttachCounter(cq.FromFD(int(^uint(0)>>1), ""), cq.CounterOptions{})
		wantErr(t, "no descriptor", err, syscall.EBADF)
		must(t, r.w.Add(1)) // the other handle goes on
		if v, err := r.w.Read(); v != 1 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
	})
}

func errOf[T any](_ T, err error) error { return err }

func bindNil(q *cq.Queue) error {
	_, err := q.Bind(nil, true)
	return err
}

// TestConformanceCQFlagsOnly is FI_NOTIFY_FLAGS_ONLY.
func TestConformanceCQFlagsOnly(t *testing.T) {
	only := cq.Options{Size: 8, NotifyFlagsOnly: true}
	conform(t, "notify-flags-only", only, func(t *testing.T, r *rig) {
		const kept = cq.FlagRemoteRead | cq.FlagRemoteWrite | cq.FlagRemoteCQData | cq.FlagMultiRecv
		for _, f := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRMA | cq.FlagRemoteRead,
			cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData,
			cq.FlagRecv | cq.FlagMsg | cq.FlagMultiRecv | cq.FlagMore} {
			must(t, r.w.Post(&cq.Entry{Context: 1, Flags: f, Data: 9, Len: 8}))
			want := cq.Data{Context: 1, Flags: f & kept, Data: 9, Len: 8}
			if got, err := readOne[cq.Data](r.q); err != nil || got != want {
				t.Errorf("%v became %+v, %v", f, got, err)
			}
			must(t, r.w.Post(&cq.Entry{Flags: f &^ kept, Meta: cq.MetaNoContext}))
			if got, err := readOne[cq.Msg](r.q); err != nil || got.Flags != cq.FlagNoContext {
				t.Errorf("%v without a context became %v, %v", f, got.Flags, err)
			}
			must(t, r.w.PostError(&cq.ErrorEntry{Flags: f, Err: cq.ETrunc}))
			var e cq.ErrorEntry
			if err := r.q.ReadErr(&e); err != nil || e.Flags != f {
				t.Errorf("%v of a failure became %v, %v", f, e.Flags, err)
			}
		}
	})
}
