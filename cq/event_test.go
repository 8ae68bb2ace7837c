package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// createEvents makes an event queue named after the test and closes it when the test ends.
func createEvents(t testing.TB, o cq.EventOptions) (*shm.Dir, *cq.EventQueue) {
	t.Helper()
	d := openDir(t)
	e := shmtest.Have(cq.CreateEvents(cq.Named(d, queueName(t)), o)).In(t)
	return d, e
}

func attachEvents(t testing.TB, d *shm.Dir, name string) *cq.EventWriter {
	t.Helper()
	return shmtest.Have(cq.AttachEvents(t.Context(), cq.Named(d, name), cq.WriterOptions{})).In(t)
}

// eventWriter is what an EventQueue and an EventWriter have in common.
type eventWriter interface {
	Write(*cq.Event) (int, error)
	WriteErr(*cq.EventError) (int, error)
}

// writeEvents writes events with contexts from to to-1.
func writeEvents(t testing.TB, w eventWriter, from, to uint64) {
	t.Helper()
	for i := from; i < to; i++ {
		n, err := w.Write(&cq.Event{Event: cq.EventUser, Context: i})
		if n != cq.EventHeaderBytes || err != nil {
			t.Fatalf("write %d: %d, %v", i, n, err)
		}
	}
}

// drainEvents reads until there is nothing more and returns the contexts.
func drainEvents(t testing.TB, e *cq.EventQueue) []uint64 {
	t.Helper()
	var out []uint64
	ev := cq.Event{Payload: make([]byte, 0, e.Options().DataMaxBytes)}
	for {
		switch _, err := e.Read(&ev, 0); err {
		case nil:
			out = append(out, ev.Context)
		case cq.ErrWouldBlock:
			return out
		default:
			t.Fatal(err)
		}
	}
}

func fabric(i uint64) cq.FID { return cq.FID{Kind: cq.FIDFabric, ID: i, Generation: 1} }

// drainEventsAnd is drainEvents that takes errors too.
func drainEventsAnd(t testing.TB, e *cq.EventQueue) (out []uint64) {
	t.Helper()
	var ev cq.Event
	for {
		_, err := e.Read(&ev, 0)
		switch err {
		case nil:
			out = append(out, ev.Context)
		case cq.ErrAvail:
			var bad cq.EventError
			shmtest.Got(e.ReadErr(&bad, 0)).Or(t)
			out = append(out, bad.Context)
		case cq.ErrWouldBlock:
			return out
		default:
			t.Fatal(err)
		}
	}
}

// TestEventPromises: what was accepted can be reported, however much is written meanwhile.
func TestEventPromises(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	wantErr(t, "more than there is", cq.PromiseEvents(e, 9), cq.ErrFull)
	must(t, cq.PromiseEvents(e, 4))
	writeEvents(t, e, 0, 4)
	_, err := e.Write(&cq.Event{})
	wantErr(t, "into promised room", err, cq.ErrFull)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 4}))
	must(t, cq.KeepEventError(e, &cq.EventError{Context: 5}))
	cq.BreakPromise(e, 1)
	writeEvents(t, e, 6, 7)
	must(t, cq.KeepEvent(e, &cq.Event{Context: 7}))
	wantErr(t, "nothing promised", cq.KeepEvent(e, &cq.Event{}), cq.ErrNoCredit)
	if got := drainEventsAnd(t, e); len(got) != 8 || got[5] != 5 || got[7] != 7 {
		t.Error(got)
	}
}

// writeAbout writes events about objects by their number, which is the context too; a negative
// number is an error event.
func writeAbout(t testing.TB, w eventWriter, objects ...int) {
	t.Helper()
	for _, o := range objects {
		var err error
		if o < 0 {
			_, err = w.WriteErr(&cq.EventError{FID: fabric(uint64(-o)), Context: uint64(-o)})
		} else {
			_, err = w.Write(&cq.Event{FID: fabric(uint64(o)), Context: uint64(o)})
		}
		must(t, err)
	}
}

