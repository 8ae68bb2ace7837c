package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestEventPeekBlocking is T9 without the descriptor: a blocking peek leaves the event for the
// blocking read behind it.
func TestEventPeekBlocking(t *testing.T) {
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitQueue, cq.WaitYield, cq.WaitFD} {
		t.Run(wait.String(), func(t *testing.T) {
			_, e := createEvents(t, cq.EventOptions{Write: true, Wait: wait, Spin: -1})
			var ev cq.Event
			reads := []func(*cq.Event) (int, error){
				func(ev *cq.Event) (int, error) { return eqSread(e, ev, time.Minute) },
				func(ev *cq.Event) (int, error) { return eqSread(e, ev, time.Minute, cq.FlagPeek) },
				func(ev *cq.Event) (int, error) {
					return e.ReadContext(t.Context(), ev, cq.ReadOptions{Flags: cq.FlagPeek})
				},
				func(ev *cq.Event) (int, error) { return e.ReadContext(t.Context(), ev, cq.ReadOptions{}) },
			}
			for i, want := range []uint64{1, 2, 2, 2} {
				ready := func() {}
				if i < 2 { // the others find what was peeked at
					ready = later(func() { writeEvents(t, e, want, want+1) })
				}
				n, err := reads[i](&ev)
				if n != cq.EventHeaderBytes || err != nil || ev.Context != want {
					t.Fatalf("%v, read %d: %d, %v, %+v", wait, i, n, err, ev)
				}
				ready()
			}
		})
	}
}

// TestEventTimeout is T10 and P32: an empty queue makes a blocking read wait as long as it was
// told, and fail with the numbers of both pages.
func TestEventTimeout(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true})
	for _, d := range []time.Duration{0, time.Nanosecond, 30 * time.Millisecond} {
		for _, flags := range []cq.Flags{0, cq.FlagPeek} {
			begin := time.Now()
			n, err := eqSread(e, &cq.Event{}, d, flags)
			wantErr(t, "nothing", err, cq.ErrTimedOut, syscall.ETIMEDOUT, syscall.EAGAIN,
				os.ErrDeadlineExceeded, context.DeadlineExceeded)
			if errors.Is(err, cq.ErrWouldBlock) || n != 0 {
				t.Errorf("%d, %v", n, err)
			}
			if took := time.Since(begin); took < d {
				t.Errorf("%v took %v", d, took)
			}
		}
	}
	_, err := e.Write(&cq.Event{Event: cq.EventNotify, FID: fabric(9), Context: 4})
	must(t, err)
	var ev cq.Event
	if _, err := eqSread(e, &ev, time.Minute); err != nil || ev.FID != fabric(9) ||
		ev.Context != 4 {
		t.Errorf("%v, %+v", err, ev)
	}
}

// TestEventContext: the context's end ends the read, and says so.
func TestEventContext(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true, Spin: -1})
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := later(func() { cancel(cause) })
	_, err := e.ReadContext(ctx, &cq.Event{}, cq.ReadOptions{})
	wantErr(t, "cancelled", err, context.Canceled, cause)
	done()
	_, err = e.ReadContext(ctx, &cq.Event{}, cq.ReadOptions{Flags: cq.FlagPeek})
	wantErr(t, "cancelled before", err, context.Canceled, cause)
	writeEvents(t, e, 0, 1)
	if _, err = e.ReadContext(ctx, &cq.Event{}, cq.ReadOptions{}); err != nil {
		t.Errorf("an event is there: %v", err)
	}
}

// TestEventWaitNone: what cannot block says so.
func TestEventWaitNone(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Write: true, Wait: cq.WaitNone})
	_, err := eqSread(e, &cq.Event{}, time.Minute)
	wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
	_, err = e.ReadContext(t.Context(), &cq.Event{}, cq.ReadOptions{Flags: cq.FlagPeek})
	wantErr(t, "speek", err, cq.ErrNoWait, syscall.ENOSYS)
	wantErr(t, "trywait", e.TryWait(), cq.ErrNoWait)
	wantErr(t, "signal", e.Signal(), cq.ErrNoWait)
}

// TestEventEnds: what ends a blocking read is in its error.
func TestEventEnds(t *testing.T) {
	d := openDir(t)
	e, err := cq.CreateEvents(d, "ends", cq.EventOptions{Write: true, Spin: -1})
	must(t, err)
	w, err := cq.AttachEvents(t.Context(), d, "ends", cq.WriterOptions{})
	must(t, err)
	done := later(func() { must(t, e.Signal()) })
	_, err = eqSread(e, &cq.Event{}, time.Minute)
	wantErr(t, "signal", err, cq.ErrSignaled)
	done()
	done = later(func() { must(t, e.Close()) })
	_, err = eqSread(e, &cq.Event{}, time.Minute)
	wantErr(t, "close", err, cq.ErrClosed, os.ErrClosed)
	done()
	must(t, e.Close())
	for what, f := range map[string]func() error{
		"read":    func() error { _, err := e.Read(&cq.Event{}, 0); return err },
		"peek":    func() error { _, err := e.Read(&cq.Event{}, cq.FlagPeek); return err },
		"readerr": func() error { _, err := e.ReadErr(&cq.EventError{}, 0); return err },
		"write":   func() error { _, err := e.Write(&cq.Event{}); return err },
		"purge":   func() error { return e.Purge(fabric(1)) },
		"theirs":  func() error { _, err := w.Write(&cq.Event{}); return err },
	} {
		wantErr(t, what, f(), cq.ErrClosed, os.ErrClosed)
	}
	must(t, w.Close())
	must(t, w.Close())
	_, err = w.WriteErr(&cq.EventError{})
	wantErr(t, "write after close", err, cq.ErrClosed)
}

