package cq_test

import (
	"context"
	"encoding/gob"
	"errors"
	"flag"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"reflect"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// The conformance suite: one test per demand of the pages, named after the call and the case, and
// named by a row of testdata/conformance.tsv. Where two parties take part, each runs in one process
// and across two, on named objects and on memfds; what is about queues also on memfds that no two
// parties can write to, and then the second process is another user's.

var (
	sitesFull = flag.Bool("sites.full", false, "play each case of the conformance suite at every site")
	sitesSeed = flag.Uint64("sites.seed", 0, "choose the sites of each case; 0: anyhow")
)

// siteChoice chooses the sites of cases, by their names.
var siteChoice = sync.OnceValue(func() uint64 {
	if *sitesSeed != 0 {
		return *sitesSeed
	}
	return rand.Uint64()
})

// sampled are the sites where a case runs: the first, and a random half of the rest, of which other
// cases have others.
func sampled(t *testing.T, name string, all []site) []site {
	if *sitesFull {
		return all
	}
	t.Log("-sites.seed", siteChoice())
	h := fnv.New64a()
	_, _ = h.Write([]byte(t.Name() + "/" + name))
	at := rand.New(rand.NewPCG(siteChoice(), h.Sum64())).Perm(len(all) - 1)
	out := all[:1:1]
	for _, i := range at[:len(at)/2] {
		out = append(out, all[1+i])
	}
	return out
}

// sink is a writer, in this process or another one.
type sink interface {
	Post(e *cq.Entry) error
	PostBatch(es []cq.Entry) (int, error)
	PostError(e *cq.ErrorEntry) error
	Credit(n int) error
	PostCredited(e *cq.Entry) error
	PostErrorCredited(e *cq.ErrorEntry) error
	PostFrom(e *cq.Entry, raw []byte, v *cq.AddressVector, sourceErr bool) error
	Bind(flags cq.Flags) error // an endpoint, to which the rest belongs
	Begin(op cq.Flags) error
	Complete(e *cq.Entry, op cq.Flags) error
	Fail(e *cq.ErrorEntry, op cq.Flags) error
	Unbind() error
	Close() error
}

// nearWriter is a writer with an endpoint, in the process that calls it.
type nearWriter struct {
	*cq.Writer
	b *feed.Binding
}

func (w *nearWriter) Credit(n int) error             { return w.Credits().Add(n) }
func (w *nearWriter) PostCredited(e *cq.Entry) error { return w.Credits().Post(e) }
func (w *nearWriter) PostErrorCredited(e *cq.ErrorEntry) error {
	return w.Credits().PostError(e)
}

func (w *nearWriter) PostFrom(e *cq.Entry, raw []byte, v *cq.AddressVector, sourceErr bool) error {
	return postFrom(w.Writer, e, raw, v, sourceErr)
}

func (w *nearWriter) Bind(flags cq.Flags) (err error) {
	w.b, err = feed.Bind(feed.Options{Queue: w.Writer, Flags: flags})
	return err
}

// Unbind ends the endpoint, if there is one.
func (w *nearWriter) Unbind() error {
	if w.b == nil {
		return nil
	}
	return w.b.Close()
}

func (w *nearWriter) Begin(op cq.Flags) error                  { return w.b.Begin(op) }
func (w *nearWriter) Complete(e *cq.Entry, op cq.Flags) error  { return w.b.Complete(e, op) }
func (w *nearWriter) Fail(e *cq.ErrorEntry, op cq.Flags) error { return w.b.Fail(e, op) }

// rig is a queue with one writer at some site.
type rig struct {
	site
	d *shm.Dir
	q *cq.Queue
	w sink
	p *peer // where the writers of a far site live
}

// eachSite runs a case at every site, with one process of the test for those that have another.
func eachSite(t *testing.T, name string, all []site, f func(t *testing.T, at site, p *peer)) {
	t.Helper()
	p := peerOf(t)
	t.Run(name, func(t *testing.T) {
		for _, at := range sampled(t, name, all) {
			t.Run(at.String(), func(t *testing.T) {
				shmtest.Conforms(t)
				f(t, at, p)
			})
		}
	})
}

// conform runs a case that has a queue with one writer, at every site.
func conform(t *testing.T, name string, o cq.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	eachSite(t, name, queueSites, func(t *testing.T, at site, p *peer) {
		r := newRig(t, at, p, o)
		r.w = r.attach(t)
		f(t, r)
	})
}

// conformOnce runs a case that has one party.
func conformOnce(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		shmtest.Conforms(t)
		f(t)
	})
}

