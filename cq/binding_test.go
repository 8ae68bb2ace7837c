package cq_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
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

// asking are the flags by which an operation asks for a completion, under selective completion.
var asking = []cq.Flags{cq.FlagCompletion, cq.FlagInjectComplete, cq.FlagTransmitComplete,
	cq.FlagDeliveryComplete, cq.FlagCommitComplete, cq.FlagMatchComplete}

// subsets returns every combination of some flags.
func subsets(of []cq.Flags) []cq.Flags {
	out := []cq.Flags{0}
	for _, f := range of {
		for _, s := range slices.Clone(out) {
			out = append(out, s|f)
		}
	}
	return out
}

// TestCompletionTable is T46 in every combination: what was bound, the call, what the operation
// asked for, what completes, how it ends.
func TestCompletionTable(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	count, other := tally(t, cq.CounterOptions{}), tally(t, cq.CounterOptions{})
	ops := subsets(append([]cq.Flags{cq.FlagInject, cq.FlagInjectCall}, asking...))
	for _, selective := range []cq.Flags{0, cq.FlagSelectiveCompletion} {
		for _, side := range []cq.Flags{cq.FlagTransmit, cq.FlagRecv, cq.FlagTransmit | cq.FlagRecv} {
			for _, kind := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRecv | cq.FlagTagged,
				cq.FlagRMA | cq.FlagRead, cq.FlagAtomic | cq.FlagWrite} {
				bound := kind&cq.FlagRecv != 0 && side&cq.FlagRecv != 0 ||
					kind&cq.FlagRecv == 0 && side&cq.FlagTransmit != 0
				for _, op := range ops {
					expect := op&cq.FlagInjectCall == 0 &&
						(selective == 0 || op&^cq.FlagInject != 0)
					row := fmt.Sprintf("bound %v %v, kind %v, op %v", side, selective, kind, op)
					b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: selective | side,
						Counters: []cq.CounterBinding{{Counter: count, Flags: kind & counted},
							{Counter: other, Flags: cq.FlagRemoteRead}}})
					must(t, err)
					must(t, errors.Join(count.Set(0), count.SetErr(0)))
					if bound {
						tableRow(t, row, q, w, b, kind, op, expect)
						wantCounter(t, count, 1, 1)
					} else {
						wantErr(t, row, b.Complete(&cq.Entry{Flags: kind}, op), cq.ErrInvalid)
						wantErr(t, row, b.Fail(&cq.ErrorEntry{Flags: kind}, op), cq.ErrInvalid)
						wantCounter(t, count, 0, 0)
					}
					must(t, b.Close())
				}
			}
		}
	}
	wantCounter(t, other, 0, 0)
}

const counted = cq.FlagSend | cq.FlagRecv | cq.FlagRead | cq.FlagWrite

func tableRow(t *testing.T, row string, q *cq.Queue, w *cq.Writer, b *cq.Binding, kind, op cq.Flags,
	expect bool) {
	t.Helper()
	must(t, b.Begin(op))
	if held := w.Credits().Len() == 1; held != expect || b.Wants(op) != expect {
		t.Errorf("%s: room reserved: %v, wants %v", row, held, b.Wants(op))
	}
	must(t, b.Complete(&cq.Entry{Context: 1, Flags: kind}, op))
	must(t, b.Begin(op))
	must(t, b.Fail(&cq.ErrorEntry{Context: 2, Flags: kind, Err: cq.ETrunc}, op))
	var want []string
	if expect {
		want = append(want, "1")
	}
	if op&cq.FlagInjectCall == 0 {
		want = append(want, "E2")
	} else {
		want = append(want, "E0") // the call has no context
	}
	if got := takeAll(t, q); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", row, got, want)
	}
	if w.Credits().Len() != 0 {
		t.Errorf("%s: %d credits left", row, w.Credits().Len())
	}
}

