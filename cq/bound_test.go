package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// tally makes a counter without a name.
func tally(t testing.TB, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	return shmtest.Have(cq.CreateCounter(cq.Unnamed("tally"), o)).In(t)
}

func wantCounter(t testing.TB, c *cq.Counter, value, errs uint64) {
	t.Helper()
	v := shmtest.Got(c.Read()).Or(t)
	e := shmtest.Got(c.ReadErr()).Or(t)
	if v != value || e != errs {
		t.Errorf("counted %d and %d failures, want %d and %d", v, e, value, errs)
	}
}

// boundParts are one object of each kind that others can be bound to.
type boundParts struct {
	d     *shm.Dir
	q     *cq.Queue
	w     *cq.Writer // of q
	e     *cq.EventQueue
	ew    *cq.EventWriter // of e
	count *cq.Counter
	peers *cq.AddressVector
}

func newBoundParts(t *testing.T) (p *boundParts) {
	t.Helper()
	p = new(boundParts)
	p.d, p.e = createEvents(t, cq.EventOptions{Size: 64})
	var err error
	open := func(c io.Closer) {
		must(t, err)
		t.Cleanup(func() { must(t, c.Close()) })
	}
	p.q, err = cq.Create(cq.Named(p.d, "q"), cq.Options{Size: 8})
	open(p.q)
	p.w, err = cq.Attach(t.Context(), cq.Named(p.d, "q"), cq.WriterOptions{})
	open(p.w)
	p.ew = attachEvents(t, p.d, p.e.Name())
	p.count = tally(t, cq.CounterOptions{})
	p.peers, err = cq.CreateAddresses(cq.Unnamed("peers"), cq.AddressOptions{})
	open(p.peers)
	return p
}

func toEvents(p *boundParts) cq.EventSink { return p.e }

// TestBoundHolds: what something is bound to cannot be closed or detached before it is unbound, and
// works as ever.
func TestBoundHolds(t *testing.T) {
	endpoint := func(p *boundParts) (func() error, error) {
		release, err := cq.Hold(p.w, p.count, p.peers, p.e, p.ew)
		if err != nil {
			return nil, err
		}
		must(t, p.w.Credits().Add(1))
		return func() error {
			err := p.w.Credits().Post(&cq.Entry{Context: 7, Flags: cq.FlagSend})
			if n, e := cq.Read(p.q, make([]cq.Msg, 1)); n != 1 || e != nil {
				err = errors.Join(err, e, errors.New("the completion is lost"))
			}
			release()
			release()
			return err
		}, nil
	}
	fed := func(p *boundParts) []io.Closer {
		return []io.Closer{p.w, p.q, p.count, p.peers, p.ew, p.e}
	}
	reports := func(by func(*boundParts) interface{ BindEvents(cq.EventSink) error },
		to func(*boundParts) cq.EventSink) func(*boundParts) (func() error, error) {
		return func(p *boundParts) (func() error, error) {
			return func() error { return by(p).BindEvents(nil) }, by(p).BindEvents(to(p))
		}
	}
	type reporter = interface{ BindEvents(cq.EventSink) error }
	queue := func(p *boundParts) reporter { return p.q }
	writer := func(p *boundParts) reporter { return p.w }
	counter := func(p *boundParts) reporter { return p.count }
	eventWriter := func(p *boundParts) cq.EventSink { return p.ew }
	for _, row := range []struct {
		name string
		bind func(*boundParts) (unbind func() error, err error)
		held func(*boundParts) []io.Closer
	}{
		{"an endpoint", endpoint, fed},
		{"an endpoint of the queue's own writer",
			func(p *boundParts) (unbind func() error, err error) {
				if p.w, err = p.q.Writer(); err != nil {
					return nil, err
				}
				return endpoint(p)
			}, fed},
		{"a queue reports", reports(queue, toEvents),
			func(p *boundParts) []io.Closer { return []io.Closer{p.e} }},
		{"a writer reports", reports(writer, toEvents),
			func(p *boundParts) []io.Closer { return []io.Closer{p.e} }},
		{"a counter reports", reports(counter, toEvents),
			func(p *boundParts) []io.Closer { return []io.Closer{p.e} }},
		{"a queue reports by a writer of events", reports(queue, eventWriter),
			func(p *boundParts) []io.Closer { return []io.Closer{p.ew, p.e} }},
		{"a writer reports by a writer of events", reports(writer, eventWriter),
			func(p *boundParts) []io.Closer { return []io.Closer{p.ew, p.e} }},
		{"a counter reports by a writer of events", reports(counter, eventWriter),
			func(p *boundParts) []io.Closer { return []io.Closer{p.ew, p.e} }},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := newBoundParts(t)
			unbind := shmtest.Got(row.bind(p)).Or(t)
			for range 2 {
				for _, c := range row.held(p) {
					wantErr(t, "close", c.Close(), cq.ErrBusy, syscall.EBUSY)
				}
				if len(row.held(p)) == 1 { // else a writer holds it, which outlives its reader
					wantErr(t, "detach", p.e.Detach(), cq.ErrBusy, syscall.EBUSY)
				}
			}
			must(t, unbind())
			for _, c := range row.held(p) {
				must(t, c.Close())
				must(t, c.Close())
			}
			if _, err := row.bind(p); !errors.Is(err, cq.ErrClosed) {
				t.Errorf("bound to what is closed: %v", err)
			}
		})
	}
}