func newRig(t *testing.T, at site, p *peer, o cq.Options) *rig {
	t.Helper()
	p = p.at(t, at)
	return &rig{site: at, d: openDir(t), q: at.create(t, o), p: p}
}

// attach returns another writer at the rig's site.
func (r *rig) attach(t *testing.T) sink {
	t.Helper()
	w := new(nearWriter)
	if r.far {
		defer r.hand(t)()
		w := r.p.open(t, OpenArgs{Kind: "writer", Name: r.address()})
		t.Cleanup(func() { must(t, w.Unbind()) })
		return w
	}
	w.Writer = r.site.attach(t, r.q)
	t.Cleanup(func() { must(t, w.Unbind()) })
	return w
}

// address is how the other process gets at the queue: its name, or nothing for one that it gets
// over its socket.
func (r *rig) address() string {
	if r.memfd {
		return ""
	}
	return r.q.Name()
}

// hand gives a queue without a name to a writer in the other process; wait returns when it has it.
func (r *rig) hand(t *testing.T) (wait func()) {
	t.Helper()
	if !r.memfd {
		return func() {}
	}
	r.p.start(t)
	done := accept(soon(t), r.q, r.p.conn)
	return func() { must(t, <-done) }
}

// post publishes contexts from to to-1.
func (r *rig) post(t testing.TB, from, to uint64) {
	t.Helper()
	postTo(t, r.w, from, to)
}

func postTo(t testing.TB, w sink, from, to uint64) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := w.Post(&cq.Entry{Context: i}); err != nil {
			t.Fatalf("post %d: %v", i, err)
		}
	}
}

// signalOutside ends a blocking read without being a party of the queue.
func (r *rig) signalOutside(t testing.TB) error {
	if !r.far {
		return cq.SignalQueue(cq.Named(r.d, r.q.Name()))
	}
	var reply Wire
	r.p.call(t, "SignalQueue", r.q.Name(), &reply)
	return reply.err()
}

func (r *rig) postError(t testing.TB, context uint64) {
	t.Helper()
	must(t, r.w.PostError(&cq.ErrorEntry{Context: context, Err: cq.ETrunc}))
}

// crossing are the errors that have the same identity on both sides of a process border.
var crossing = []error{cq.ErrFull, cq.ErrClosed, cq.ErrOverrun, cq.ErrNoCredit, cq.ErrWouldBlock,
	cq.ErrInvalid, cq.ErrAvail, cq.ErrTimedOut, cq.ErrBusy, cq.ErrSignaled, cq.ErrNoWait}

// Wire is an error on its way between processes.
type Wire struct {
	Sentinel int // 1 + index in crossing
	Text     string
}

func toWire(err error) (w Wire) {
	if err == nil {
		return w
	}
	for i, s := range crossing {
		if errors.Is(err, s) && (w.Sentinel == 0 || err == s) {
			w.Sentinel = i + 1
		}
	}
	w.Text = err.Error()
	return w
}

func (w Wire) err() error {
	switch {
	case w.Text == "":
		return nil
	case w.Sentinel != 0:
		return crossing[w.Sentinel-1]
	}
	return errors.New(w.Text)
}

// OpenArgs say what the other process opens: by name, or what comes over the socket.
type OpenArgs struct {
	Kind, Name string
	FD         bool // the object's descriptor comes; Name is what it is called
}

