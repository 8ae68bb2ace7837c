package cq_test

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// What a child is told.
const (
	envQueue = "SHMRING_TEST_QUEUE"
	envLanes = "SHMRING_TEST_LANES"
	envCount = "SHMRING_TEST_COUNT"
	envLog   = "SHMRING_TEST_LOG"
)

func init() {
	maps.Copy(roles, map[string]func(){
		"writer":  childWriter,
		"creator": childCreator,
	})
}

// child is a running process in a role.
type child struct{ *shmtest.Proc }

func startChild(t testing.TB, role string, env ...string) *child {
	t.Helper()
	return start(t, shmtest.Child(t, role, env...))
}

func start(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	return &child{shmtest.Start(t, cmd)}
}

// What a child does.
var (
	say, need, untilTold = shmtest.Say, shmtest.Need, shmtest.UntilTold
	openFiles, fillGaps  = shmtest.OpenFiles, shmtest.FillGaps
)

func number(name string, other int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return other
}

// toldToStop returns a flag that the parent sets by closing the pipe.
func toldToStop() *atomic.Bool {
	stop, _ := told()
	return stop
}

// told is toldToStop with a channel that is closed then.
func told() (stop *atomic.Bool, stopped <-chan struct{}) {
	stop, end := new(atomic.Bool), make(chan struct{})
	go func() {
		untilTold()
		stop.Store(true)
		close(end)
	}()
	return stop, end
}

// childWriter posts through some lanes at full speed, with pauses in which a reader falls asleep.
// Every entry says its lane and its index there. It stops when told to, or after a number of
// entries; then it keeps its lanes until it is told, and says of each how far it is and how often
// it was refused.
func childWriter() {
	count := uint64(number(envCount, 1<<40))
	stop, stopped := told()
	var all sync.WaitGroup
	ws, _ := attachToParent()
	for _, w := range ws {
		say("lane %d", w.Lane())
		all.Go(func() {
			writeLane(w, stop, count)
			<-stopped // or the lane would go to another one
			say("%d %d %d", w.Lane(), w.Next(), w.Stats().Refused)
			need(w.Close())
		})
	}
	all.Wait()
}

func writeLane(w *cq.Writer, stop *atomic.Bool, count uint64) {
	batch := make([]cq.Entry, 7)
	for round := 0; w.Next() < count && !stop.Load(); round++ {
		at := w.Next()
		n := int(min(uint64(1+round%len(batch)), count-at))
		for i := range batch[:n] {
			batch[i] = cq.Entry{Context: uint64(w.Lane()), Tag: at + uint64(i),
				Data: ^(at + uint64(i))}
		}
		switch _, err := w.PostBatch(batch[:n]); err {
		case cq.ErrFull:
			runtime.Gosched()
		case cq.ErrClosed:
			return
		default:
			need(err)
		}
		if round%200 == 199 {
			time.Sleep(300 * time.Microsecond)
		}
	}
}

// account is how far lanes were read whose writers are such processes, by their numbers.
type account map[int]uint64

// saw takes what was read, of each lane what comes next.
func (a account) saw(t testing.TB, es []cq.Tagged) {
	t.Helper()
	for _, e := range es {
		lane := int(e.Context)
		if e.Tag != a[lane] || e.Data != ^e.Tag {
			t.Fatalf("lane %d: %d where %d should be", lane, e.Tag, a[lane])
		}
		a[lane]++
	}
}

// childCreator makes a queue and keeps it, without reading.
func childCreator() {
	d := shmtest.Needs(shm.OpenDir(""))
	o := cq.Options{Size: 8, Lifetime: cq.Lifetime(number(envCount, 0))}
	q := shmtest.Needs(cq.Create(cq.Named(d, os.Getenv(envQueue)), o))
	say("ready %d", os.Getpid())
	_, _ = io.Copy(io.Discard, os.Stdin)
	need(q.Close())
}

func init() {
	for _, p := range []site{namedSite, memfdSite, othersSite} {
		roles[p.writerRole()] = childToldWriter
	}
	roles["told reader"] = childToldReader
}

// site says where the two ends of a queue are.
type site struct {
	memfd bool // the queue has no name, its writers get its memory over a socket
	far   bool // the writers are another process
	// others says that neither side can write to the other's memory. A far writer is another
	// user's.
	others bool
}