// TestHoldMisuse: what cannot be held is refused, and nothing else stays held.
func TestHoldMisuse(t *testing.T) {
	p := newBoundParts(t)
	for _, o := range []io.Closer{nil, (*cq.Writer)(nil), (*cq.Counter)(nil), p.d, p.q} {
		_, err := cq.Hold(p.w, o)
		wantErr(t, "hold", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "objects")
	}
	for name, bind := range map[string]func(cq.EventSink) error{"queue": p.q.BindEvents,
		"writer": p.w.BindEvents, "counter": p.count.BindEvents, "addresses": p.peers.BindEvents,
		"events": p.e.BindEvents, "writer of events": p.ew.BindEvents} {
		for _, sink := range []cq.EventSink{(*cq.EventQueue)(nil), (*cq.EventWriter)(nil)} {
			wantErr(t, name, bind(sink), cq.ErrInvalid, syscall.EINVAL)
		}
	}
	for name, bind := range map[string]func(cq.Feeder) (func(), error){"counter": p.count.Bind,
		"queue": func(f cq.Feeder) (func(), error) { return p.q.Bind(f, true) }} {
		_, err := bind((*feeder)(nil))
		wantErr(t, name, err, cq.ErrInvalid, syscall.EINVAL)
	}
	must(t, p.w.Close())
	_, err := cq.Hold(p.count, p.w)
	wantErr(t, "hold", err, cq.ErrClosed)
	must(t, p.count.Close())
}

// TestBindEventsBesideClose: a queue is bound to a writer of events, again and again, that somebody
// closes at the same time, whose memory goes with that.
func TestBindEventsBesideClose(t *testing.T) {
	shmtest.Long(t)
	d, e := createEvents(t, cq.EventOptions{Size: 1 << 6})
	q := shmtest.Have(cq.Create(cq.Unnamed(queueName(t)), cq.Options{Size: 4})).In(t)
	for range 8 {
		w, err := cq.AttachEvents(t.Context(), cq.Named(d, e.Name()), cq.WriterOptions{})
		must(t, err)
		bound, refused := make(chan struct{}), make(chan error)
		go func() {
			err := q.BindEvents(w)
			close(bound)
			for err == nil {
				err = errors.Join(q.BindEvents(nil), q.BindEvents(w))
			}
			refused <- err
		}()
		<-bound
		for err = w.Close(); errors.Is(err, cq.ErrBusy); err = w.Close() {
			runtime.Gosched()
		}
		must(t, err)
		if err := <-refused; !errors.Is(err, cq.ErrClosed) {
			t.Fatal(err)
		}
	}
}

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