// open opens an object in the other process, which ends with the test.
func (p *peer) open(t testing.TB, a OpenArgs) *far {
	t.Helper()
	f := &far{t: t, p: p}
	p.call(t, "Open", a, &f.handle)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

// far is an object of another process, of whatever kind.
type far struct {
	t      testing.TB
	p      *peer
	handle Handle
}

// Handle stands for an object in the process that has it.
type Handle int

// CallArgs is a call of a method.
type CallArgs struct {
	Handle Handle
	Method string
	In     []any
}

// CallReply is what came of it: results, the error among them, and what is in the buffer that was
// the last argument.
type CallReply struct {
	Out    []any
	Err    Wire
	Buffer []byte
}

// registerGob lets values of these types be arguments and results.
var registerGob = sync.OnceFunc(func() {
	for _, v := range []any{&cq.Entry{}, []cq.Entry{}, &cq.ErrorEntry{}, &cq.Event{},
		&cq.EventError{}, cq.Flags(0), cq.Addr(0), Handle(0)} {
		gob.Register(v)
	}
})

func (f *far) call(method string, in ...any) (reply CallReply) {
	f.t.Helper()
	f.p.call(f.t, "Call", CallArgs{f.handle, method, in}, &reply)
	return reply
}

// just is a method that returns an error, and num one that returns a number before it.
func (f *far) just(method string, in ...any) error { return f.call(method, in...).Err.err() }

func num[T any](r CallReply) (T, error) { return r.Out[0].(T), r.Err.err() }

// What a writer can, and one with an endpoint.
func (f *far) Post(e *cq.Entry) error                   { return f.just("Post", e) }
func (f *far) PostBatch(es []cq.Entry) (int, error)     { return num[int](f.call("PostBatch", es)) }
func (f *far) PostCredited(e *cq.Entry) error           { return f.just("PostCredited", e) }
func (f *far) PostError(e *cq.ErrorEntry) error         { return f.just("PostError", e) }
func (f *far) PostErrorCredited(e *cq.ErrorEntry) error { return f.just("PostErrorCredited", e) }
func (f *far) Credit(n int) error                       { return f.just("Credit", n) }
func (f *far) Bind(flags cq.Flags) error                { return f.just("Bind", flags) }
func (f *far) Begin(op cq.Flags) error                  { return f.just("Begin", op) }
func (f *far) Complete(e *cq.Entry, op cq.Flags) error  { return f.just("Complete", e, op) }
func (f *far) Fail(e *cq.ErrorEntry, op cq.Flags) error { return f.just("Fail", e, op) }
func (f *far) Unbind() error                            { return f.just("Unbind") }
func (f *far) Close() error                             { return f.just("Close") }

// PostFrom has the other process open the vector.
func (f *far) PostFrom(e *cq.Entry, raw []byte, v *cq.AddressVector, sourceErr bool) error {
	f.t.Helper()
	there := &far{t: f.t, p: f.p}
	f.p.call(f.t, "Open", OpenArgs{Kind: "vector", Name: v.Name()}, &there.handle)
	return errors.Join(f.just("PostFrom", e, raw, there.handle, sourceErr), there.Close())
}

// What a writer of events can.
func (f *far) Write(ev *cq.Event) (int, error)         { return num[int](f.call("Write", ev)) }
func (f *far) WriteErr(ev *cq.EventError) (int, error) { return num[int](f.call("WriteErr", ev)) }

// What a counter can.
func (f *far) Add(n uint64) error       { return f.just("Add", n) }
func (f *far) AddErr(n uint64) error    { return f.just("AddErr", n) }
func (f *far) Set(v uint64) error       { return f.just("Set", v) }
func (f *far) SetErr(v uint64) error    { return f.just("SetErr", v) }
func (f *far) Read() (uint64, error)    { return num[uint64](f.call("Read")) }
func (f *far) ReadErr() (uint64, error) { return num[uint64](f.call("ReadErr")) }

// What an address vector can that another process has.
func (f *far) Lookup(a cq.Addr, buf []byte) (int, error) {
	reply := f.call("Lookup", a, buf)
	copy(buf, reply.Buffer)
	return num[int](reply)
}

func (f *far) Resolve(raw []byte) (cq.Addr, bool) {
	reply := f.call("Resolve", raw)
	return reply.Out[0].(cq.Addr), reply.Out[1].(bool)
}

// Peer is what the other process offers.
type Peer struct {
	sync.Mutex
	d       *shm.Dir
	conn    *net.UnixConn
	objects []any // by handle
	side    *side
	user    bool // another one than the parent's
}

// options are those of a writer of a queue that comes over the socket.
func (p *Peer) options() (o cq.WriterOptions) {
	if p.user {
		o.Trust, o.Allow = cq.CrossUser, &shm.AllowList{UIDs: []int{0}}
	}
	return o
}

// writer attaches to a queue by name, or to the one that comes over the socket.
func (p *Peer) writer(queue string) (*cq.Writer, error) {
	place, o := p.where(queue)
	return cq.Attach(context.Background(), place, o)
}

func (p *Peer) where(queue string) (cq.Place, cq.WriterOptions) {
	if queue == "" {
		return cq.Over(p.conn), p.options()
	}
	return cq.Named(p.d, queue), cq.WriterOptions{}
}

// Open opens an object, and keeps it.
func (p *Peer) Open(a OpenArgs, handle *Handle) (err error) {
	place := cq.Named(p.d, a.Name)
	if a.FD {
		fd, err := p.receive()
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		place = cq.FromFD(fd, a.Name)
	}
	var o any
	switch a.Kind {
	case "writer":
		w := new(nearWriter)
		w.Writer, err = p.writer(a.Name)
		o = w
	case "events":
		place, wo := p.where(a.Name)
		o, err = cq.AttachEvents(context.Background(), place, wo)
	case "counter":
		o, err = cq.AttachCounter(place, cq.CounterOptions{})
	case "vector":
		o, err = cq.AttachAddresses(place)
	}
	p.Lock()
	defer p.Unlock()
	p.objects = append(p.objects, o)
	*handle = Handle(len(p.objects) - 1)
	return err
}

// Call calls a method.
func (p *Peer) Call(a CallArgs, reply *CallReply) error {
	p.Lock()
	m := reflect.ValueOf(p.objects[a.Handle]).MethodByName(a.Method)
	in := make([]reflect.Value, len(a.In))
	for i, v := range a.In {
		if h, is := v.(Handle); is {
			v = p.objects[h]
		}
		in[i] = reflect.ValueOf(v)
	}
	p.Unlock()
	for _, v := range m.Call(in) {
		if v.Type() == reflect.TypeFor[error]() {
			err, _ := v.Interface().(error)
			reply.Err = toWire(err)
		} else {
			reply.Out = append(reply.Out, v.Interface())
		}
	}
	if len(a.In) > 0 {
		reply.Buffer, _ = a.In[len(a.In)-1].([]byte)
	}
	return nil
}

// send passes a descriptor, unless it is -1, to the call that is made next.
func (p *peer) send(t testing.TB, fd int) {
	t.Helper()
	if fd >= 0 {
		p.start(t)
		must(t, shm.SendFDs(p.conn, []byte("object"), fd))
	}
}

// receive returns the descriptor that came with a call.
func (p *Peer) receive() (int, error) {
	_, fds, err := shm.RecvFDs(p.conn, make([]byte, 16), 1)
	if err == nil && len(fds) != 1 {
		err = errors.New("no descriptor came")
	}
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// SignalQueue signals a queue by name.
func (p *Peer) SignalQueue(queue string, reply *Wire) error {
	*reply = toWire(cq.SignalQueue(cq.Named(p.d, queue)))
	return nil
}