func TestBindingOptions(t *testing.T) {
	_, w := pair(t, cq.Options{Size: 4})
	c := tally(t, cq.CounterOptions{})
	for field, options := range map[string][]cq.BindingOptions{
		"Flags": {
			{Queue: w},
			{Queue: w, Flags: cq.FlagSelectiveCompletion},
			{Queue: w, Flags: cq.FlagTransmit | cq.FlagRead},
		},
		"Source": {{Queue: w, Flags: cq.FlagRecv, Source: 7}},
		"Queue":  {{Flags: cq.FlagRecv}},
		"Counters": {
			{Flags: cq.FlagRecv, Counters: []cq.CounterBinding{{Flags: cq.FlagRecv}}},
			{Flags: cq.FlagRecv, Counters: []cq.CounterBinding{{Counter: c}}},
			{Flags: cq.FlagRecv, Counters: []cq.CounterBinding{{Counter: c, Flags: cq.FlagMsg}}},
		},
	} {
		for _, o := range options {
			_, err := cq.NewBinding(o)
			wantErr(t, field, err, cq.ErrInvalid, syscall.EINVAL)
			wantField(t, err, field)
		}
	}
}

// TestBindingRoom: an operation that reports is refused while there is no room, and one that was
// accepted always finds it.
func TestBindingRoom(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4})
	b, err := cq.NewBinding(cq.BindingOptions{Queue: w,
		Flags: cq.FlagTransmit | cq.FlagSelectiveCompletion})
	must(t, err)
	send := cq.FlagSend | cq.FlagMsg
	for range 4 {
		must(t, b.Begin(cq.FlagCompletion))
	}
	wantErr(t, "fifth", b.Begin(cq.FlagCompletion), cq.ErrFull, syscall.EAGAIN)
	b.Drop(cq.FlagCompletion)
	must(t, b.Begin(cq.FlagCompletion))
	b.Drop(0) // it held nothing
	must(t, b.Begin(0))
	err = b.Fail(&cq.ErrorEntry{Context: 9, Flags: send, Err: cq.EOther}, 0)
	wantErr(t, "an error without room", err, cq.ErrFull)
	for i := range uint64(3) {
		must(t, b.Complete(&cq.Entry{Context: i, Flags: send}, cq.FlagCompletion))
	}
	must(t, b.Fail(&cq.ErrorEntry{Context: 3, Flags: send, Err: cq.EOther}, cq.FlagCompletion))
	wantErr(t, "more than began", b.Complete(&cq.Entry{Flags: send}, cq.FlagCompletion),
		cq.ErrNoCredit)
	if got := takeAll(t, q); !slices.Equal(got, []string{"0", "1", "2", "E3"}) {
		t.Error(got)
	}
	must(t, b.Begin(cq.FlagCompletion))
	must(t, b.Begin(cq.FlagCompletion))
	must(t, b.Close())
	must(t, b.Close())
	if w.Credits().Len() != 0 {
		t.Errorf("%d credits left", w.Credits().Len())
	}
	for _, err := range []error{b.Begin(0), b.Complete(&cq.Entry{Flags: send}, 0),
		b.Fail(&cq.ErrorEntry{Flags: send}, 0), b.CompleteTarget(&cq.Entry{Flags: send}),
		b.CompleteFrom(&cq.Entry{Flags: send}, 0, nil)} {
		wantErr(t, "closed", err, cq.ErrClosed)
	}
}

// TestBindingOverrun: a queue that is made to overrun refuses no operation, and does.
func TestBindingOverrun(t *testing.T) {
	for name, end := range map[string]func(*cq.Binding) error{
		"completion": func(b *cq.Binding) error {
			return b.Complete(&cq.Entry{Flags: cq.FlagSend}, cq.FlagCompletion)
		},
		"error": func(b *cq.Binding) error {
			return b.Fail(&cq.ErrorEntry{Flags: cq.FlagSend, Err: cq.EOther}, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 2, Overrun: cq.OverrunQueue})
			count := tally(t, cq.CounterOptions{})
			b, err := cq.NewBinding(cq.BindingOptions{Queue: w,
				Flags:    cq.FlagTransmit | cq.FlagSelectiveCompletion,
				Counters: []cq.CounterBinding{{Counter: count, Flags: cq.FlagSend}}})
			must(t, err)
			defer b.Close()
			for range 4 {
				must(t, b.Begin(cq.FlagCompletion))
			}
			b.Drop(cq.FlagCompletion)
			for range 2 {
				must(t, end(b))
			}
			wantErr(t, "third", end(b), cq.ErrOverrun)
			for err = nil; err == nil || err == cq.ErrAvail; {
				if _, err = cq.Read(q, make([]cq.Msg, 1)); err == cq.ErrAvail {
					must(t, q.ReadErr(&cq.ErrorEntry{}))
				}
			}
			wantErr(t, "read", err, cq.ErrOverrun)
			if v, _ := count.Read(); name == "completion" && v != 3 {
				t.Errorf("%d counted", v)
			}
			if v, _ := count.ReadErr(); name == "error" && v != 3 {
				t.Errorf("%d failures counted", v)
			}
		})
	}
}

