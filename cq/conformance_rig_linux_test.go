package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// The conformance suite: one test per demand of the pages, named after the call and the case, and
// named by a row of testdata/conformance.tsv. Where two parties take part, each runs in one process
// and across two, on named objects and on memfds; what is about queues also on memfds that no two
// parties can write to, and then the second process is another user's.

// sampled are the sites where the cases run, with -short one of each kind.
func sampled(all []site) []site {
	if testing.Short() {
		return slices.DeleteFunc(slices.Clone(all), func(p site) bool { return p.far != p.memfd })
	}
	return all
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

// conform runs a case that has a queue with one writer, at every site.
func conform(t *testing.T, name string, o cq.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	p := &peer{t: t}
	t.Run(name, func(t *testing.T) {
		for _, at := range sampled(queueSites) {
			t.Run(at.String(), func(t *testing.T) {
				shmtest.Conforms(t)
				r := newRig(t, at, p, o)
				r.w = r.attach(t)
				f(t, r)
			})
		}
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
		return r.p.attach(t, r.address())
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
	var reply PostReply
	r.p.call(t, "SignalQueue", r.q.Name(), &reply)
	return reply.Err.err()
}

func (r *rig) postError(t testing.TB, context uint64) {
	t.Helper()
	must(t, r.w.PostError(&cq.ErrorEntry{Context: context, Err: cq.ETrunc}))
}

// wantContexts checks which contexts one read returned.
func wantContexts(t testing.TB, what string, got []uint64, want ...uint64) {
	t.Helper()
	if strings.Trim(fmt.Sprint(got), "[]") != strings.Trim(fmt.Sprint(want), "[]") {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// crossing are the errors that have the same identity on both sides of a process border.
var crossing = []error{cq.ErrFull, cq.ErrClosed, cq.ErrOverrun, cq.ErrNoCredit, cq.ErrWouldBlock,
	cq.ErrInvalid, cq.ErrAvail, cq.ErrTimedOut, cq.ErrBusy, cq.ErrSignaled, cq.ErrNoWait}

// wire is an error on its way between processes.
type wire struct {
	Sentinel int // 1 + index in crossing
	Text     string
}

func toWire(err error) (w wire) {
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

func (w wire) err() error {
	switch {
	case w.Text == "":
		return nil
	case w.Sentinel != 0:
		return crossing[w.Sentinel-1]
	}
	return errors.New(w.Text)
}

func init() { roles["peer"] = childPeer }

// peer is the other process of all cases of a test, started when the first one needs it. It does
// what it is asked to over its standard input and output.
type peer struct {
	t      *testing.T // of the whole test
	once   sync.Once
	client *rpc.Client
	conn   *net.UnixConn // over which it gets queues without a name
	other  *peer         // one of another user
	user   bool          // this one is that
}

// at returns the peer for a site. A case that needs a process of another user is skipped, alone,
// where this one may not start it.
func (p *peer) at(t testing.TB, s site) *peer {
	t.Helper()
	if !s.others {
		return p
	}
	if s.far {
		_ = asNobody(t)
	}
	if p.other == nil {
		p.other = &peer{t: p.t, user: true}
	}
	return p.other
}

type pipes struct {
	io.Reader
	io.WriteCloser
}

// call has the peer do something. Calls may be made side by side, and may block there.
func (p *peer) call(t testing.TB, method string, args, reply any) {
	t.Helper()
	p.start(t)
	if err := p.client.Call("Peer."+method, args, reply); err != nil {
		t.Fatalf("other process: %s: %v", method, err)
	}
}

func (p *peer) start(t testing.TB) {
	t.Helper()
	p.once.Do(func() {
		var c *child
		var conn *net.UnixConn
		if p.user {
			o := startOther(p.t, "peer")
			c, conn = o.child, o.conn
		} else {
			c, conn = startWithSocket(p.t, "peer")
		}
		p.client, p.conn = rpc.NewClient(pipes{c.out, c.in}), conn
		p.t.Cleanup(func() { _ = p.client.Close() })
	})
}

// attach returns a writer in the other process.
func (p *peer) attach(t testing.TB, queue string) sink {
	t.Helper()
	w := &farWriter{t: t, p: p}
	var reply AttachReply
	p.call(t, "Attach", queue, &reply)
	must(t, reply.Err.err())
	w.handle = reply.Handle
	t.Cleanup(func() { must(t, w.Unbind()); must(t, w.Close()) })
	return w
}

// farWriter is a writer of another process.
type farWriter struct {
	t      testing.TB
	p      *peer
	handle int
}

func (w *farWriter) do(a PostArgs) (int, error) {
	w.t.Helper()
	a.Handle = w.handle
	var reply PostReply
	w.p.call(w.t, "Post", a, &reply)
	return reply.N, reply.Err.err()
}

func (w *farWriter) Post(e *cq.Entry) error {
	_, err := w.do(PostArgs{How: "post", Entries: []cq.Entry{*e}})
	return err
}

func (w *farWriter) PostBatch(es []cq.Entry) (int, error) {
	return w.do(PostArgs{How: "batch", Entries: es})
}

func (w *farWriter) PostCredited(e *cq.Entry) error {
	_, err := w.do(PostArgs{How: "credited", Entries: []cq.Entry{*e}})
	return err
}

func (w *farWriter) PostError(e *cq.ErrorEntry) error {
	_, err := w.do(PostArgs{How: "error", Error: *e})
	return err
}

func (w *farWriter) PostErrorCredited(e *cq.ErrorEntry) error {
	_, err := w.do(PostArgs{How: "error credited", Error: *e})
	return err
}

func (w *farWriter) Credit(n int) error {
	_, err := w.do(PostArgs{How: "credit", N: n})
	return err
}

func (w *farWriter) PostFrom(e *cq.Entry, raw []byte, v *cq.AddressVector,
	sourceErr bool) error {
	w.t.Helper()
	a := PostArgs{How: "from", Entries: []cq.Entry{*e}, Raw: raw, SourceErr: sourceErr}
	w.p.call(w.t, "OpenVector", VectorArgs{Name: v.Name(), FD: -1}, &a.N)
	_, err := w.do(a)
	w.p.call(w.t, "CloseVector", a.N, new(int))
	return err
}

func (w *farWriter) Bind(flags cq.Flags) error {
	_, err := w.do(PostArgs{How: "bind", Flags: flags})
	return err
}

func (w *farWriter) Begin(op cq.Flags) error {
	_, err := w.do(PostArgs{How: "begin", Flags: op})
	return err
}

func (w *farWriter) Complete(e *cq.Entry, op cq.Flags) error {
	_, err := w.do(PostArgs{How: "complete", Flags: op, Entries: []cq.Entry{*e}})
	return err
}

func (w *farWriter) Fail(e *cq.ErrorEntry, op cq.Flags) error {
	_, err := w.do(PostArgs{How: "fail", Flags: op, Error: *e})
	return err
}

func (w *farWriter) Unbind() error {
	_, err := w.do(PostArgs{How: "unbind"})
	return err
}

func (w *farWriter) Close() error {
	_, err := w.do(PostArgs{How: "close"})
	return err
}

// Peer is what the other process offers.
type Peer struct {
	sync.Mutex
	d        *shm.Dir
	conn     *net.UnixConn
	writers  []*nearWriter
	vectors  []*cq.AddressVector
	events   []*cq.EventWriter
	counters []*cq.Counter
	side     *side
	user     bool // another one than the parent's
}

// options are those of a writer of a queue that comes over the socket.
func (p *Peer) options() (o cq.WriterOptions) {
	if p.user {
		o.Trust, o.Allow = cq.CrossUser, &shm.AllowList{UIDs: []int{0}}
	}
	return o
}

// PostArgs is a call of a writer.
type PostArgs struct {
	Handle, N int
	How       string
	Entries   []cq.Entry
	Error     cq.ErrorEntry
	Raw       []byte
	SourceErr bool
	Flags     cq.Flags
}

// PostReply is what came of it.
type PostReply struct {
	N   int
	Err wire
}

// AttachReply is a new writer.
type AttachReply struct {
	Handle int
	Err    wire
}

// writer attaches to a queue by name, or to the one that comes over the socket.
func (p *Peer) writer(queue string) (*cq.Writer, error) {
	if queue == "" {
		return cq.Attach(context.Background(), cq.Over(p.conn), p.options())
	}
	return cq.Attach(context.Background(), cq.Named(p.d, queue), cq.WriterOptions{})
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

// Attach adds a writer of the queue.
func (p *Peer) Attach(queue string, reply *AttachReply) error {
	w, err := p.writer(queue)
	p.Lock()
	defer p.Unlock()
	p.writers = append(p.writers, &nearWriter{Writer: w})
	*reply = AttachReply{Handle: len(p.writers) - 1, Err: toWire(err)}
	return nil
}

// Post does what a writer can.
func (p *Peer) Post(a PostArgs, reply *PostReply) error {
	p.Lock()
	w := p.writers[a.Handle]
	p.Unlock()
	n, err := 0, error(nil)
	switch a.How {
	case "post":
		err = w.Post(&a.Entries[0])
	case "batch":
		n, err = w.PostBatch(a.Entries)
	case "credited":
		err = w.Credits().Post(&a.Entries[0])
	case "error":
		err = w.PostError(&a.Error)
	case "error credited":
		err = w.Credits().PostError(&a.Error)
	case "credit":
		err = w.Credits().Add(a.N)
	case "from":
		err = w.PostFrom(&a.Entries[0], a.Raw, p.vectors[a.N], a.SourceErr)
	case "bind":
		err = w.Bind(a.Flags)
	case "begin":
		err = w.Begin(a.Flags)
	case "complete":
		err = w.Complete(&a.Entries[0], a.Flags)
	case "fail":
		err = w.Fail(&a.Error, a.Flags)
	case "unbind":
		err = w.Unbind()
	case "close":
		err = w.Close()
	default:
		return errors.New("no such call: " + a.How)
	}
	*reply = PostReply{N: n, Err: toWire(err)}
	return nil
}

// SignalQueue signals a queue by name.
func (p *Peer) SignalQueue(queue string, reply *PostReply) error {
	reply.Err = toWire(cq.SignalQueue(cq.Named(p.d, queue)))
	return nil
}

// childPeer serves until its input ends.
func childPeer() {
	s, p := rpc.NewServer(), &Peer{user: os.Getenv("SOCKET") != ""}
	var err error
	if p.user {
		p.conn = dialParent()
	} else {
		p.d, err = shm.OpenDir("")
		need(err)
		p.conn, err = socket(3)
		need(err)
	}
	need(s.Register(p))
	s.ServeConn(pipes{os.Stdin, os.Stdout})
}
