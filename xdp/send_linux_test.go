package xdp_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/internal/packet"
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
	var err error
	s.tpl, err = packet.NewTemplate([6]byte(s.pair.B.MAC), [6]byte(s.pair.A.MAC),
		netip.AddrPortFrom(s.pair.B.Addr, testPort), netip.AddrPortFrom(s.pair.A.Addr, 9000))
	must(t, err)
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

// TestSend: each packet arrives with its bytes and a right checksum (the stack drops others), and
// each completes once with its context. 40 at a time are more than one system call moves if the
// kernel does not take another budget.
func TestSend(t *testing.T) {
	t.Parallel()
	s := newSender(t, xdp.Options{})
	const batches, batch = 50, 40
	completed := map[uint64]bool{}
	var done [64]xdp.Sent
	buf, want := make([]byte, 200), make([]byte, 100)
	for b := range batches {
		for i := range batch {
			must(t, s.post(b*batch+i))
		}
		s.socket.Flush()
		await(t, "sending", func() bool {
			left, err := s.socket.Kick()
			must(t, err)
			for _, d := range done[:s.socket.Reap(done[:])] {
				if completed[d.Context] {
					t.Fatalf("context %d came twice", d.Context)
				}
				completed[d.Context] = true
			}
			return left == 0
		})
		must(t, s.sink.SetReadDeadline(time.Now().Add(patience)))
		for i := range batch {
			n, err := s.sink.Read(buf)
			must(t, err)
			pattern(want, b*batch+i)
			if !bytes.Equal(buf[:n], want) {
				t.Fatalf("datagram %d has other bytes", b*batch+i)
			}
		}
	}
	await(t, "all completions", func() bool {
		for _, d := range done[:s.socket.Reap(done[:])] {
			completed[d.Context] = true
		}
		return len(completed) == batches*batch
	})
	checkSum(t, s.socket)
	st := s.socket.SyscallStats()
	if st.SendDropped != 0 || st.Send > 3*batches {
		t.Errorf("%d packets: %+v", batches*batch, st)
	}
	k, err := s.socket.KernelStats()
	must(t, err)
	if k.TxInvalid != 0 {
		t.Errorf("the kernel refused descriptors: %+v", k)
	}
}

// TestSendWithoutReaping: a full completion ring stops sending and loses nothing.
func TestSendWithoutReaping(t *testing.T) {
	t.Parallel()
	s := newSender(t, xdp.Options{TxEntries: 64, CompEntries: 64, SendFrames: 512})
	const packets = 256
	posted := 0
	var done [64]xdp.Sent
	full := false
	completed := 0
	buf := make([]byte, 200)
	for completed < packets {
		for posted < packets && s.post(posted) == nil {
			posted++
		}
		s.socket.Flush()
		left, err := s.socket.Kick()
		must(t, err)
		full = full || left > 0
		if left > 0 || posted == packets {
			await(t, "a completion", func() bool {
				n := s.socket.Reap(done[:])
				completed += n
				return n > 0
			})
		}
	}
	for i := range packets {
		must(t, s.sink.SetReadDeadline(time.Now().Add(patience)))
		if _, err := s.sink.Read(buf); err != nil {
			t.Fatalf("datagram %d of %d: %v", i, packets, err)
		}
	}
	if !full || s.socket.SyscallStats().Again == 0 {
		t.Errorf("the completion ring never was full: %+v", s.socket.SyscallStats())
	}
	checkSum(t, s.socket)
}

// TestRefusedByDevice: a packet that the device drops completes like the others, is counted, and
// does not stop those behind it.
func TestRefusedByDevice(t *testing.T) {
	t.Parallel()
	s := newSender(t, xdp.Options{})
	must(t, s.pair.A.Change(func(l netlink.Link) error {
		return netlink.LinkSetMTU(l, 1000) // the peer's, so that only the device knows
	}))
	must(t, s.post(0))
	frame, buf, ok := s.socket.Acquire()
	if !ok {
		t.Fatal("no frame")
	}
	must(t, s.socket.Post(frame, 1400, 1))
	must(t, s.post(2))
	s.socket.Flush()
	left, err := s.socket.Kick()
	if err != nil || left != 0 {
		t.Fatalf("%d left, %v", left, err)
	}
	var done [8]xdp.Sent
	n := 0
	await(t, "three completions", func() bool { n += s.socket.Reap(done[n:]); return n == 3 })
	must(t, s.sink.SetReadDeadline(time.Now().Add(patience)))
	for range 2 {
		_, err := s.sink.Read(buf)
		must(t, err)
	}
	if d := s.socket.SyscallStats().SendDropped; d != 1 {
		t.Errorf("%d drops counted", d)
	}
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
			_, err := s.socket.Kick()
			must(b, err)
			completed += s.socket.Reap(done[:])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(batch*b.N), "ns/packet")
}
