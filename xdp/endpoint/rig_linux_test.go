package endpoint_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"holder": holder, "closer": closer,
		"event reader": eventReader})
}

var must, need = shmtest.Must, shmtest.Need

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:4791")
	addrB = netip.MustParseAddrPort("192.0.2.2:4791")
	macA  = [6]byte{2, 0, 0, 0, 0, 1}
	macB  = [6]byte{2, 0, 0, 0, 0, 2}
)

// side is an endpoint on a simulated socket, with its queue in this process.
type side struct {
	*endpoint.Endpoint
	kernel *xskernel.Kernel
	dir    *shm.Dir
	name   string
	q      *cq.Queue
	rx, tx *cq.Writer
	av     *cq.AddressVector
	peer   cq.Addr
	lies   bool // the kernel does
}

// options change what a side is made with.
type options struct {
	umem   xdp.UMEMOptions
	sim    xdptest.SimOptions
	queue  cq.Options
	opened func(s *side) // when it has its queue
	config func(c *endpoint.Config)
	self   netip.AddrPort
	peer   netip.AddrPort
	mac    [6]byte
	next   [6]byte
	lies   bool // the kernel does
}

func sideOptions() options {
	return options{umem: xdp.UMEMOptions{Frames: 64}, self: addrA, peer: addrB, mac: macA, next: macB}
}

// newSide opens an endpoint that knows one peer.
func newSide(t testing.TB, name string, o options) *side {
	t.Helper()
	socket, kernel := xdptest.NewSim(t, o.umem, o.sim)
	s := &side{name: name, kernel: kernel, lies: o.lies}
	s.prepare(t, o.queue, 8)
	if o.opened != nil {
		o.opened(s)
	}
	s.peer = s.know(t, o.peer)
	s.open(t, endpoint.Config{Socket: socket, Local: o.self,
		Resolver: endpoint.Static{o.peer.Addr(): xdp.Hop{LocalMAC: o.mac,
			NextMAC: o.next, Source: o.self.Addr(), MTU: 1500}}}, o.config)
	return s
}

// prepare makes what an endpoint reports to and looks up in.
func (s *side) prepare(t testing.TB, o cq.Options, peers int) {
	t.Helper()
	s.dir = shmtest.Have(shm.OpenDir("")).In(t)
	var err error
	s.q = shmtest.Got(cq.Create(cq.Named(s.dir, s.name), o)).Or(t)
	for _, w := range []**cq.Writer{&s.rx, &s.tx} {
		*w = shmtest.Got(cq.Attach(t.Context(), cq.Named(s.dir, s.name), cq.WriterOptions{})).Or(t)
	}
	s.av, err = cq.CreateAddresses(cq.Unnamed(s.name+"-av"), cq.AddressOptions{Count: peers})
	must(t, err)
}

func (s *side) open(t testing.TB, c endpoint.Config, change func(c *endpoint.Config)) {
	t.Helper()
	c.Receive, c.Transmit, c.Addresses = s.rx, s.tx, s.av
	if change != nil {
		change(&c)
	}
	var err error
	if s.Endpoint, err = endpoint.Open(c); err != nil {
		_ = c.Socket.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		must(t, errors.Join(s.Close(), s.rx.Close(), s.tx.Close(), s.q.Close(), s.av.Close()))
		if !s.lies {
			s.checkFrames(t)
		}
	})
}

func (s *side) checkFrames(t testing.TB) {
	t.Helper()
	f := s.Stats().Frames
	if f.Sum() != f.Frames || f.Illegal != 0 {
		t.Errorf("frames of %s: %+v", s.name, f)
	}
}

// newPair joins two sides by a wire.
func newPair(t testing.TB, change func(o *options)) (a, b *side) {
	t.Helper()
	oa, ob := sideOptions(), sideOptions()
	ob.self, ob.peer, ob.mac, ob.next = addrB, addrA, macB, macA
	if change != nil {
		change(&oa)
		change(&ob)
	}
	a, b = newSide(t, "a", oa), newSide(t, "b", ob)
	xskernel.Connect(a.kernel, b.kernel)
	return a, b
}

// drive does rounds until there is nothing left to do, and Stats say all that was done: a round
// that follows a post leaves that to the next one.
func (s *side) drive(t testing.TB) {
	t.Helper()
	idle := 0
	for range 10000 {
		n := shmtest.Got(s.Progress()).Or(t)
		if idle++; n > 0 {
			idle = 0
		}
		if idle == 2 {
			return
		}
	}
	t.Fatal("the endpoint does not come to rest")
}

// read takes all completions, up to the first error entry.
func (s *side) read(t testing.TB) (out []cq.Entry) {
	t.Helper()
	var buf [16]cq.Entry
	for {
		n, err := cq.Read(s.q, buf[:])
		out = append(out, buf[:n]...)
		if errors.Is(err, cq.ErrWouldBlock) || errors.Is(err, cq.ErrAvail) {
			return out
		}
		must(t, err)
	}
}

// one drives and returns the one completion that there is.
func (s *side) one(t testing.TB) cq.Entry {
	t.Helper()
	s.drive(t)
	es := s.read(t)
	if len(es) != 1 {
		t.Fatalf("%d completions of %s, want 1: %+v", len(es), s.name, es)
	}
	return es[0]
}

// readErr takes the error entry that is next.
func (s *side) readErr(t testing.TB) cq.ErrorEntry {
	t.Helper()
	e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
	must(t, s.q.ReadErr(&e))
	return e
}

func (s *side) text(t testing.TB, e *cq.Entry) string {
	t.Helper()
	b := shmtest.Got(s.Payload(e)).Or(t)
	return string(b)
}