// TestEventPurge is P36: what was queued about a closed object is never read, wherever it stands.
func TestEventPurge(t *testing.T) {
	shmtest.Conforms(t)
	for _, shared := range []bool{false, true} {
		for _, tt := range []struct{ own, other, want []int }{
			{[]int{1}, nil, nil},
			{[]int{1, 1, 1}, []int{1}, nil},
			{[]int{1, 2, 1, 3, 1}, nil, []int{2, 3}},
			{[]int{2, 1}, []int{3, 1, -1, 4}, []int{2, 3, 4}},
			{[]int{-1, 2, -1, 1}, []int{1, -1}, []int{2}},
			{[]int{2, -3, 1, 2}, []int{-1}, []int{2, 2, 3}},
			{[]int{2, 2}, []int{1}, []int{2, 2}},
			{[]int{1, 2, 1, -1, 3}, nil, []int{2, 3}},
		} {
			t.Run(fmt.Sprint(shared, tt), func(t *testing.T) {
				d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true, Shared: shared})
				var w eventWriter = e
				if tt.other != nil { // or reads of the one lane go a short way
					w = attachEvents(t, d, e.Name())
				}
				for range 5 { // around the end of the ring
					writeAbout(t, e, 7)
					wantContexts(t, "before", drainEvents(t, e), 7)
					writeAbout(t, e, tt.own...)
					writeAbout(t, w, tt.other...)
					must(t, e.Purge(fabric(1)))
					must(t, e.Purge(fabric(1)))
					got := drainEventsAnd(t, e)
					slices.Sort(got)
					if fmt.Sprint(got) != fmt.Sprint(tt.want) {
						t.Errorf("%v, want %v", got, tt.want)
					}
					// A later object may have the number again.
					writeAbout(t, w, 1)
					if got := drainEventsAnd(t, e); len(got) != 1 {
						t.Errorf("%v is left of a later event", got)
					}
				}
			})
		}
	}
}

// TestEventPurgePeeked: what was peeked at, did not fit, or stopped a read is purged too.
func TestEventPurgePeeked(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	var ev cq.Event
	for what, seen := range map[string]func() error{
		"peeked": func() error { _, err := e.Read(&ev, cq.FlagPeek); return err },
		"too small": func() error {
			if _, err := e.Read(&ev, 0); err == nil {
				t.Error("it fits")
			}
			return nil
		},
	} {
		shmtest.Got(e.Write(&cq.Event{FID: fabric(1), Payload: make([]byte, 9*len(what)/10)})).Or(t)
		if what == "peeked" {
			ev.Payload = make([]byte, 0, 20)
		} else {
			ev.Payload = nil
		}
		writeAbout(t, e, 2)
		must(t, seen())
		must(t, e.Purge(fabric(1)))
		wantContexts(t, what, drainEventsAnd(t, e), 2)
	}
	writeAbout(t, e, -1, 3)
	_, err := e.Read(&ev, 0)
	wantErr(t, "read", err, cq.ErrAvail)
	must(t, e.Purge(fabric(1)))
	_, err = e.ReadErr(&cq.EventError{}, 0)
	wantErr(t, "readerr of what was purged", err, cq.ErrWouldBlock)
	wantContexts(t, "drained", drainEventsAnd(t, e), 3)
}