// TestMultiRecvRelease: what gives the buffer back is posted also where no completion was asked
// for, in both styles, and has its room.
func TestMultiRecvRelease(t *testing.T) {
	message := cq.FlagRecv | cq.FlagMsg
	for _, tt := range []struct {
		name      string
		selective cq.Flags
		op        cq.Flags
		last      cq.Flags // flags of the entry that gives it back
		want      []string
		counted   uint64
	}{
		{"ordinary, with the last message", 0, 0, message | cq.FlagMultiRecv,
			[]string{"1", "2", "3"}, 3},
		{"ordinary, by itself", 0, 0, cq.FlagMultiRecv, []string{"1", "2", "3"}, 2},
		{"selective, with the last message", cq.FlagSelectiveCompletion, 0, message | cq.FlagMultiRecv,
			[]string{"3"}, 3},
		{"selective, by itself", cq.FlagSelectiveCompletion, 0, cq.FlagMultiRecv, []string{"3"}, 2},
		{"selective, asked for", cq.FlagSelectiveCompletion, cq.FlagCompletion, cq.FlagMultiRecv,
			[]string{"1", "2", "3"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 4})
			count := tally(t, cq.CounterOptions{})
			b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagRecv | tt.selective,
				Counters: []cq.CounterBinding{{Counter: count, Flags: cq.FlagRecv}}})
			must(t, err)
			defer b.Close()
			op := tt.op | cq.FlagMultiRecv
			must(t, b.Begin(op))
			if w.Credits().Len() != 1 {
				t.Errorf("%d credits", w.Credits().Len())
			}
			must(t, b.Complete(&cq.Entry{Context: 1, Flags: message}, op))
			must(t, b.Complete(&cq.Entry{Context: 2, Flags: message}, op))
			for w.Post(&cq.Entry{}) == nil { // until there is room for nothing but the release
			}
			must(t, b.Complete(&cq.Entry{Context: 3, Flags: tt.last}, op))
			got := slices.DeleteFunc(takeAll(t, q), func(s string) bool { return s == "0" })
			if !slices.Equal(got, tt.want) || w.Credits().Len() != 0 {
				t.Errorf("%v, %d credits", got, w.Credits().Len())
			}
			wantCounter(t, count, tt.counted, 0)
		})
	}
}

// TestTargetCompletions: what a peer did here is counted, and completes if it carries data.
func TestTargetCompletions(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4})
	reads, writes := tally(t, cq.CounterOptions{}), tally(t, cq.CounterOptions{})
	b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagRecv,
		Counters: []cq.CounterBinding{{Counter: reads, Flags: cq.FlagRemoteRead},
			{Counter: writes, Flags: cq.FlagRemoteWrite}}})
	must(t, err)
	defer b.Close()
	write := cq.FlagRMA | cq.FlagRemoteWrite
	must(t, b.CompleteTarget(&cq.Entry{Flags: cq.FlagRMA | cq.FlagRemoteRead}))
	must(t, b.CompleteTarget(&cq.Entry{Flags: write}))
	must(t, b.CompleteTarget(&cq.Entry{Context: 99, Flags: write | cq.FlagRemoteCQData, Data: 7}))
	dst := make([]cq.Data, 4)
	n, err := cq.Read(q, dst)
	if n != 1 || err != nil || dst[0].Context != 0 || dst[0].Data != 7 ||
		dst[0].Flags != write|cq.FlagRemoteCQData|cq.FlagNoContext {
		t.Errorf("%d, %v, %+v", n, err, dst[0])
	}
	wantCounter(t, reads, 1, 0)
	wantCounter(t, writes, 2, 0)
	wantErr(t, "the other side", b.CompleteTarget(&cq.Entry{Flags: cq.FlagSend}), cq.ErrInvalid)
}

