package cq_test

import (
	"bytes"
	"encoding/gob"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

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
	value, err := pack(args)
	must(t, err)
	answer := make(chan ask, 1)
	p.mu.Lock()
	if p.answers == nil {
		p.mu.Unlock()
		t.Fatalf("other process: %s: it has ended", method)
	}
	p.last++
	p.answers[p.last] = answer
	err = p.asks.Encode(ask{ID: p.last, Method: method, Value: value})
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
			o := startOther(p.t, "peer")
			c, p.conn = o.child, o.conn
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
	var err error
	if p.user {
		p.conn = dialParent()
	} else {
		p.d, err = shm.OpenDir("")
		need(err)
		p.conn, err = socket(3)
		need(err)
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