// TestEventPurgeRoom: what was purged gives its room back at the next look, and is nothing to wake
// for.
func TestEventPurgeRoom(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 4, Write: true, Wait: cq.WaitFD, Spin: -1})
	w := attachEvents(t, d, e.Name())
	writeAbout(t, w, 1, 1, 1, 1)
	must(t, e.Purge(fabric(1)))
	must(t, e.TryWait())
	writeAbout(t, w, 2, 1, 2, 1)
	must(t, e.Purge(fabric(1)))
	wantErr(t, "trywait", e.TryWait(), cq.ErrWouldBlock)
	wantContexts(t, "drained", drainEvents(t, e), 2, 2)
	writeAbout(t, w, 1)
	must(t, e.Purge(fabric(1)))
	_, err := eqSread(e, &cq.Event{}, time.Millisecond)
	wantErr(t, "sread", err, cq.ErrTimedOut)
	polls := shmtest.Have(cq.NewPollSet(d, 0)).In(t)
	waits := shmtest.Have(cq.NewWaitSet(d, cq.WaitSetOptions{})).In(t)
	dst := make([]cq.Waitable, 1)
	for what, look := range map[string]func() (int, error){
		"poll set": func() (int, error) { return polls.Poll(dst) },
		"wait set": func() (int, error) {
			n, err := setWait(waits, dst, 0)
			if errors.Is(err, cq.ErrTimedOut) {
				err = nil
			}
			return n, err
		},
	} {
		set := map[string]group{"poll set": polls, "wait set": waits}[what]
		must(t, set.Add(e))
		for about, ready := range []int{0, 0, 1} { // 1 and then 2
			writeAbout(t, w, max(1, about))
			must(t, e.Purge(fabric(1)))
			if n, err := look(); n != ready || err != nil {
				t.Errorf("%s: %d, %v are ready, want %d", what, n, err, ready)
			}
		}
		must(t, set.Remove(e))
		wantContexts(t, what, drainEvents(t, e), 2)
	}
}

// TestEventPurgeMany: objects that are closed while nobody reads take bounded memory.
func TestEventPurgeMany(t *testing.T) {
	t.Parallel()
	_, e := createEvents(t, cq.EventOptions{Size: 4, Write: true})
	writeAbout(t, e, 3, 70000, 2)
	for i := range uint64(65536) {
		must(t, e.Purge(fabric(i)))
	}
	wantErr(t, "one more", e.Purge(fabric(65536)), cq.ErrFull)
	wantContexts(t, "drained", drainEvents(t, e), 70000)
	must(t, e.Purge(fabric(65536)))
}

// handled is what a handler was called with.
type handled struct {
	mu   sync.Mutex
	got  []uint64
	errs []error
	in   atomic.Int32 // calls that run
	most atomic.Int32
}

func (l *handled) handle(ev *cq.Event, err error) {
	if n := l.in.Add(1); n > l.most.Load() {
		l.most.Store(n)
	}
	defer l.in.Add(-1)
	l.mu.Lock()
	defer l.mu.Unlock()
	var bad *cq.EventError
	switch {
	case ev != nil:
		l.got = append(l.got, ev.Context)
	case errors.As(err, &bad):
		l.got = append(l.got, bad.Context)
	default:
		l.errs = append(l.errs, err)
	}
}

func (l *handled) events() []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.got)
}

func (l *handled) errors() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.errs)
}

// TestEventHandler is P37: every event goes to the handler, one call at a time, in the order of
// its writer, whatever the wait object; and nobody else gets one.
func TestEventHandler(t *testing.T) {
	shmtest.Conforms(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitNone, cq.WaitYield} {
		t.Run(wait.String(), func(t *testing.T) {
			var l handled
			d, e := createEvents(t, cq.EventOptions{Write: true, Wait: wait, Handler: l.handle})
			w := attachEvents(t, d, e.Name())
			var all sync.WaitGroup
			for i, by := range []eventWriter{e, w} {
				all.Go(func() {
					from := uint64(i * 1000)
					for n := from; n < from+200; n += 2 {
						writeEvents(t, by, n, n+1)
						writeAbout(t, by, -int(n+1))
						if n%50 == 0 {
							time.Sleep(time.Millisecond) // it falls asleep
						}
					}
				})
			}
			all.Wait()
			eventually(t, "all of it", func() bool { return len(l.events()) == 400 })
			var own, theirs []uint64
			for _, c := range l.events() {
				if c < 1000 {
					own = append(own, c)
				} else {
					theirs = append(theirs, c)
				}
			}
			if !slices.Equal(own, upTo(0, 200)) || !slices.Equal(theirs, upTo(1000, 1200)) {
				t.Errorf("%v\n%v", own, theirs)
			}
			if l.most.Load() != 1 || l.errors() != nil {
				t.Errorf("%d calls at once, %v", l.most.Load(), l.errors())
			}
			refusesReads(t, e)
		})
	}
}