func (p site) String() string {
	s := "named"
	if p.memfd {
		s = "memfd"
	}
	if p.others {
		s = "others"
	}
	if p.far {
		return s + " two-processes"
	}
	return s + " one-process"
}

// sites are where every case runs, and queueSites where those of queues do.
var (
	sites      = []site{{}, {far: true}, {memfd: true}, {memfd: true, far: true}}
	queueSites = append(sites[:4:4], site{memfd: true, others: true},
		site{memfd: true, far: true, others: true})
)

// The sites of tests that have their writers in other processes.
var (
	namedSite  = site{far: true}
	memfdSite  = site{far: true, memfd: true}
	othersSite = site{far: true, memfd: true, others: true}
)

// writerRole is the role of a writer that is told what to do. The binaries of former commits know
// these names, and posts, as post asks for them.
func (p site) writerRole() string {
	switch {
	case p.others:
		return "other user"
	case p.memfd:
		return "joiner"
	}
	return "told writer"
}

// queue returns options with the kind of trust of the site.
func (p site) queue(o cq.Options) cq.Options {
	if p.others {
		o.Trust, o.Allow = cq.CrossUser, bothUsers()
	}
	return o
}

func (p site) events(o cq.EventOptions) cq.EventOptions {
	if p.others {
		o.Trust, o.Allow = cq.CrossUser, bothUsers()
	}
	return o
}

// writer returns the options of a writer in this process.
func (p site) writer() (o cq.WriterOptions) {
	if p.others {
		o.Trust = cq.CrossUser
	}
	return o
}

// create makes a queue for the site.
func (p site) create(t testing.TB, o cq.Options) *cq.Queue {
	t.Helper()
	return p.createAs(t, queueName(t), o)
}

func (p site) createAs(t testing.TB, name string, o cq.Options) *cq.Queue {
	t.Helper()
	q := shmtest.Got(cq.Create(p.place(t, name), p.queue(o))).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	return q
}

// place is where an object of the site is made.
func (p site) place(t testing.TB, name string) cq.Place {
	t.Helper()
	if p.memfd {
		return cq.Unnamed(name)
	}
	return cq.Named(openDir(t), name)
}

// tryAttach attaches a writer of this process.
func (p site) tryAttach(t testing.TB, q *cq.Queue) (*cq.Writer, error) {
	t.Helper()
	if p.memfd {
		return tryJoin(t, q)
	}
	return cq.Attach(t.Context(), cq.Named(openDir(t), q.Name()), cq.WriterOptions{})
}

// attach is tryAttach of a writer that is closed when the test ends.
func (p site) attach(t testing.TB, q *cq.Queue) *cq.Writer {
	t.Helper()
	return shmtest.Have(p.tryAttach(t, q)).In(t)
}

// ownPIDs has a process run in a PID namespace of its own, where its death gives no notice.
func ownPIDs(t testing.TB) *syscall.SysProcAttr {
	t.Helper()
	shmtest.RequireRoot(t, "pidns", "a PID namespace needs root")
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
}

// startAt starts a process in a role that calls attachToParent, for writers of some queues. Those
// of queues for others are another user's.
func startAt(t testing.TB, role string, at site, attr *syscall.SysProcAttr,
	qs ...*cq.Queue) *child {
	t.Helper()
	lanes := fmt.Sprint(envLanes, "=", len(qs))
	var c *child
	var conn *net.UnixConn
	switch {
	case at.others:
		c, conn = startOther(t, role, lanes)
	case at.memfd:
		c, conn = startIn(t, role, attr, lanes)
	default:
		var names []string
		for _, q := range qs {
			names = append(names, q.Name())
		}
		cmd := shmtest.Child(t, role, envQueue+"="+strings.Join(names, "/"))
		cmd.SysProcAttr = attr
		return start(t, cmd)
	}
	for _, q := range qs {
		must(t, q.Accept(soon(t), conn))
	}
	must(t, conn.Close())
	return c
}

func init() { roles["peer"] = childPeer }

// peer is the other process of all cases of a test, started when the first one needs it. It does
// what it is asked to over its standard input and output.
type peer struct {
	t     *testing.T // of the whole test
	once  sync.Once
	asks  *gob.Encoder
	mu    sync.Mutex    // of asks and answers
	conn  *net.UnixConn // over which it gets queues without a name
	other *peer         // one of another user
	user  bool          // this one is that
	// Who waits for the answer to which call; nil when no more will come.
	answers map[int]chan ask
	last    int
}

