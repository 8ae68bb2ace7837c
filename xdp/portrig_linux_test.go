package xdp

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/packet"
)

// fakeUMEM is the region number of a fake device's frames.
const fakeUMEM = 77

// fakeDevice is the rest of a socket over a fake kernel. A kick sends and completes everything,
// unless the link is down or the device is told to hold.
type fakeDevice struct {
	k     *fakeKernel
	fd    int
	hold  bool
	down  bool
	gone  bool
	kicks uint64
	sent  func(packet []byte)
	open  bool
	leave func() bool // the pool of frames
}

func (d *fakeDevice) FD() int       { return d.fd }
func (d *fakeDevice) Queue() uint32 { return 3 }
func (d *fakeDevice) Check() error {
	switch {
	case d.gone:
		return ErrDeviceGone
	case d.down:
		return ErrLinkDown
	}
	return nil
}
func (d *fakeDevice) WakeFill() error                   { return nil }
func (d *fakeDevice) SyscallStats() SyscallStats        { return SyscallStats{Send: d.kicks} }
func (d *fakeDevice) KernelStats() (KernelStats, error) { return KernelStats{}, nil }

func (d *fakeDevice) Close() error {
	d.open = false
	d.leave()
	return nil
}

func (d *fakeDevice) Kick() (int, error) {
	d.kicks++
	if err := d.Check(); err != nil || d.hold {
		return 0, err
	}
	for d.k.begin() {
	}
	for d.k.finish(0) {
	}
	return 0, nil
}

// portRig is a port over a fake kernel, between real queues, with the application's ends of them.
type portRig struct {
	port    *Port
	core    *core
	kernel  *fakeKernel
	dev     *fakeDevice
	dir     *shm.Dir
	app     *cq.Queue  // the application reads its completions here
	asker   *cq.Writer // and posts its commands here
	q       *cq.Queue  // the port's end of the commands
	rx, tx  *cq.Writer
	payload *shm.Region
	from    *packet.Template // what the known peer sends
	strange *packet.Template // and somebody unknown
	frame   [2048]byte
}

type rigOptions struct {
	fake     fakeConfig
	lane     int // entries of each completion lane
	commands int // and of each command lane
	config   PortConfig
}

var (
	rigLocal = netip.MustParseAddrPort("192.0.2.2:4791")
	rigPeer  = netip.MustParseAddrPort("192.0.2.1:4000")
)

const secPayload shm.SectionKind = 0x50415900

func check(t testing.TB, err error) {
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
	check(t, err)
	r, err := shm.NewRegion(o, secPayload)
	check(t, err)
	t.Cleanup(func() { _ = r.Close(t.Context()); _ = o.Close() })
	return r
}

func newPortRig(t testing.TB, o rigOptions) *portRig {
	t.Helper()
	r := &portRig{}
	r.core, r.kernel = newFake(o.fake)
	r.dev = &fakeDevice{k: r.kernel, fd: -1, open: true, leave: r.core.leave}
	r.kernel.OnSend(func(packet []byte) {
		if r.dev.sent != nil {
			r.dev.sent(packet)
		}
	})
	var err error
	r.dir, err = shm.OpenDir("")
	check(t, err)
	r.app, err = cq.Create(r.dir, "app", cq.Options{Size: o.lane})
	check(t, err)
	r.q, err = cq.Create(r.dir, "commands", cq.Options{Size: o.commands, Wait: cq.WaitFD})
	check(t, err)
	attach := func(name string) *cq.Writer {
		w, err := cq.Attach(t.Context(), r.dir, name, cq.WriterOptions{})
		check(t, err)
		return w
	}
	r.rx, r.tx, r.asker = attach("app"), attach("app"), attach("commands")
	r.payload = newPayload(t, 1<<16)
	mac := func(n byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, n} }
	c := o.config
	c.RX, c.TX, c.Commands = r.rx, r.tx, r.q
	c.Peers = []Peer{
		{LocalMAC: mac(2), PeerMAC: mac(9), Local: rigLocal,
			Peer: netip.MustParseAddrPort("192.0.2.9:9")},
		{LocalMAC: mac(2), PeerMAC: mac(1), Local: rigLocal, Peer: rigPeer},
	}
	r.port, err = newPort(c, r.core, r.dev, fakeUMEM)
	check(t, err)
	check(t, r.port.AddRegion(r.payload))
	r.from, err = packet.NewTemplate([6]byte(mac(1)), [6]byte(mac(2)), rigPeer, rigLocal)
	check(t, err)
	r.strange, err = packet.NewTemplate([6]byte(mac(5)), [6]byte(mac(2)),
		netip.MustParseAddrPort("192.0.2.5:5"), rigLocal)
	check(t, err)
	t.Cleanup(func() {
		err := errors.Join(r.port.Close(), r.rx.Close(), r.tx.Close(), r.asker.Close(),
			r.q.Close(), r.app.Close(), r.dir.Close())
		if err != nil {
			t.Error(err)
		}
		r.checkFrames(t)
	})
	r.core.Fill(1 << 20)
	return r
}

func (r *portRig) checkFrames(t testing.TB) {
	t.Helper()
	if s := r.core.FrameStats(); s.Sum() != s.Frames || s.Illegal != 0 {
		t.Errorf("frames: %+v", s)
	}
}

// arrive delivers a datagram from the wire.
func (r *portRig) arrive(t testing.TB, from *packet.Template, payload []byte) bool {
	t.Helper()
	n, err := from.Build(r.frame[:], payload)
	check(t, err)
	return r.kernel.deliver(r.frame[:n])
}

// rounds drives the port until nothing is left to do.
func (r *portRig) rounds(t testing.TB) {
	t.Helper()
	for range 10000 {
		n, err := r.port.Progress()
		check(t, err)
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
		if errors.Is(err, cq.ErrAgain) || errors.Is(err, cq.ErrAvail) {
			return out
		}
		check(t, err)
	}
}

// readErr takes the error entry that is next.
func (r *portRig) readErr(t testing.TB) cq.ErrorEntry {
	t.Helper()
	var e cq.ErrorEntry
	check(t, r.app.ReadErr(&e))
	return e
}

func (r *portRig) ask(t testing.TB, e cq.Entry) {
	t.Helper()
	check(t, r.asker.Post(&e))
}

func (r *portRig) bytes(e *cq.Entry) []byte {
	off := e.Buf.Offset()
	return r.kernel.mem[off : off+e.Len]
}