// TestEventBusy: what is bound to a queue keeps it open.
func TestEventBusy(t *testing.T) {
	for _, handler := range []func(*cq.Event, error){nil, func(*cq.Event, error) {}} {
		t.Run(fmt.Sprint("handler=", handler != nil), func(t *testing.T) {
			_, e := createEvents(t, cq.EventOptions{Write: true, Handler: handler})
			must(t, cq.BindEvents(e))
			for what, end := range map[string]func() error{"close": e.Close, "detach": e.Detach} {
				wantErr(t, what, end(), cq.ErrBusy, syscall.EBUSY)
			}
			writeEvents(t, e, 0, 1) // it lives
			if handler == nil {
				if got := drainEvents(t, e); len(got) != 1 {
					t.Error(got)
				}
			}
			cq.UnbindEvents(e)
		})
	}
}

// TestEventGoroutines writes from many goroutines through both kinds of lanes while one reads.
func TestEventGoroutines(t *testing.T) {
	t.Parallel()
	const writers, each = 6, 500
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared=", shared), func(t *testing.T) {
			d, e := createEvents(t, cq.EventOptions{Size: 16, Write: true, Shared: shared, Spin: -1})
			w := attachEvents(t, d, e.Name())
			var all sync.WaitGroup
			for i := range uint64(writers) {
				var by eventWriter = w
				if i == 0 || shared && i%2 == 0 {
					by = e
				}
				all.Go(func() {
					payload := []byte("payload")
					for n := range uint64(each) {
						ev := cq.Event{Context: i, Data: n, Payload: payload[:n%8]}
						for _, err := by.Write(&ev); err != nil; _, err = by.Write(&ev) {
							if err != cq.ErrFull {
								t.Error(err)
								return
							}
							time.Sleep(20 * time.Microsecond)
						}
					}
				})
			}
			var mu sync.Mutex
			left, next := writers*each, make([]uint64, writers)
			readers := 1
			if shared {
				readers = 3
			}
			for range readers {
				all.Go(func() {
					ev := cq.Event{Payload: make([]byte, 0, 8)}
					for {
						_, err := eqSread(e, &ev, 50*time.Millisecond)
						mu.Lock()
						if err == nil {
							left--
							// Order can only be seen by one reader.
							if !shared && next[ev.Context] != ev.Data || string(ev.Payload) !=
								"payload"[:ev.Data%8] {
								t.Errorf("writer %d: %d (%q), want %d", ev.Context, ev.Data, ev.Payload,
									next[ev.Context])
							}
							next[ev.Context]++
						}
						over := left == 0
						mu.Unlock()
						if over {
							return
						}
					}
				})
			}
			all.Wait()
			if !slices.Equal(next, []uint64{each, each, each, each, each, each}) {
				t.Error(next)
			}
		})
	}
}

// TestEventAllocations: nothing is allocated, with payloads, errors and peeks.
func TestEventAllocations(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Write: true})
	w := attachEvents(t, d, e.Name())
	in := cq.Event{Event: cq.EventUser, Payload: make([]byte, 100)}
	out := cq.Event{Payload: make([]byte, 0, 100)}
	bad := cq.EventError{Err: cq.ETrunc, ErrData: make([]byte, 60)}
	got := cq.EventError{ErrData: make([]byte, 0, 60)}
	for name, f := range map[string]func(){
		"own": func() { _, _ = e.Write(&in); _, _ = e.Read(&out, 0) },
		"attached": func() {
			_, _ = w.Write(&in)
			_, _ = e.Read(&out, cq.FlagPeek)
			_,
				_ = e.Read(&out, 0)
		},
		"blocking": func() {
			_, _ = w.Write(&in)
			_, _ = e.ReadContext(t.Context(), &out,
				cq.ReadOptions{})
		},
		"error": func() { _, _ = e.WriteErr(&bad); _, _ = e.Read(&out, 0); _, _ = e.ReadErr(&got, 0) },
		"empty": func() { _, _ = e.Read(&out, 0); _, _ = e.ReadErr(&got, 0) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if out.Payload == nil || len(got.ErrData) != 60 {
		t.Error("nothing came")
	}
}