func refusesReads(t testing.TB, e *cq.EventQueue) {
	t.Helper()
	for what, f := range map[string]func() error{
		"read":    func() error { _, err := e.Read(&cq.Event{}, 0); return err },
		"sread":   func() error { _, err := eqSread(e, &cq.Event{}, time.Minute); return err },
		"peek":    func() error { _, err := e.Read(&cq.Event{}, cq.FlagPeek); return err },
		"readerr": func() error { _, err := e.ReadErr(&cq.EventError{}, 0); return err },
		"peekerr": func() error { _, err := e.ReadErr(&cq.EventError{}, cq.FlagPeek); return err },
		"trywait": e.TryWait,
	} {
		wantErr(t, what, f(), cq.ErrHandled, cq.EOpBadState)
	}
	if waitFD(e) != -1 {
		t.Error("a descriptor")
	}
}

// TestEventHandlerReenters: a handler may write to its own queue and purge; reading is an error and
// no deadlock. The payload is whole.
func TestEventHandlerReenters(t *testing.T) {
	var e *cq.EventQueue
	var l handled
	start := make(chan struct{})
	d := openDir(t)
	e = shmtest.Have(cq.CreateEvents(cq.Named(d, "reenters"), cq.EventOptions{Write: true,
		Handler: func(ev *cq.Event, err error) {
			<-start
			if ev != nil && string(ev.Payload) != "payload"[:len(ev.Payload)] {
				t.Errorf("%q", ev.Payload)
			}
			if ev != nil && ev.Context < 50 {
				shmtest.Got(e.Write(&cq.Event{FID: ev.FID, Context: ev.Context + 10,
					Payload: []byte("payload")[:ev.Context%8]})).Or(t)
			} else if ev != nil {
				must(t, e.Purge(ev.FID)) // itself, and what was queued behind it
			}
			refusesReads(t, e)
			l.handle(ev, err)
		}})).In(t)
	writeAbout(t, e, 1)
	shmtest.Got(e.Write(&cq.Event{FID: fabric(2), Context: 90})).Or(t)
	writeAbout(t, e, 2, -2, 2, -3)
	close(start)
	eventually(t, "all of it", func() bool { return len(l.events()) == 8 })
	wantContexts(t, "got", l.events(), 1, 90, 3, 11, 21, 31, 41, 51)
}

// TestEventHandlerCloses: from inside, Close takes effect when the handler has returned.
func TestEventHandlerCloses(t *testing.T) {
	for how, end := range map[string]func(*cq.EventQueue) error{"close": (*cq.EventQueue).Close,
		"detach": (*cq.EventQueue).Detach} {
		t.Run(how, func(t *testing.T) {
			var e *cq.EventQueue
			var calls atomic.Int32
			start, goOn := make(chan struct{}), make(chan struct{})
			d := openDir(t)
			e, err := cq.CreateEvents(cq.Named(d, "closes"), cq.EventOptions{Write: true,
				Handler: func(*cq.Event, error) {
					<-start
					calls.Add(1)
					must(t, cq.BindEvents(e))
					wantErr(t, "busy", end(e), cq.ErrBusy)
					cq.UnbindEvents(e)
					must(t, end(e))
					must(t, end(e))
					writeEvents(t, e, 9, 10) // it lives as long as the handler runs
					close(goOn)
				}})
			must(t, err)
			writeEvents(t, e, 0, 3)
			close(start)
			<-goOn
			must(t, e.Close()) // waits for the other one
			if calls.Load() != 1 {
				t.Errorf("%d calls", calls.Load())
			}
			_, err = e.Write(&cq.Event{})
			wantErr(t, "write", err, cq.ErrClosed)
			e, err = cq.OpenEvents(cq.Named(d, "closes"), cq.EventOptions{Existing: true})
			if how == "close" {
				wantErr(t, "adopt", err, fs.ErrNotExist)
				return
			}
			must(t, err)
			wantContexts(t, "drained", drainEvents(t, e), 1, 2, 9)
			must(t, e.Close())
		})
	}
}

