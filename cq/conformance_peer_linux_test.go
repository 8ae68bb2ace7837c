package cq_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/rpc"
	"os"
	"sync"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

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
	mode cq.SourceMode) error {
	w.t.Helper()
	a := PostArgs{How: "from", Entries: []cq.Entry{*e}, Raw: raw, Mode: mode}
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
	Mode      cq.SourceMode
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
		return cq.AttachConn(context.Background(), p.conn, p.options())
	}
	return cq.Attach(context.Background(), p.d, queue, cq.WriterOptions{})
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
		err = w.PostCredited(&a.Entries[0])
	case "error":
		err = w.PostError(&a.Error)
	case "error credited":
		err = w.PostErrorCredited(&a.Error)
	case "credit":
		err = w.Credit(a.N)
	case "from":
		err = w.PostFrom(&a.Entries[0], a.Raw, p.vectors[a.N], a.Mode)
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
	reply.Err = toWire(cq.SignalQueue(p.d, queue))
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
