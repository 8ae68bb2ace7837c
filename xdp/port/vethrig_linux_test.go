package port_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/port"
)

const (
	testPort    = 4791
	patience    = time.Minute
	sinkPort    = 9000
	secPayloads = shm.SectionKind(0x50415900)
)

// portRun is a port on end B that runs in a goroutine, and the application's ends of its queues
// unless another process has them.
type portRun struct {
	pair     *veth.Pair
	umem     *xdp.UMEM
	socket   *xdp.Socket
	peers    *cq.AddressVector
	dir      *shm.Dir
	commands *cq.Queue
	rx, tx   *cq.Writer
	port     *port.Port
	payload  *shm.Region
	stop     context.CancelFunc
	result   chan error // of Run
}

type portOptions struct {
	mode     xdp.AttachMode
	pair     *veth.Pair // nil makes one
	commands *cq.Queue  // adopted; nil creates it
	// app makes the application's queue come to be; the default creates it in this process.
	app func(p *portRun)
}

func newPortRun(t testing.TB, o portOptions) *portRun {
	t.Helper()
	if o.pair == nil {
		o.pair = xdptest.NewPair(t, veth.Config{})
	}
	p := &portRun{pair: o.pair,
		commands: o.commands, result: make(chan error, 1)}
	prog := xdptest.Attach(t, p.pair.B, xdp.ProgramOptions{Mode: o.mode})
	p.umem = xdptest.NewUMEM(t, xdp.UMEMOptions{})
	p.socket = xdptest.Open(t, p.pair.B, 0, p.umem, xdp.Options{BusyTimeout: patience})
	must(t, errors.Join(p.socket.Register(prog, 0), prog.Steer(testPort, 0)))
	var err error
	p.dir, err = shm.OpenDir("")
	must(t, err)
	if p.commands == nil {
		p.commands, err = cq.Create(p.dir, "commands", cq.Options{Wait: cq.WaitFD})
		must(t, err)
	}
	if o.app != nil {
		o.app(p)
	}
	for _, w := range []**cq.Writer{&p.rx, &p.tx} {
		*w, err = cq.Attach(t.Context(), p.dir, "app", cq.WriterOptions{Wait: true})
		must(t, err)
	}
	p.peers, err = cq.CreateAnonymousAddresses("peers", cq.AddressOptions{})
	must(t, err)
	_, err = p.peers.Insert([][]byte{cq.Sockaddr(netip.AddrPortFrom(p.pair.A.Addr, sinkPort))})
	must(t, err)
	p.port, err = port.Open(port.Config{Commands: p.commands, Endpoint: endpoint.Config{
		Socket: p.socket, Receive: p.rx, Transmit: p.tx, Addresses: p.peers,
		Local: netip.AddrPortFrom(p.pair.B.Addr, testPort),
		Resolver: endpoint.Static{p.pair.A.Addr: packet.Hop{LocalMAC: [6]byte(p.pair.B.MAC),
			NextMAC: [6]byte(p.pair.A.MAC), Source: p.pair.B.Addr}}}})
	must(t, err)
	p.payload = newPayloads(t)
	must(t, p.port.AddRegion(p.payload))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.stop = cancel
	go func() { p.result <- p.port.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		err := errors.Join(p.port.Close(), p.rx.Close(), p.tx.Close(), p.commands.Close(),
			p.peers.Close(), p.dir.Close())
		if err != nil {
			t.Error(err)
		}
		if s := p.port.Stats(); s.Frames.Sum() != s.Frames.Frames || s.Frames.Illegal != 0 {
			t.Errorf("frames: %+v", s.Frames)
		}
	})
	return p
}

func newPayloads(t testing.TB) *shm.Region {
	t.Helper()
	const bytes = 1 << 16
	o, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "payload",
		Sections: []shm.Section{{Kind: secPayloads, Length: bytes, ElemSize: 1,
			Capacity: bytes}}}, nil)
	must(t, err)
	r, err := shm.NewRegion(o, secPayloads)
	must(t, err)
	t.Cleanup(func() {
		if err := r.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return r
}

// wait returns what Run returned.
func (p *portRun) wait(t testing.TB) error {
	t.Helper()
	var err error
	await(t, "the end of Run", func() bool {
		select {
		case err = <-p.result:
			return true
		default:
			return false
		}
	})
	return err
}

// newApp makes the application's queue in this process.
func newApp(t testing.TB, size int) *cq.Queue {
	t.Helper()
	d, err := shm.OpenDir("")
	must(t, err)
	q, err := cq.Create(d, "app", cq.Options{Size: size})
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(q.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return q
}

// asker attaches to the command queue as an application does.
func asker(t testing.TB) *cq.Writer {
	t.Helper()
	d, err := shm.OpenDir("")
	must(t, err)
	w, err := cq.Attach(t.Context(), d, "commands", cq.WriterOptions{Wait: true})
	must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(w.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// feed sends the datagrams first up to end, no more than the window ahead of what came back.
func feed(from *net.UDPConn, to *net.UDPAddr, first, end, window int, acks <-chan int) error {
	msg := make([]byte, 200)
	for sent, acked := first, first; sent < end; {
		for ; sent < end && sent < acked+window; sent++ {
			pattern(msg, sent)
			if _, err := from.WriteToUDP(msg, to); err != nil {
				return err
			}
		}
		n, ok := <-acks
		if !ok {
			return errors.New("the receiver went away")
		}
		acked += n
	}
	return nil
}

func portTarget(e *veth.End) *net.UDPAddr {
	return &net.UDPAddr{IP: e.Addr.AsSlice(), Port: testPort}
}

func sink(t testing.TB, e *veth.End) *net.UDPConn { return udp(t, e, sinkPort) }

// udp opens a kernel socket in the namespace of an end.
func udp(t testing.TB, e *veth.End, port int) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	xdptest.Do(t, e, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: e.Addr.AsSlice(), Port: port})
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// await polls until ok, or fails the test.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen within %v", what, patience)
		}
	}
}

// pattern fills a message with bytes that only message n has.
func pattern(b []byte, n int) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(n)<<16|uint64(i))
	}
}

// dup returns a descriptor that is the caller's.
func dup(t testing.TB, fd int) uintptr {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	return uintptr(n)
}
