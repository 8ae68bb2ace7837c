package cq_test

import (
	"errors"
	"io"
	"runtime"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// tally makes a counter without a name.
func tally(t testing.TB, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	c, err := cq.CreateCounter(cq.Unnamed("tally"), o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func wantCounter(t testing.TB, c *cq.Counter, value, errs uint64) {
	t.Helper()
	v, err := c.Read()
	must(t, err)
	e, err := c.ReadErr()
	must(t, err)
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
			unbind, err := row.bind(p)
			must(t, err)
			for range 2 {
				for _, c := range row.held(p) {
					wantErr(t, "close", c.Close(), cq.ErrBusy, syscall.EBUSY)
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
	q, err := cq.Create(cq.Unnamed(queueName(t)), cq.Options{Size: 4})
	must(t, err)
	for range 30 {
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
	must(t, q.Close())
}