// TestOverrunNotice: an overrun is told to the bound event queue and to feeders, once, and the
// queue's valid entries are still read.
func TestOverrunNotice(t *testing.T) {
	shmtest.Conforms(t)
	d := openDir(t)
	q, w := member(t, d, "q", cq.Options{Size: 4, Overrun: cq.OverrunQueue})
	events, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 16, Write: true})
	must(t, err)
	t.Cleanup(func() { must(t, q.BindEvents(nil)); must(t, events.Close()) })
	must(t, q.BindEvents(events))
	wantErr(t, "close of a bound event queue", events.Close(), cq.ErrBusy)
	f := &feeder{}
	unbind := shmtest.Got(q.Bind(f, false)).Or(t)
	t.Cleanup(unbind)
	for range 15 { // full but for what was promised
		shmtest.Got(events.Write(&cq.Event{Event: cq.EventUser})).Or(t)
	}
	_, err = events.Write(&cq.Event{})
	wantErr(t, "the promised room", err, cq.ErrFull)
	post(t, w, 0, 4)
	if got := read(t, q, 1); len(got) != 1 { // the reader is awake
		t.Errorf("read %v", got)
	}
	post(t, w, 4, 5)
	wantErr(t, "one too many", w.Post(&cq.Entry{}), cq.ErrOverrun)
	var e cq.EventError
	if got := read(t, q, 2); len(got) != 2 {
		t.Errorf("read %v", got)
	}
	if f.overun.Load() != q {
		t.Error("the feeder was not told before the queue was drained")
	}
	for _, err := events.Read(&cq.Event{}, 0); err == nil; {
		_, err = events.Read(&cq.Event{}, 0)
	}
	if _, err := events.ReadErr(&e, 0); err != nil || e.FID != q.FID() || !errors.Is(&e, cq.EOverrun) {
		t.Errorf("event %v, %v", &e, err)
	}
	if got := read(t, q, 8); len(got) != 2 {
		t.Errorf("read %v", got)
	}
	for range 2 {
		_, err = cq.Read(q, make([]cq.Msg, 8))
		wantErr(t, "drained", err, cq.ErrOverrun, cq.EOverrun)
	}
	if _, err := events.ReadErr(&e, 0); err != cq.ErrWouldBlock {
		t.Errorf("a second event: %v", err)
	}
	// There is nothing more to promise room for.
	for range 20 {
		must(t, q.BindEvents(nil))
		must(t, q.BindEvents(events))
	}
	for range 16 {
		shmtest.Got(events.Write(&cq.Event{Event: cq.EventUser})).Or(t)
	}
}

// TestOverrunPurged: what a queue reported goes with it, and so does the promise of room.
func TestOverrunPurged(t *testing.T) {
	d := openDir(t)
	events := shmtest.Have(cq.CreateEvents(cq.Named(d, "events"),
		cq.EventOptions{Size: 1, Write: true})).In(t)
	for _, overran := range []bool{true, false} {
		q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 1, Overrun: cq.OverrunQueue})).Or(t)
		must(t, q.BindEvents(events))
		other := shmtest.Got(cq.Create(cq.Named(d, "other"), cq.Options{})).Or(t)
		wantErr(t, "no room to promise", other.BindEvents(events), cq.ErrFull)
		must(t, other.Close())
		w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
		post(t, w, 0, 1)
		if overran {
			wantErr(t, "overrun", w.Post(&cq.Entry{}), cq.ErrOverrun)
			_ = overrun(t, q)
		}
		must(t, errors.Join(q.Close(), w.Close()))
		if _, err := events.ReadErr(&cq.EventError{}, 0); err != cq.ErrWouldBlock {
			t.Errorf("an event of a closed queue: %v", err)
		}
		_, err := events.Read(&cq.Event{}, 0)
		wantErr(t, "nothing", err, cq.ErrWouldBlock)
	}
	shmtest.Got(events.Write(&cq.Event{})).Or(t)
	shmtest.Got(events.Read(&cq.Event{}, 0)).Or(t)
}

