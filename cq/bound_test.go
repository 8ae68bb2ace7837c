package cq_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

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
	p.q, err = cq.Create(p.d, "q", cq.Options{Size: 8})
	open(p.q)
	p.w, err = cq.Attach(t.Context(), p.d, "q", cq.WriterOptions{})
	open(p.w)
	p.ew = attachEvents(t, p.d, p.e.Name())
	p.count = tally(t, cq.CounterOptions{})
	p.peers, err = cq.CreateAnonymousAddresses("peers", cq.AddressOptions{})
	open(p.peers)
	return p
}

func toEvents(p *boundParts) cq.EventSink { return p.e }

// binding binds a writer, with the counter and the addresses.
func (p *boundParts) binding(w *cq.Writer) (*cq.Binding, error) {
	return cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagTransmit, Addresses: p.peers,
		Counters: []cq.CounterBinding{{Counter: p.count, Flags: cq.FlagSend}}})
}

// TestBoundHolds: what something is bound to cannot be closed or detached before it is unbound, and
// works as ever.
func TestBoundHolds(t *testing.T) {
	endpoint := func(p *boundParts) (func() error, error) {
		b, err := p.binding(p.w)
		if err != nil {
			return nil, err
		}
		must(t, b.Begin(cq.FlagCompletion))
		return func() error {
			err := b.Complete(&cq.Entry{Context: 7, Flags: cq.FlagSend}, cq.FlagCompletion)
			if n, e := cq.Read(p.q, make([]cq.Msg, 1)); n != 1 || e != nil {
				err = errors.Join(err, e, errors.New("the completion is lost"))
			}
			return errors.Join(err, b.Close())
		}, nil
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
		{"a binding of a writer", endpoint,
			func(p *boundParts) []io.Closer { return []io.Closer{p.w, p.q, p.count, p.peers} }},
		{"a binding of the queue's own writer",
			func(p *boundParts) (unbind func() error, err error) {
				if p.w, err = p.q.Writer(); err != nil {
					return nil, err
				}
				return endpoint(p)
			},
			func(p *boundParts) []io.Closer { return []io.Closer{p.w, p.q, p.count, p.peers} }},
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
