package xdp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
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

// sender posts numbered datagrams to a kernel socket on end A.
type sender struct {
	*rig
	tpl  *packet.Template
	sink *net.UDPConn
}

func newSender(t testing.TB, o xdp.Options) *sender {
	t.Helper()
	s := &sender{rig: newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, o)}
	s.sink = udp(t, s.pair.A, 9000)
	s.tpl = shmtest.Got(packet.NewTemplate([6]byte(s.pair.B.MAC), [6]byte(s.pair.A.MAC),
		netip.AddrPortFrom(s.pair.B.Addr, testPort), netip.AddrPortFrom(s.pair.A.Addr, 9000))).Or(t)
	return s
}

func (s *sender) post(n int) error {
	frame, buf, ok := s.socket.Acquire()
	if !ok {
		return fmt.Errorf("no frame for packet %d", n)
	}
	var msg [100]byte
	pattern(msg[:], n)
	size, err := s.tpl.Build(buf, msg[:])
	if err != nil {
		return err
	}
	return s.socket.Post(frame, size, uint64(n))
}

func BenchmarkSend(b *testing.B) {
	s := newSender(b, xdp.Options{})
	must(b, s.sink.SetReadBuffer(1<<10)) // the stack drops what does not fit; that is no matter here
	var done [64]xdp.Sent
	const batch = 64
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			must(b, s.post(i))
		}
		s.socket.Flush()
		for completed := 0; completed < batch; {
			shmtest.Got(s.socket.Kick()).Or(b)
			completed += s.socket.Reap(done[:])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(batch*b.N), "ns/packet")
}

// checksumErrors is how many datagrams the stack of an end refused for their checksum.
func checksumErrors(t testing.TB, e *veth.End) (four, six int) {
	t.Helper()
	xdptest.Do(t, e, func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(b)) {
			words := strings.Fields(line)
			if len(words) == 0 || words[0] != "Udp:" {
				continue
			}
			for i, name := range names {
				if name == "InCsumErrors" {
					four, err = strconv.Atoi(words[i])
				}
			}
			names = words
		}
		if err != nil {
			return err
		}
		b, err = os.ReadFile("/proc/thread-self/net/snmp6")
		for line := range strings.Lines(string(b)) {
			if words := strings.Fields(line); len(words) == 2 && words[0] == "Udp6InCsumErrors" {
				six, err = strconv.Atoi(words[1])
			}
		}
		return err
	})
	return four, six
}

// checksumCase is a checksum that a frame goes out with.
type checksumCase struct {
	name     string
	path     packet.Path
	spoil    func(sum []byte)
	accepted bool
}

// TestChecksumToTheKernel: a socket of the stack takes what a template makes, for either family and
// of any length, and refuses what was spoiled.
func TestChecksumToTheKernel(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	s := newSender(t, xdp.Options{})
	xdptest.AddIPv6(t, s.pair, sixA, sixB)
	sinks := map[bool]*net.UDPConn{true: s.sink}
	sinks[false] = xdptest.UDPOn(t, s.pair.A, netip.AddrPortFrom(sixA, 9000))
	four := packet.Path{LocalMAC: [6]byte(s.pair.B.MAC), NextMAC: [6]byte(s.pair.A.MAC),
		Src: netip.AddrPortFrom(s.pair.B.Addr, testPort), Dst: netip.AddrPortFrom(s.pair.A.Addr, 9000)}
	six := four
	six.Src, six.Dst = netip.AddrPortFrom(sixB, testPort), netip.AddrPortFrom(sixA, 9000)
	keep, none := func([]byte) {}, func(sum []byte) { sum[0], sum[1] = 0, 0 }
	for _, c := range []checksumCase{
		{"IPv4", four, keep, true},
		{"IPv4, none", four, none, true},
		{"IPv4, wrong", four, func(sum []byte) { sum[1]++ }, false},
		{"IPv6", six, keep, true},
		{"IPv6, wrong", six, func(sum []byte) { sum[0]++ }, false},
		{"IPv6, none", six, none, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 2, 63, 500, 1451} {
				s.checksum(t, c, n, sinks[c.path.Src.Addr().Is4()])
			}
		})
	}
}

// checksum sends a datagram of n bytes and looks at what the stack made of it.
func (s *sender) checksum(t *testing.T, c checksumCase, n int, sink *net.UDPConn) {
	t.Helper()
	tpl := shmtest.Got(c.path.Template()).Or(t)
	payload := make([]byte, n)
	pattern(payload, n+1)
	frame, buf, _ := s.socket.Acquire()
	size := shmtest.Got(tpl.Build(buf, payload)).Or(t)
	c.spoil(buf[tpl.HeaderLen()-2 : tpl.HeaderLen()])
	four, six := checksumErrors(t, s.pair.A)
	must(t, s.socket.Post(frame, size, 0))
	s.socket.Flush()
	shmtest.Got(s.socket.Kick()).Or(t)
	var done [4]xdp.Sent
	await(t, "the completion", func() bool { return s.socket.Reap(done[:]) == 1 })
	got := make([]byte, 2000)
	if !c.accepted {
		await(t, "a count", func() bool {
			// The stack may look at the sum only when somebody reads.
			must(t, sink.SetReadDeadline(time.Now().Add(time.Millisecond)))
			if k, err := sink.Read(got); err == nil {
				t.Fatalf("%d bytes: %d were accepted", n, k)
			}
			four2, six2 := checksumErrors(t, s.pair.A)
			return four2+six2 == four+six+1
		})
		return
	}
	must(t, sink.SetReadDeadline(time.Now().Add(patience)))
	k, from, err := sink.ReadFromUDPAddrPort(got)
	if err != nil || string(got[:k]) != string(payload) || from != c.path.Src {
		t.Fatalf("%d bytes: %d from %v, %v", n, k, from, err)
	}
}

// TestChecksumFromTheKernel: what a socket of the stack sends over veth has the pseudo header's sum
// only; with the offload switched off it is whole.
func TestChecksumFromTheKernel(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	xdptest.AddIPv6(t, r.pair, sixA, sixB)
	for _, to := range []netip.Addr{r.pair.B.Addr, sixB} {
		from := xdptest.Have(r.pair.A, func() (*net.UDPConn, error) {
			return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, testPort)))
		}).In(t)
		shmtest.Got(from.Write([]byte("hello"))).Or(t)
		p := r.receiveOne(t)
		var d packet.Datagram
		b := r.socket.Packet(p)
		must(t, packet.Parse(b, &d))
		if c := packet.VerifyUDP(b, &d); c != packet.ChecksumPartial {
			t.Errorf("to %v: checksum %v", to, c)
		}
		r.socket.Drop(p.Frame)
	}
}