// TestOverrunToldAgain: an overrun that an event queue did not take is told to the next one.
func TestOverrunToldAgain(t *testing.T) {
	t.Parallel()
	d, lost := createEvents(t, cq.EventOptions{Size: 2, Overrun: cq.OverrunQueue})
	q, w := member(t, d, "q", cq.Options{Size: 1, Overrun: cq.OverrunQueue})
	must(t, q.BindEvents(lost))
	other := attachEvents(t, d, lost.Name())
	writeEvents(t, other, 0, 2)
	_, err := other.Write(&cq.Event{})
	wantErr(t, "write", err, cq.ErrOverrun)
	for err = nil; err == nil; {
		_, err = lost.Read(&cq.Event{}, 0)
	}
	wantErr(t, "drained", err, cq.ErrOverrun)
	post(t, w, 0, 1)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrOverrun)
	wantContexts(t, "ahead", overrun(t, q), 0)
	next := shmtest.Have(cq.CreateEvents(cq.Named(d, "next"), cq.EventOptions{})).In(t)
	must(t, q.BindEvents(next))
	defer func() { must(t, q.BindEvents(nil)) }()
	_, err = eqSread(next, &cq.Event{}, time.Minute)
	wantErr(t, "sread", err, cq.ErrAvail)
	var e cq.EventError
	if _, err := next.ReadErr(&e, 0); err != nil || e.FID != q.FID() || e.Err != cq.EOverrun {
		t.Errorf("%v, %+v", err, e)
	}
}

// moves is a feeder that does something when it is driven.
type moves func()

func (f moves) Progress() time.Duration { f(); return -1 }

func (moves) Overrun(*cq.Queue) {}

// TestUnbindInside: unbind waits for no read that is in Progress, which may call it.
func TestUnbindInside(t *testing.T) {
	t.Parallel()
	q := shmtest.Have(cq.Create(cq.Unnamed(queueName(t)), cq.Options{})).In(t)
	in, out, read := make(chan struct{}), make(chan struct{}), make(chan error)
	var unbindSelf func()
	unbind := shmtest.Got(q.Bind(moves(func() { close(in); <-out }), true)).Or(t)
	unbindSelf = shmtest.Got(q.Bind(moves(func() { unbindSelf() }), true)).Or(t)
	look := func() error { _, err := cq.Read(q, []cq.Context{}); return err }
	go func() { read <- look() }()
	<-in
	unbind()
	close(out)
	wantErr(t, "read", <-read, cq.ErrWouldBlock)
	wantErr(t, "read with nothing bound", look(), cq.ErrWouldBlock)
}

