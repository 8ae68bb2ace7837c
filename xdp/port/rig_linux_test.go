package port_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/port"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"port-app": portAppChild, "port-device": portDeviceChild,
		"closer": closer})
}

// portRig is a port over a simulated kernel, between real queues, with the application's ends of
// them. Address 1 is the peer's.
type portRig struct {
	port    *port.Port
	umem    *xdp.UMEM
	socket  *xdp.Socket
	kernel  *xdp.Kernel
	dir     *shm.Dir
	app     *cq.Queue  // the application reads its completions here
	asker   *cq.Writer // and posts its commands here
	q       *cq.Queue  // the port's end of the commands
	rx, tx  *cq.Writer
	peers   *cq.AddressVector
	payload *shm.Region
	from    *packet.Template // what the known peer sends
	strange *packet.Template // and somebody unknown
	frame   [2048]byte
}

type rigOptions struct {
	frames, send int    // in all, and to send from; 32 and 16
	start        uint32 // of all ring indices
	lane         int    // entries of each completion lane
	commands     int    // and of each command lane
}

const rigQueue = 3

var (
	rigLocal = netip.MustParseAddrPort("192.0.2.2:4791")
	rigPeer  = netip.MustParseAddrPort("192.0.2.1:4000")
	rigThird = netip.MustParseAddrPort("192.0.2.9:9")
)

const secPayload shm.SectionKind = 0x50415900

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPayload makes memory that an application sends from.
func newPayload(t testing.TB, bytes uint64) *shm.Region {
	t.Helper()
	o, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "payload",
		Sections: []shm.Section{{Kind: secPayload, Length: bytes, ElemSize: 1,
			Capacity: bytes}}}, nil)
	must(t, err)
	r, err := shm.NewRegion(o, secPayload)
	must(t, err)
	t.Cleanup(func() { _ = r.Close(t.Context()); _ = o.Close() })
	return r
}

func newPortRig(t testing.TB, o rigOptions) *portRig {
	t.Helper()
	if o.frames == 0 {
		o.frames = 32
	}
	if o.send == 0 {
		o.send = 16
	}
	r := &portRig{}
	var err error
	r.dir, err = shm.OpenDir("")
	must(t, err)
	r.app, err = cq.Create(r.dir, "app", cq.Options{Size: o.lane})
	must(t, err)
	r.q, err = cq.Create(r.dir, "commands", cq.Options{Size: o.commands, Wait: cq.WaitFD})
	must(t, err)
	attach := func(name string) *cq.Writer {
		w, err := cq.Attach(t.Context(), r.dir, name, cq.WriterOptions{})
		must(t, err)
		return w
	}
	r.rx, r.tx, r.asker = attach("app"), attach("app"), attach("commands")
	r.payload = newPayload(t, 1<<16)
	r.open(t, o)
	must(t, r.port.AddRegion(r.payload))
	r.from, err = packet.NewTemplate(mac(1), mac(2), rigPeer, rigLocal)
	must(t, err)
	r.strange, err = packet.NewTemplate(mac(5), mac(2), netip.MustParseAddrPort("192.0.2.5:5"),
		rigLocal)
	must(t, err)
	t.Cleanup(func() {
		err := errors.Join(r.port.Close(), r.rx.Close(), r.tx.Close(), r.asker.Close(),
			r.q.Close(), r.app.Close(), r.peers.Close(), r.dir.Close())
		if err != nil {
			t.Error(err)
		}
		r.checkFrames(t)
	})
	r.socket.Fill(1 << 20)
	return r
}

func mac(n byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, n} }

// open opens the port.
func (r *portRig) open(t testing.TB, o rigOptions) {
	t.Helper()
	var err error
	r.umem = xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: uint32(o.frames)})
	r.socket, r.kernel, err = xdp.Simulate(r.umem, xdp.SimOptions{Queue: rigQueue,
		StartIndex: o.start, Options: xdp.Options{SendFrames: uint32(o.send)}})
	must(t, err)
	r.kernel.OnSend(func([]byte) {})
	r.peers, err = cq.CreateAnonymousAddresses("peers", cq.AddressOptions{Count: 8})
	must(t, err)
	_, err = r.peers.Insert([][]byte{cq.Sockaddr(rigThird), cq.Sockaddr(rigPeer)})
	must(t, err)
	way := func(n byte) packet.Hop {
		return packet.Hop{LocalMAC: mac(2), NextMAC: mac(n), Source: rigLocal.Addr()}
	}
	r.port, err = port.Open(port.Config{Commands: r.q, Endpoint: endpoint.Config{Socket: r.socket,
		Receive: r.rx, Transmit: r.tx, Addresses: r.peers, Local: rigLocal,
		Resolver: endpoint.Static{rigThird.Addr(): way(9), rigPeer.Addr(): way(1)}}})
	must(t, err)
}

func (r *portRig) checkFrames(t testing.TB) {
	t.Helper()
	if s := r.socket.FrameStats(); s.Sum() != s.Frames || s.Illegal != 0 {
		t.Errorf("frames: %+v", s)
	}
}

// arrive delivers a datagram from the wire.
func (r *portRig) arrive(t testing.TB, from *packet.Template, payload []byte) bool {
	t.Helper()
	n, err := from.Build(r.frame[:], payload)
	must(t, err)
	return r.kernel.Deliver(r.frame[:n])
}

// rounds drives the port until nothing is left to do.
func (r *portRig) rounds(t testing.TB) {
	t.Helper()
	for range 10000 {
		n, err := r.port.Progress()
		must(t, err)
		if n == 0 {
			return
		}
	}
	t.Fatal("the port does not come to rest")
}

// read takes everything from the application's queue.
func (r *portRig) read(t testing.TB) []cq.Entry {
	t.Helper()
	var out []cq.Entry
	var buf [64]cq.Entry
	for {
		n, err := cq.Read(r.app, buf[:])
		out = append(out, buf[:n]...)
		if errors.Is(err, cq.ErrWouldBlock) || errors.Is(err, cq.ErrAvail) {
			return out
		}
		must(t, err)
	}
}

// readErr takes the error entry that is next.
func (r *portRig) readErr(t testing.TB) cq.ErrorEntry {
	t.Helper()
	var e cq.ErrorEntry
	must(t, r.app.ReadErr(&e))
	return e
}

func (r *portRig) ask(t testing.TB, e cq.Entry) {
	t.Helper()
	must(t, r.asker.Post(&e))
}

func (r *portRig) bytes(e *cq.Entry) []byte {
	off := e.Buf.Offset()
	return r.umem.Region().Bytes()[off : off+e.Len]
}
