package cq_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestNoAllocation: what runs once an entry does not allocate.
func TestNoAllocation(t *testing.T) {
	shmtest.Conforms(t)
	for _, format := range []cq.Format{cq.FormatMsg, cq.FormatTagged} {
		for _, shared := range []bool{false, true} {
			d := openDir(t)
			q, err := cq.Create(cq.Named(d, queueName(t)),
				cq.Options{Size: 64, Format: format, Shared: shared})
			must(t, err)
			w := attach(t, d, q.Name())
			own, err := q.Writer()
			must(t, err)
			for name, call := range hotCalls(t, q, w, own) {
				if n := testing.AllocsPerRun(200, call); n != 0 {
					t.Errorf("%v, shared %v: %s: %v allocations", format, shared, name, n)
				}
			}
			must(t, own.Close())
			must(t, w.Close())
			must(t, q.Close())
		}
	}
}

// TestEventAllocations: nor do events, with payloads, errors and peeks.
func TestEventAllocations(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	in := cq.Event{Event: cq.EventUser, Payload: make([]byte, 100)}
	out := cq.Event{Payload: make([]byte, 0, 100)}
	bad := cq.EventError{Err: cq.ETrunc, ErrData: make([]byte, 60)}
	got := cq.EventError{ErrData: make([]byte, 0, 60)}
	w := attachEvents(t, openDir(t), e.Name())
	for _, by := range []eventWriter{e, w} {
		n := testing.AllocsPerRun(1000, func() {
			_, _ = by.Write(&in)
			_, _ = e.Read(&out, cq.FlagPeek)
			_, _ = e.ReadContext(t.Context(), &out, cq.ReadOptions{})
			_, _ = by.WriteErr(&bad)
			_, _ = e.Read(&out, 0)
			_, _ = e.ReadErr(&got, 0)
			_, _ = e.Read(&out, 0)
			_, _ = e.ReadErr(&got, 0)
		})
		if n != 0 || len(got.ErrData) != 60 || len(out.Payload) != 100 {
			t.Errorf("%v allocations, %d and %d bytes", n, len(got.ErrData), len(out.Payload))
		}
	}
}

// TestCreditsAllocate: nor does room that is kept, on either side of a queue for others.
func TestCreditsAllocate(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	e, dst := cq.Entry{Flags: cq.FlagSend}, make([]cq.Msg, 1)
	if n := testing.AllocsPerRun(100, func() {
		err := errors.Join(w.Credits().Add(1), w.Credits().Post(&e))
		if n, e := cq.Read(q, dst); n != 1 || e != nil || err != nil {
			t.Fatal(n, e, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// hotCalls are the calls that a busy reader and writer make.
func hotCalls(t *testing.T, q *cq.Queue, w, own *cq.Writer) map[string]func() {
	entry, batch := &cq.Entry{Context: 1}, make([]cq.Entry, 8)
	dst, src, ctx := make([]cq.Msg, 16), make([]cq.Addr, 16), t.Context()
	fail, failed := &cq.ErrorEntry{Err: cq.ETrunc}, cq.ErrorEntry{ErrData: make([]byte, 8)}
	return map[string]func(){
		"Post and Read": func() {
			_ = w.Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"own lane": func() {
			_ = own.Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"PostBatch and ReadFrom": func() {
			_, _ = w.PostBatch(batch)
			_, _ = cq.ReadFrom(q, dst, src)
		},
		"Reserve, Commit, Peek, Release": func() {
			a, _, _ := w.Reserve(1)
			a[0] = *entry
			_ = w.Commit(1)
			es, _ := q.Peek(4)
			_ = q.Release(len(es))
		},
		"ReadContext in time": func() {
			_ = w.Post(entry)
			_, _ = cq.ReadContext(ctx, q, dst, cq.ReadOptions{Timeout: time.Second})
		},
		"ReadContext": func() {
			_ = w.Post(entry)
			_, _ = cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
		},
		"errors": func() {
			_ = w.PostError(fail)
			_, _ = cq.Read(q, dst)
			_ = q.ReadErr(&failed)
		},
		"credits": func() {
			_ = w.Credits().Add(1)
			_ = w.Credits().Post(entry)
			_, _ = cq.Read(q, dst)
		},
		"nothing there": func() { _, _ = cq.Read(q, dst) },
		"full": func() {
			for w.Post(entry) == nil {
			}
			for n := 1; n > 0; {
				n, _ = cq.Read(q, dst)
			}
		},
	}
}