var peers sync.Map // by the test that they are of

// peerOf returns the peer of a test.
func peerOf(t *testing.T) *peer {
	p, had := peers.LoadOrStore(t, &peer{t: t})
	if !had {
		t.Cleanup(func() { peers.Delete(t) })
	}
	return p.(*peer)
}

// at returns the peer for a site. A case that needs a process of another user is skipped, alone,
// where this one may not start it.
func (p *peer) at(t testing.TB, s site) *peer {
	t.Helper()
	if !s.others {
		return p
	}
	if s.far {
		shmtest.NeedOther(t)
	}
	if p.other == nil {
		p.other = &peer{t: p.t, user: true}
	}
	return p.other
}

// ask is a call on its way to the other process, or what came of it on its way back. net/rpc does
// this too, and brings net/http and crypto into the largest of the test binaries.
type ask struct {
	ID     int
	Method string
	Value  []byte // the arguments, or the reply
	Failed string
}

func pack(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

func unpack(b []byte, v any) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) }

// call has the peer do something. Calls may be made side by side, and may block there.
func (p *peer) call(t testing.TB, method string, args, reply any) {
	t.Helper()
	p.start(t)
	value := shmtest.Got(pack(args)).Or(t)
	answer := make(chan ask, 1)
	p.mu.Lock()
	if p.answers == nil {
		p.mu.Unlock()
		t.Fatalf("other process: %s: it has ended", method)
	}
	p.last++
	p.answers[p.last] = answer
	err := p.asks.Encode(ask{ID: p.last, Method: method, Value: value})
	p.mu.Unlock()
	must(t, err)
	if a, came := <-answer; !came {
		t.Fatalf("other process: %s: it ended", method)
	} else if a.Failed != "" {
		t.Fatalf("other process: %s: %s", method, a.Failed)
	} else {
		must(t, unpack(a.Value, reply))
	}
}

func (p *peer) start(t testing.TB) {
	t.Helper()
	p.once.Do(func() {
		var c *child
		if p.user {
			c, p.conn = startOther(p.t, "peer")
		} else {
			c, p.conn = startIn(p.t, "peer", nil)
		}
		registerGob()
		p.asks, p.answers = gob.NewEncoder(c.In), map[int]chan ask{}
		go p.listen(gob.NewDecoder(c.Out))
		p.t.Cleanup(func() { _ = c.In.Close() })
	})
}

// listen hands each answer to who waits for it, until the other process ends.
func (p *peer) listen(answers *gob.Decoder) {
	for {
		var a ask
		err := answers.Decode(&a)
		p.mu.Lock()
		if err != nil {
			for _, waiting := range p.answers {
				close(waiting)
			}
			p.answers = nil
			p.mu.Unlock()
			return
		}
		p.answers[a.ID] <- a
		delete(p.answers, a.ID)
		p.mu.Unlock()
	}
}

// offer is a method of a Peer as it is called from another process.
func offer[A, R any](do func(A, *R) error) func(value []byte) ([]byte, error) {
	return func(value []byte) ([]byte, error) {
		var args A
		var reply R
		if err := unpack(value, &args); err != nil {
			return nil, err
		}
		if err := do(args, &reply); err != nil {
			return nil, err
		}
		return pack(reply)
	}
}

// childPeer serves until its input ends.
func childPeer() {
	registerGob()
	p := &Peer{user: os.Getenv("SOCKET") != ""}
	if p.user {
		p.conn = dialParent()
	} else {
		p.d = shmtest.Needs(shm.OpenDir(""))
		p.conn = shmtest.Needs(shmtest.Socket(3))
	}
	offers := map[string]func([]byte) ([]byte, error){"Open": offer(p.Open), "Call": offer(p.Call),
		"Side": offer(p.Side), "Litmus": offer(p.Litmus), "SignalQueue": offer(p.SignalQueue)}
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	var mu sync.Mutex // of out
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		var a ask
		if in.Decode(&a) != nil {
			return
		}
		calls.Go(func() {
			value, err := offers[a.Method](a.Value)
			if a.Value = value; err != nil {
				a.Failed = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			need(out.Encode(a))
		})
	}
}
