package xdp_test

import (
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