// TestBindingSources: a binding keeps its address vector open, and asks it.
func TestBindingSources(t *testing.T) {
	v, err := cq.CreateAddresses(cq.Unnamed("bound"), cq.AddressOptions{})
	must(t, err)
	insert(t, v, sockaddrs(0, 2)...)
	q, w := pair(t, cq.Options{Size: 8})
	count := tally(t, cq.CounterOptions{})
	b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Addresses: v, Source: cq.SourceErr,
		Flags:    cq.FlagRecv | cq.FlagSelectiveCompletion,
		Counters: []cq.CounterBinding{{Counter: count, Flags: cq.FlagRecv}}})
	must(t, err)
	wantErr(t, "close", v.Close(), cq.ErrBusy, syscall.EBUSY)
	wantErr(t, "detach", v.Detach(), cq.ErrBusy)
	for i, op := range []cq.Flags{cq.FlagCompletion, cq.FlagCompletion, 0, cq.FlagCompletion} {
		must(t, b.Begin(op))
		must(t, b.CompleteFrom(arrived(uint64(i)), op, sockaddr(1+i%2*8)))
	}
	dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
	if n, err := cq.ReadFrom(q, dst, src); n != 1 || err != nil || src[0] != 1 {
		t.Error(n, err, src)
	}
	if got := takeAll(t, q); !slices.Equal(got, []string{"E1", "E3"}) {
		t.Error(got)
	}
	wantCounter(t, count, 4, 0) // the data has arrived
	must(t, b.Close())
	must(t, v.Close())
	_, err = cq.NewBinding(cq.BindingOptions{Queue: w, Addresses: v, Flags: cq.FlagRecv})
	wantErr(t, "a closed vector", err, cq.ErrClosed)
}

// TestCountersOnly: an endpoint may have counters and no queue. While it does they stay open.
func TestCountersOnly(t *testing.T) {
	count := tally(t, cq.CounterOptions{})
	size, err := cq.CreateCounter(cq.Unnamed("bytes"), cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	kinds := cq.FlagSend | cq.FlagWrite
	b, err := cq.NewBinding(cq.BindingOptions{Flags: cq.FlagTransmit, Counters: []cq.CounterBinding{
		{Counter: count, Flags: kinds}, {Counter: size, Flags: kinds}}})
	must(t, err)
	wantErr(t, "close", size.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, b.Begin(cq.FlagCompletion))
	must(t, b.Complete(&cq.Entry{Flags: cq.FlagSend, Len: 100}, cq.FlagCompletion))
	must(t, b.Complete(&cq.Entry{Flags: cq.FlagRead, Len: 1000}, cq.FlagCompletion))
	must(t, b.Fail(&cq.ErrorEntry{Flags: cq.FlagWrite, Len: 10}, 0))
	b.Drop(cq.FlagCompletion)
	wantCounter(t, count, 1, 1)
	wantCounter(t, size, 100, 1)
	must(t, b.Close())
	must(t, size.Close())
	_, err = cq.NewBinding(cq.BindingOptions{Flags: cq.FlagTransmit, Counters: []cq.CounterBinding{
		{Counter: count, Flags: kinds}, {Counter: size, Flags: kinds}}})
	wantErr(t, "a closed counter", err, cq.ErrClosed)
}

// TestBindingAllocates: reporting costs no memory.
func TestBindingAllocates(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	count := tally(t, cq.CounterOptions{})
	b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagTransmit,
		Counters: []cq.CounterBinding{{Counter: count, Flags: cq.FlagSend}}})
	must(t, err)
	defer b.Close()
	e, dst := cq.Entry{Flags: cq.FlagSend}, make([]cq.Msg, 1)
	if n := testing.AllocsPerRun(100, func() {
		err := errors.Join(b.Begin(0), b.Complete(&e, 0))
		if n, e := cq.Read(q, dst); n != 1 || e != nil || err != nil {
			t.Fatal(n, e, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
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
