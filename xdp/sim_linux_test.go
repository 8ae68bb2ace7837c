package xdp_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// newSim returns a simulated socket that is closed when the test ends.
func newSim(t testing.TB, u xdp.UMEMOptions, o xdp.SimOptions) (*xdp.Socket, *xdp.Kernel) {
	t.Helper()
	umem := xdptest.NewUMEM(t, u)
	s, k, err := xdp.Simulate(umem, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, k
}

// post sends one packet of n bytes, not yet flushed.
func post(t testing.TB, s *xdp.Socket, b []byte, context uint64) {
	t.Helper()
	f, buf, ok := s.Acquire()
	if !ok {
		t.Fatal("no frame to send from")
	}
	must(t, s.Post(f, copy(buf, b), context))
}

func numbered(n, size int) []byte {
	b := make([]byte, size)
	copy(b, fmt.Sprintf("packet %d", n))
	return b
}

// readable asks poll, as Run does.
func readable(t testing.TB, fd int) bool {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err != unix.EINTR { // which is said if nothing is there, and a signal
		must(t, err)
	}
	return n == 1
}

func TestSimReceive(t *testing.T) {
	t.Parallel()
	s, k := newSim(t, xdp.UMEMOptions{Frames: 32}, xdp.SimOptions{StartIndex: ^uint32(3)})
	if s.Info().Granted.Mode != xdp.BindCopy || k.Filled() != 24 {
		t.Fatalf("%v, %d frames to receive into", s.Info().Granted.Mode, k.Filled())
	}
	var got [4]xdp.Received
	if readable(t, s.FD()) || s.Receive(got[:]) != 0 {
		t.Fatal("there is a packet before any was delivered")
	}
	for i := range 10 {
		if !k.Deliver(numbered(i, 60+i)) {
			t.Fatal("not delivered")
		}
	}
	for next := 0; next < 10; {
		if !readable(t, s.FD()) {
			t.Fatal("packets wait and the descriptor does not say so")
		}
		for _, r := range got[:s.Receive(got[:])] {
			if !bytes.Equal(s.Packet(r), numbered(next, 60+next)) {
				t.Fatalf("packet %d is %q", next, s.Packet(r))
			}
			next++
			s.Drop(r.Frame)
		}
	}
	if s.Pending(1) != 0 || readable(t, s.FD()) {
		t.Error("the descriptor does not become quiet")
	}
	if k.Deliver(make([]byte, 2000)); k.Stats().RxDropped != 1 {
		t.Errorf("a packet too big for the chunk: %+v", k.Stats())
	}
	checkSum(t, s)
}

// TestSimKick: what system calls say is what the real kernel was seen to say.
func TestSimKick(t *testing.T) {
	t.Parallel()
	s, k := newSim(t, xdp.UMEMOptions{Frames: 256}, xdp.SimOptions{})
	for i := range 40 {
		post(t, s, numbered(i, 60), uint64(i))
	}
	s.Flush()
	if left, err := s.Kick(); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
	if n := s.SyscallStats(); n.Send != 2 || n.Again != 1 {
		t.Errorf("40 packets at 32 a call: %+v", n)
	}
	sent := k.TakeSent()
	if len(sent) != 40 || !bytes.Equal(sent[39], numbered(39, 60)) {
		t.Fatalf("%d sent", len(sent))
	}
	var done [64]xdp.Sent
	if n := s.Reap(done[:]); n != 40 || done[7].Context != 7 || s.Sending() != 0 {
		t.Fatalf("%d completed", n)
	}
	k.SetDown(true)
	post(t, s, numbered(0, 60), 0)
	s.Flush()
	if _, err := s.Kick(); !errors.Is(err, xdp.ErrLinkDown) {
		t.Errorf("down: %v", err)
	}
	if err := s.Check(); !errors.Is(err, syscall.ENETDOWN) || k.Deliver(numbered(0, 60)) {
		t.Errorf("down: %v", err)
	}
	k.SetDown(false)
	k.FailKicks(syscall.ENOBUFS)
	if left, err := s.Kick(); left != 1 || err != nil {
		t.Errorf("no memory: %d, %v", left, err)
	}
	k.Refuse(1)
	if left, err := s.Kick(); left != 0 || err != nil || s.SyscallStats().SendDropped != 1 {
		t.Errorf("refused: %d, %v", left, err)
	}
	k.Remove()
	if err := s.Check(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Errorf("removed: %v", err)
	}
	checkSum(t, s)
}

func TestSimCloseForfeits(t *testing.T) {
	t.Parallel()
	s, k := newSim(t, xdp.UMEMOptions{Frames: 64}, xdp.SimOptions{})
	k.HoldCompletions(true)
	for i := range 3 {
		post(t, s, numbered(i, 60), uint64(i))
	}
	s.Flush()
	_, err := s.Kick()
	must(t, err)
	if k.Sending() != 3 || !k.CompleteAt(1) || k.Complete(0) != 0 {
		t.Fatalf("%d wait for completion", k.Sending())
	}
	if n := s.Reap(make([]xdp.Sent, 8)); n != 1 {
		t.Fatalf("%d completed", n)
	}
	must(t, s.Close())
	if k.Deliver(numbered(0, 60)) || k.Transmit(1) != 0 {
		t.Error("the kernel's side goes on after Close")
	}
	var lost []uint64
	if n := s.Forfeit(func(c uint64) { lost = append(lost, c) }); n != 2 || lost[0]+lost[1] != 2 {
		t.Errorf("forfeited %d: %v", n, lost)
	}
	if f := s.FrameStats(); f.Sum() != f.Frames || s.Sending() != 0 {
		t.Errorf("%+v", f)
	}
}

func TestSimConnect(t *testing.T) {
	t.Parallel()
	a, ka := newSim(t, xdp.UMEMOptions{Frames: 64}, xdp.SimOptions{})
	b, kb := newSim(t, xdp.UMEMOptions{Frames: 64}, xdp.SimOptions{})
	xdp.Connect(ka, kb)
	var got [8]xdp.Received
	for i, pair := range [][2]*xdp.Socket{{a, b}, {b, a}} {
		post(t, pair[0], numbered(i, 99), 0)
		pair[0].Flush()
		_, err := pair[0].Kick()
		must(t, err)
		if n := pair[1].Receive(got[:]); n != 1 ||
			!bytes.Equal(pair[1].Packet(got[0]), numbered(i, 99)) {
			t.Errorf("way %d: %d packets", i, n)
		}
	}
}
