package xdp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

const (
	testPort = 4791
	patience = time.Minute
)

// rig is a socket on end B with port 4791 steered to it.
type rig struct {
	pair   *veth.Pair
	prog   *xdp.Program
	umem   *xdp.UMEM
	socket *xdp.Socket
}

func newRig(t testing.TB, mode xdp.AttachMode, uo xdp.UMEMOptions, so xdp.Options) *rig {
	t.Helper()
	return newRigOn(t, xdptest.NewPair(t, veth.Config{}), mode, uo, so)
}

func newRigOn(t testing.TB, pair *veth.Pair, mode xdp.AttachMode, uo xdp.UMEMOptions,
	so xdp.Options) *rig {
	t.Helper()
	r := &rig{pair: pair}
	r.prog = xdptest.Attach(t, r.pair.B, xdp.ProgramOptions{Mode: mode})
	r.umem = xdptest.NewUMEM(t, uo)
	r.socket = xdptest.Open(t, r.pair.B, 0, r.umem, so)
	must(t, r.socket.Register(r.prog, 0))
	must(t, r.prog.Steer(testPort, 0))
	return r
}

var must, need = shmtest.Must, shmtest.Need

var udp = xdptest.UDP

var await = shmtest.Eventually

// receiveOne waits for one packet.
func (r *rig) receiveOne(t testing.TB) xdp.Received {
	t.Helper()
	var buf [1]xdp.Received
	await(t, "a packet", func() bool { return r.socket.Receive(buf[:]) == 1 })
	return buf[0]
}

func checkSum(t testing.TB, s *xdp.Socket) {
	t.Helper()
	f, rs := s.FrameStats(), s.RingStats()
	if f.Sum() != f.Frames || f.Illegal != 0 || f.Quarantine != 0 {
		t.Errorf("frames: %+v", f)
	}
	if rs.BadDescriptors != 0 || rs.RingFaults != 0 {
		t.Errorf("rings: %+v", rs)
	}
}

// stream passes n datagrams through the socket with a window that cannot lose any.
func (r *rig) stream(t testing.TB, n int) {
	t.Helper()
	const window = 32
	from := udp(t, r.pair.A, 0)
	to := &net.UDPAddr{IP: r.pair.B.Addr.AsSlice(), Port: testPort}
	msg, want := make([]byte, 200), make([]byte, 200)
	var buf [64]xdp.Received
	sent := 0
	for got := 0; got < n; {
		for ; sent < n && sent < got+window; sent++ {
			pattern(msg, sent)
			shmtest.Got(from.WriteToUDP(msg, to)).Or(t)
		}
		var k int
		await(t, "a packet", func() bool { k = r.socket.Receive(buf[:]); return k > 0 })
		for _, p := range buf[:k] {
			pattern(want, got)
			b := r.socket.Packet(p)
			var d packet.Datagram
			must(t, packet.Parse(b, &d))
			if !bytes.Equal(b[d.PayloadOff:][:d.PayloadLen], want) {
				t.Fatalf("datagram %d has other bytes", got)
			}
			if d.Src != from.LocalAddr().(*net.UDPAddr).AddrPort() || d.Dst.Port() != testPort {
				t.Fatalf("datagram %d from %v to %v", got, d.Src, d.Dst)
			}
			if c := packet.VerifyUDP(b, &d); c == packet.ChecksumWrong {
				t.Fatalf("datagram %d: checksum %v", got, c)
			}
			back := xdp.Returned{Off: p.Off, Generation: uint32(got)}
			if r.socket.Loan(uint32(got), p) != 1 || r.socket.Return(back) != 1 {
				t.Fatalf("datagram %d: frame cannot be handed out and taken back", got)
			}
			got++
		}
		r.socket.Fill(len(buf))
	}
	checkSum(t, r.socket)
}

// pattern fills a message with bytes that only message n has.
func pattern(b []byte, n int) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(n)<<16|uint64(i))
	}
}

