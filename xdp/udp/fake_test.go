package udp_test

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/udp"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

const fakeMTU = 1472

var (
	addrA = netip.MustParseAddr("192.0.2.1")
	addrB = netip.MustParseAddr("192.0.2.2")
)

// fake is a device that is joined to another one, over plain memory. Its frames are few, so that
// one that is not given back is missed.
type fake struct {
	addr netip.Addr
	peer *fake

	mu        sync.Mutex
	queue     []udp.Datagram // come, not lent
	lent      int
	frames    int // of these many, lent or queued
	dropped   int
	flushes   int
	room      int // sends that are accepted until Flush; 0: any number
	unflushed []udp.Datagram
	sendErr   error
	gone      error
	unknown   map[netip.Addr]bool // next hops that are being resolved
	refusals  int                 // sends that find the next hop unknown yet
	wake      chan struct{}
	closed    chan struct{}
}

func newFakes(frames int) (a, b *fake) {
	mk := func(addr netip.Addr) *fake {
		return &fake{addr: addr, frames: frames, wake: make(chan struct{}, 1),
			closed: make(chan struct{}), unknown: map[netip.Addr]bool{}}
	}
	a, b = mk(addrA), mk(addrB)
	a.peer, b.peer = b, a
	return a, b
}

func (f *fake) Receive(dst []udp.Datagram) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := copy(dst, f.queue)
	f.queue = f.queue[n:]
	f.lent += n
	return n, f.gone
}

func (f *fake) Frames() int { return f.frames * 3 / 4 }

func (f *fake) Release(loans []udp.Datagram) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lent -= len(loans)
	if f.lent < 0 {
		panic("given back twice")
	}
	for _, d := range loans {
		clear(d.Payload) // who reads it now reads rubbish
	}
	return nil
}

func (f *fake) MaxPayload(netip.Addr) int { return fakeMTU }

func (f *fake) Send(payload []byte, from, to netip.AddrPort) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.sendErr != nil:
		return f.sendErr
	case f.unknown[to.Addr()]:
		return packet.ErrResolving
	case f.refusals > 0:
		f.refusals--
		return packet.ErrResolving
	case f.room > 0 && len(f.unflushed) >= f.room:
		return syscall.EAGAIN
	}
	if !from.Addr().IsValid() || from.Addr().IsUnspecified() {
		from = netip.AddrPortFrom(f.addr, from.Port())
	}
	f.unflushed = append(f.unflushed, udp.Datagram{From: from, To: to,
		Payload: append([]byte(nil), payload...)})
	return nil
}

func (f *fake) Flush() bool {
	f.mu.Lock()
	f.flushes++
	ds := f.unflushed
	if f.sendErr == nil && f.room >= 0 {
		f.unflushed = nil
	} else {
		ds = nil
	}
	f.mu.Unlock()
	f.peer.arrive(ds)
	return true
}

func (f *fake) arrive(ds []udp.Datagram) {
	f.mu.Lock()
	for _, d := range ds {
		if f.lent+len(f.queue) < f.frames {
			f.queue = append(f.queue, d)
		} else {
			f.dropped++
		}
	}
	f.mu.Unlock()
	if len(ds) > 0 {
		f.ring()
	}
}

func (f *fake) ring() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fake) Arm() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue) > 0, nil
}

func (f *fake) Wait(look func() bool) error {
	for !look() {
		select {
		case <-f.wake:
		case <-f.closed:
			return os.ErrClosed
		}
	}
	return nil
}

func (f *fake) Close() error {
	close(f.closed)
	return nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// loans returns how many frames are not given back.
func (f *fake) loans() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lent
}

// queued returns how many datagrams wait to be received.
func (f *fake) queued() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}

// newStacks returns two hosts that are joined.
func newStacks(t testing.TB, o udp.StackOptions, frames int) (a, b *udp.Stack, fa, fb *fake) {
	t.Helper()
	fa, fb = newFakes(frames)
	var stacks [2]*udp.Stack
	for i, f := range []*fake{fa, fb} {
		s := shmtest.Got(udp.NewStack(o, f)).Or(t)
		stacks[i] = s
		t.Cleanup(func() {
			must(t, s.Close())
			if n := f.loans(); n != 0 {
				t.Errorf("%d frames were not given back", n)
			}
		})
	}
	return stacks[0], stacks[1], fa, fb
}

// newPair returns two sockets on two such hosts.
func newPair(t testing.TB, o udp.StackOptions) (a, b *udp.Conn, fa, fb *fake) {
	t.Helper()
	sa, sb, fa, fb := newStacks(t, o, 512)
	a, b = listen(t, sa, addrA, 1000), listen(t, sb, addrB, 2000)
	return a, b, fa, fb
}

func listen(t testing.TB, s *udp.Stack, addr netip.Addr, port uint16) *udp.Conn {
	t.Helper()
	return shmtest.Got(s.Listen(netip.AddrPortFrom(addr, port))).Or(t)
}

var must = shmtest.Must