// TestManualProgress: a feeder that does not drive itself moves on while somebody reads, polls or
// waits, and not otherwise.
func TestManualProgress(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for i, o := range []cq.Options{{}, {Shared: true}, {Spin: -1}, {Wait: cq.WaitYield},
		{Wait: cq.WaitFD}} {
		d := openDir(t)
		q, w := member(t, d, fmt.Sprint("driven", i), o)
		dst := make([]cq.Context, 4)
		_, _ = cq.Read(q, dst) // what it finds does not hold when something is bound
		f, self := &feeder{w: w, every: 5, again: time.Millisecond}, &feeder{}
		unbind := shmtest.Got(q.Bind(f, true)).Or(t)
		unbindSelf := shmtest.Got(q.Bind(self, false)).Or(t)
		// Count 0 is progress only.
		for i := range 4 {
			n, err := cq.Read(q, dst[:i%2])
			wantErr(t, "nothing there", err, cq.ErrWouldBlock)
			if n != 0 {
				t.Error(n)
			}
		}
		if n, err := cq.Read(q, dst[:0]); n != 0 || err != nil {
			t.Errorf("something there: %d, %v", n, err)
		}
		if f.calls.Load() != 5 {
			t.Errorf("driven %d times, want 5", f.calls.Load())
		}
		if n, err := cq.Read(q, dst); n != 1 || err != nil {
			t.Errorf("read %d, %v", n, err)
		}
		for range 3 {
			if n, err := sread(q, dst, time.Minute); n < 1 || err != nil {
				t.Errorf("sread %d, %v", n, err)
			}
		}
		if n, err := sread(q, make([]cq.Context, 8), time.Minute, 4); n < 4 || err != nil {
			t.Errorf("threshold %d, %v", n, err)
		}
		eventually(t, "peek drives it", func() bool {
			es, err := q.Peek(1)
			return err == nil && q.Release(len(es)) == nil
		})
		if o.Wait == cq.WaitFD {
			for q.TryWait() == nil { // which drives it
			}
			if n, err := cq.Read(q, dst); n < 1 || err != nil {
				t.Errorf("after trywait %d, %v", n, err)
			}
		}
		s := shmtest.Got(cq.NewPollSet(d, 0)).Or(t)
		must(t, s.Add(q))
		ready := make([]cq.Waitable, 1)
		eventually(t, "poll drives it", func() bool {
			n := shmtest.Got(s.Poll(ready)).Or(t)
			return n == 1
		})
		drain(t, q)
		must(t, errors.Join(s.Remove(q), s.Close()))
		ws := waitSet(t, d, cq.WaitSetOptions{})
		must(t, ws.Add(q))
		if n, err := setWait(ws, ready, time.Minute); n != 1 || err != nil {
			t.Errorf("wait drives it: %d, %v", n, err)
		}
		drain(t, q)
		must(t, ws.Remove(q))
		unbind()
		unbindSelf()
		before := f.calls.Load()
		_, _ = cq.Read(q, dst)
		if f.calls.Load() != before || self.calls.Load() != 0 {
			t.Error("driven after it was unbound, or though it drives itself")
		}
	}
}

// sleeping is a context that tells when a call is about to sleep: a broadcast reaches whoever has
// told.
type sleeping struct {
	context.Context
	told func()
}

func (s sleeping) Done() <-chan struct{} {
	s.told()
	return s.Context.Done()
}

// TestFedWhileWaiting: who sleeps on a set or a channel drives what comes to feed its queues since.
func TestFedWhileWaiting(t *testing.T) {
	d := openDir(t) // and not beside others, who wake all that sleep on the process's bell
	for _, name := range []string{"set", "channel"} {
		for _, how := range []string{"bound", "added", "armed"} {
			t.Run(name+"-"+how, func(t *testing.T) {
				q := shmtest.Got(cq.Create(cq.Unnamed("q"), cq.Options{Size: 8, Shared: true})).Or(t)
				w := shmtest.Got(q.Writer()).Or(t)
				s, c := waitSet(t, d, cq.WaitSetOptions{}), channel(t, d)
				defer func() { must(t, cq.CloseAll(w, q, s, c)) }()
				enter, arm := func() error { return s.Add(q) }, func() error { return nil }
				o := cq.WaitOptions{Timeout: 10 * time.Second}
				wait := func(ctx context.Context) error { _, err := s.Wait(ctx, nil, o); return err }
				if name == "channel" {
					enter = func() error { return c.Attach(q) }
					arm = func() error { return c.RequestNotify(q, cq.NotifyAny) }
					wait = func(ctx context.Context) error { _, err := c.GetEvent(ctx, o); return err }
				}
				bind := func() func() {
					return shmtest.Got(q.Bind(&feeder{w: w, every: 4, again: time.Millisecond}, true)).Or(t)
				}
				if how == "added" {
					defer bind()()
				} else {
					must(t, enter())
				}
				if how == "bound" {
					must(t, arm())
				}
				asleep, done := make(chan struct{}), make(chan error)
				ctx := sleeping{t.Context(), sync.OnceFunc(func() { close(asleep) })}
				go func() { done <- wait(ctx) }()
				<-asleep
				if how == "added" {
					must(t, enter())
				} else {
					defer bind()()
				}
				if how != "bound" {
					must(t, arm())
				}
				must(t, <-done)
			})
		}
	}
}