// TestOtherPortsReachTheKernel: what is not steered belongs to the sockets of the stack.
func TestOtherPortsReachTheKernel(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	from, other := udp(t, r.pair.A, 0), udp(t, r.pair.B, 7777)
	_, err := from.WriteToUDPAddrPort([]byte("to the stack"), netip.AddrPortFrom(r.pair.B.Addr, 7777))
	must(t, err)
	buf := make([]byte, 64)
	n, err := other.Read(buf)
	if err != nil || string(buf[:n]) != "to the stack" {
		t.Fatalf("%q, %v", buf[:n], err)
	}
	// A port that is given up goes back to the stack, and so does one whose queue has no socket.
	stack := udp(t, r.pair.B, testPort)
	must(t, r.prog.Unsteer(testPort))
	must(t, r.prog.Unsteer(testPort))
	sendRead := func() {
		_, err = from.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(r.pair.B.Addr, testPort))
		must(t, err)
		shmtest.Got(stack.Read(buf)).Or(t)
	}
	sendRead()
	must(t, r.prog.Steer(testPort, 0))
	must(t, r.socket.Close())
	sendRead()
	c := shmtest.Got(r.prog.Counters()).Or(t)
	if c.OtherPort != 2 || c.NoSocket != 1 || c.Redirected != 0 {
		t.Errorf("counters: %+v", c)
	}
}

// TestSlotTakenOver: a socket that gives up a slot that is another's by now leaves it alone, and a
// program may be closed before its sockets.
func TestSlotTakenOver(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	prog := xdptest.Attach(t, pair.B, xdp.ProgramOptions{Mode: xdp.AttachGeneric})
	first := xdptest.Open(t, pair.B, 1, xdptest.NewUMEM(t, xdp.UMEMOptions{}), xdp.Options{})
	second := xdptest.Open(t, pair.B, 0, xdptest.NewUMEM(t, xdp.UMEMOptions{}), xdp.Options{})
	must(t, first.Register(prog, 0))  // slot 1
	must(t, second.Register(prog, 1)) // slot 1
	must(t, prog.Steer(testPort, 1))
	must(t, first.Close())
	(&rig{pair: pair, prog: prog, socket: second, umem: second.UMEM()}).stream(t, 10)
	must(t, prog.Close())
	must(t, second.Close())
}

func TestReopen(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	xdptest.Attach(t, pair.B, xdp.ProgramOptions{}).Close()
	for i := range 10 {
		u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 64})
		s := xdptest.Open(t, pair.B, 0, u, xdp.Options{BusyTimeout: patience})
		if err := u.Close(t.Context()); !errors.Is(err, xdp.ErrUMEMUsed) {
			t.Fatalf("the UMEM of an open socket was closed: %v", err)
		}
		must(t, s.Close())
		must(t, s.Close())
		if n := s.Fill(10) + s.Receive(make([]xdp.Received, 4)) + s.Reap(nil); n != 0 {
			t.Fatalf("round %d: a closed socket moved %d frames", i, n)
		}
		if _, err := s.Kick(); err == nil {
			t.Fatal("a closed socket can be kicked")
		}
		must(t, u.Close(t.Context()))
	}
}

// TestBusyAndClosed: a socket that waits for a queue which another socket on its UMEM has does not
// keep that one from being closed, and gets the queue then.
func TestBusyAndClosed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 64})
	open := func(queue uint32) shmtest.Opening[*xdp.Socket] {
		return xdptest.Have(pair.B, func() (*xdp.Socket, error) {
			return xdp.Open(context.Background(), pair.B.Name, queue, umem,
				xdp.Options{Frames: 16, SendFrames: 8, BusyTimeout: patience})
		})
	}
	open(1).Where(t, "xdp")
	before := open(0).In(t)
	waiting := make(chan shmtest.Opening[*xdp.Socket])
	go func() { waiting <- open(0) }()
	time.Sleep(50 * time.Millisecond) // it has tried in vain
	must(t, before.Close())
	(<-waiting).In(t) // had it kept the other one from closing until it gave up, it would be busy
}

func addrOf(e *veth.End, port int) *net.UDPAddr {
	return &net.UDPAddr{IP: e.Addr.AsSlice(), Port: port}
}

var (
	sixA = netip.MustParseAddr("fd00::a")
	sixB = netip.MustParseAddr("fd00::b")
)