// TestEventHandlerHeld: nobody is bound to a queue whose handler has closed it. If something keeps
// it open all the same, its handler goes on, and the next Close says how that goes.
func TestEventHandlerHeld(t *testing.T) {
	for name, late := range map[string]bool{"refuses": false, "goes_on": true} {
		t.Run(name, func(t *testing.T) {
			var e *cq.EventQueue
			var w *cq.EventWriter
			var release func()
			calls, start := make(chan uint64, 2), make(chan struct{})
			d := openDir(t)
			e = shmtest.Got(cq.CreateEvents(cq.Named(d, "held"), cq.EventOptions{Write: true,
				Handler: func(ev *cq.Event, _ error) {
					<-start
					if ev.Context == 0 {
						must(t, e.Close())
						wantErr(t, "bind", cq.BindEvents(e), cq.ErrClosed)
						if late {
							r := shmtest.Got(cq.Hold(w)).Or(t)
							release = r
						}
					}
					calls <- ev.Context
				}})).Or(t)
			w = attachEvents(t, d, "held")
			writeEvents(t, e, 0, 1)
			close(start)
			<-calls
			if late {
				eventually(t, "it is open again", func() bool {
					_, err := e.Write(&cq.Event{Context: 1})
					return err == nil
				})
				select {
				case got := <-calls:
					if got != 1 {
						t.Errorf("event %d", got)
					}
				case <-time.After(time.Minute):
					t.Error("nobody handles what comes")
				}
				wantErr(t, "close", e.Close(), cq.ErrBusy)
				release()
			}
			must(t, e.Close())
			_, err := e.Write(&cq.Event{})
			wantErr(t, "write", err, cq.ErrClosed)
		})
	}
}

// TestEventHandlerRuns: Close from outside waits for a handler that runs, and no other call comes.
// The handler of another queue is outside.
func TestEventHandlerRuns(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	var calls atomic.Int32
	d := openDir(t)
	e := shmtest.Got(cq.CreateEvents(cq.Named(d, "runs"), cq.EventOptions{Write: true,
		Handler: func(*cq.Event, error) {
			calls.Add(1)
			close(in)
			<-out
		}})).Or(t)
	writeEvents(t, e, 0, 3)
	<-in
	var closed atomic.Bool
	var all sync.WaitGroup
	closing := func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		closed.Store(true)
	}
	for range 2 {
		all.Go(closing)
	}
	all.Add(1)
	other := shmtest.Have(cq.CreateEvents(cq.Named(d, "another"), cq.EventOptions{Write: true,
		Handler: func(*cq.Event, error) { defer all.Done(); closing() }})).In(t)
	writeEvents(t, other, 0, 1)
	time.Sleep(20 * time.Millisecond)
	if closed.Load() {
		t.Error("closed while the handler runs")
	}
	close(out)
	all.Wait()
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

// TestEventHandlerGone: a handler that ends its goroutine does not block Close.
func TestEventHandlerGone(t *testing.T) {
	d := openDir(t)
	e := shmtest.Have(cq.CreateEvents(cq.Named(d, "gone"), cq.EventOptions{Write: true,
		Handler: func(*cq.Event, error) { runtime.Goexit() }})).In(t)
	writeEvents(t, e, 0, 1)
}

// TestEventHandlerOverrun: the handler learns of the overrun when it has had everything, once.
func TestEventHandlerOverrun(t *testing.T) {
	var l handled
	start := make(chan struct{})
	_, e := createEvents(t, cq.EventOptions{Size: 4, Overrun: cq.OverrunQueue, Write: true,
		Handler: func(ev *cq.Event, err error) { <-start; l.handle(ev, err) }})
	for i := uint64(0); ; i++ {
		if _, err := e.Write(&cq.Event{Context: i}); err != nil {
			wantErr(t, "write", err, cq.ErrOverrun)
			break
		}
	}
	close(start)
	eventually(t, "it knows", func() bool { return l.errors() != nil })
	time.Sleep(5 * time.Millisecond)
	if errs := l.errors(); len(errs) != 1 || !errors.Is(errs[0], cq.ErrOverrun) {
		t.Error(errs)
	}
	if got := l.events(); !slices.Equal(got, upTo(0, uint64(len(got)))) || len(got) < 4 {
		t.Error(got)
	}
}
