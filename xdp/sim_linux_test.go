package xdp_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
)

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

// TestSimKick: what a device that comes and goes, and a kernel without memory, do to who sends.
func TestSimKick(t *testing.T) {
	t.Parallel()
	s, k := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 256}, xdptest.SimOptions{})
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
	for _, want := range []syscall.Errno{syscall.ENOBUFS, syscall.ENOMEM} {
		k.FailKicks(want)
		if left, err := s.Kick(); left != 1 || err != nil {
			t.Errorf("%v: %d, %v", want, left, err)
		}
	}
	if left, err := s.Kick(); left != 0 || err != nil {
		t.Errorf("memory again: %d, %v", left, err)
	}
	k.Remove()
	if err := s.Check(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Errorf("removed: %v", err)
	}
	checkSum(t, s)
}

func TestSimCloseForfeits(t *testing.T) {
	t.Parallel()
	s, k := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 64}, xdptest.SimOptions{})
	k.HoldCompletions(true)
	for i := range 3 {
		post(t, s, numbered(i, 60), uint64(i))
	}
	s.Flush()
	shmtest.Got(s.Kick()).Or(t)
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
	if f := s.FrameStats(); f.Sum() != f.Frames {
		t.Errorf("%+v", f)
	}
}

// poolModel makes random moves with one socket on a simulated queue, or with several, whose packets
// are in one frame or more and which come and go. It keeps its own account of all packets.
type poolModel struct {
	r       *rand.Rand
	members []*poolMember
	started int
	honest  bool
	chains  bool
	got     [40]xdp.Received
	done    [16]xdp.Sent
}

type poolMember struct {
	s       *xdp.Socket
	k       *xskernel.Kernel
	sent    uint64 // number of the next packet from the wire
	seen    uint64 // and of the next one to come out
	loans   []poolLoan
	held    []xdp.Received // received and kept by the owner of the socket
	open    map[uint64]bool
	context uint64
	built   []xdp.Part
}

type poolLoan struct {
	r     xdp.Received
	gen   uint32
	bytes []byte // of the packet, as they were lent
}

func (l *poolLoan) back() xdp.Returned { return xdp.Returned{Off: l.r.Off, Generation: l.gen} }

func newPoolModel(t *testing.T, seed uint64, start uint32, members int, honest bool) *poolModel {
	chains := members > 1
	o := xdptest.SimOptions{StartIndex: start, Options: xdp.Options{MultiBuffer: chains,
		RxEntries: 32, TxEntries: 32, CompEntries: 32, FillEntries: 64}}
	if chains {
		o.MTU = 9000
	}
	s, k := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 128}, o)
	m := &poolModel{r: rand.New(rand.NewPCG(seed, 7)), honest: honest, chains: chains, started: 1}
	m.add(s, k)
	for range members - 1 {
		m.start(t)
	}
	return m
}

func (m *poolModel) add(s *xdp.Socket, k *xskernel.Kernel) {
	k.HoldCompletions(true)
	k.OnSend(func([]byte) {})
	m.members = append(m.members, &poolMember{s: s, k: k, open: map[uint64]bool{}})
}

func (m *poolModel) start(t *testing.T) {
	s, k := simShared(t, m.members[0].s, xdp.Options{RxEntries: 32, TxEntries: 32})
	m.started++
	m.add(s, k)
}

func (m *poolModel) step(t *testing.T) {
	i := m.r.IntN(len(m.members))
	p := m.members[i]
	switch m.r.IntN(12) {
	case 0, 1:
		p.s.Fill(m.r.IntN(20))
	case 2, 3:
		m.arrive(p)
	case 4:
		m.receive(t, p)
	case 5, 6:
		m.settle(t, p)
	case 7, 8:
		m.send(t, p)
	case 9:
		p.s.Flush()
		p.k.Transmit(m.r.IntN(12))
		p.k.CompleteAt(m.r.IntN(1 + p.k.Sending()))
		p.k.CompleteAt(0)
	case 10:
		m.reap(t, p)
	case 11:
		m.rare(t, i)
	}
}

func (m *poolModel) arrive(p *poolMember) {
	most := 1400
	if m.chains {
		most = 8000
	}
	b := bytes.Repeat([]byte{byte(p.sent)}, 60+m.r.IntN(1+m.r.IntN(most)))
	binary.LittleEndian.PutUint64(b[14:], p.sent)
	if p.k.Deliver(b) {
		p.sent++
	}
}

// receive gets whole packets, each with the number that the wire gave it.
func (m *poolModel) receive(t *testing.T, p *poolMember) {
	first := true
	for _, r := range m.got[:p.s.Receive(m.got[:xdp.MaxChain+m.r.IntN(22)])] {
		if first && m.honest {
			if n := binary.LittleEndian.Uint64(p.s.Packet(r)[14:]); n != p.seen {
				t.Fatalf("packet %d came out, want %d", n, p.seen)
			}
			p.seen++
		}
		if r.Off/2048 != uint64(r.Frame) || r.Off%2048+uint64(r.Len) > 2048 {
			t.Fatalf("%+v does not lie in its frame", r)
		}
		first = !r.More
		p.held = append(p.held, r)
	}
	if !first {
		t.Fatal("a packet without its end")
	}
}

// settle does something with a frame that was received, or takes a loan back.
func (m *poolModel) settle(t *testing.T, p *poolMember) {
	if n := len(p.held); n > 0 {
		i := m.r.IntN(n)
		r := p.held[i]
		p.held = append(p.held[:i], p.held[i+1:]...)
		gen := m.r.Uint32()
		switch m.r.IntN(4) {
		case 0:
			m.must(t, "drop", p.s.Drop(r.Frame))
		case 3:
			twice := []xdp.Received{r, r}
			if m.honest {
				twice = twice[:1] // the other one is counted
			}
			if n := p.s.Recycle(twice); n > 1 || m.honest && n != 1 {
				t.Fatalf("%d frames recycled of one", n)
			}
		case 1:
			if p.context++; p.s.Forward(r, p.context) {
				p.open[p.context] = true
			} else {
				m.must(t, "drop", p.s.Drop(r.Frame)) // a part, or no room
			}
		case 2:
			lent := p.s.Loan(gen, r) == 1
			if m.must(t, "loan", lent); lent {
				p.loans = append(p.loans, poolLoan{r, gen, bytes.Clone(p.s.Packet(r))})
			}
		}
	}
	if n := len(p.loans); n > 0 && m.r.IntN(2) == 0 {
		l := p.loans[n-1]
		p.loans = p.loans[:n-1]
		m.must(t, "the content of a loan", bytes.Equal(p.s.Packet(l.r), l.bytes))
		other, back := m.members[m.r.IntN(len(m.members))], l.back()
		if other != p && other.s.Return(back) != 0 {
			t.Fatal("a socket took the loan of another one back")
		}
		m.must(t, "return", p.s.Return(back) == 1)
		if p.s.Return(back) != 0 {
			t.Fatal("a loan was taken back twice")
		}
	}
}

func (m *poolModel) must(t *testing.T, what string, ok bool) {
	t.Helper()
	if m.honest && !ok {
		t.Fatalf("%s is not as it should be", what)
	}
}

// send acquires frames, and posts or abandons them.
func (m *poolModel) send(t *testing.T, p *poolMember) {
	for range 1 + m.r.IntN(4) {
		if f, buf, ok := p.s.Acquire(); ok {
			p.built = append(p.built, xdp.Part{Frame: f, Len: 14 + m.r.IntN(len(buf)-13)})
		}
	}
	if len(p.built) == 0 {
		return
	}
	if m.r.IntN(4) == 0 {
		for _, b := range p.built {
			m.must(t, "abandon", p.s.Drop(b.Frame))
		}
		p.built = p.built[:0]
		return
	}
	n := 1
	if m.chains {
		n += m.r.IntN(min(5, len(p.built)))
	}
	err := p.s.Post(p.built[0].Frame, 13, 0)
	m.must(t, "a packet of 13 bytes", errors.Is(err, xdp.ErrTooBig))
	p.context++
	if n == 1 && m.r.IntN(2) == 0 {
		err = p.s.Post(p.built[0].Frame, p.built[0].Len, p.context)
	} else {
		err = p.s.PostChain(p.built[:n], p.context)
	}
	if err == nil {
		p.open[p.context] = true
		p.built = append(p.built[:0], p.built[n:]...)
	}
}

func (m *poolModel) reap(t *testing.T, p *poolMember) {
	for _, d := range m.done[:p.s.Reap(m.done[:1+m.r.IntN(16)])] {
		if m.honest && !p.open[d.Context] {
			t.Fatalf("completion of %d, which this socket does not wait for", d.Context)
		}
		delete(p.open, d.Context)
	}
}

// rare is what happens once in a while: a reader dies, a socket is closed, another one opened, and
// the kernel lies if it does.
func (m *poolModel) rare(t *testing.T, i int) {
	p := m.members[i]
	switch m.r.IntN(40) {
	case 0: // the reader of this socket is killed, and its successor knows of no loan
		p.s.Reclaim(0)
		p.s.Reclaim(1 << 31)
		for _, l := range p.loans {
			p.s.Return(l.back())
		}
		p.loans = nil
	case 1:
		if len(m.members) > 1 && m.started < 200 {
			m.close(t, i)
			m.start(t)
		}
	case 2, 3, 4:
		if !m.honest {
			p.k.ForgeReceive(xskernel.Desc{Addr: m.r.Uint64N(129)<<11 + 320, Len: m.r.Uint32N(4096)})
			addr := m.r.Uint64N(129 * 2048)
			p.k.ForgeReceive(xskernel.Desc{Addr: addr, Len: m.r.Uint32N(4096), Options: m.r.Uint32N(4)})
			p.k.ForgeReceive(xskernel.Desc{Addr: addr &^ 2047, Len: m.r.Uint32()})
			p.k.ForgeCompletion(addr &^ 2047)
			p.k.ForgeCompletion(m.r.Uint64())
		}
	}
	p.s.Return(xdp.Returned{Off: m.r.Uint64N(1 << 20), Generation: m.r.Uint32()}) // a hostile one
}

// close ends one socket. All that it was sending is answered, once.
func (m *poolModel) close(t *testing.T, i int) {
	p := m.members[i]
	m.members = append(m.members[:i], m.members[i+1:]...)
	for _, r := range p.held {
		p.s.Drop(r.Frame)
	}
	for _, l := range p.loans {
		p.s.Return(l.back())
	}
	must(t, p.s.Close())
	for n := 1; n > 0; {
		n = p.s.Reap(m.done[:])
		for _, d := range m.done[:n] {
			delete(p.open, d.Context)
		}
	}
	p.s.Forfeit(func(c uint64) {
		if m.honest && !p.open[c] {
			t.Fatalf("send %d was given up, which was answered before", c)
		}
		delete(p.open, c)
	})
	if m.honest && len(p.open) != 0 {
		t.Fatalf("%d sends of a closed socket were never answered", len(p.open))
	}
	for p.k.Complete(1) > 0 { // the kernel comes to an end with the rest, too late for anybody
	}
}

// check compares the pool with the model's account.
func (m *poolModel) check(t *testing.T) {
	t.Helper()
	m.members[0].s.Fill(0) // shows the kernel what Return left for it
	f := m.members[0].s.FrameStats()
	if f.Sum() != f.Frames || f.Frames != 128 {
		t.Fatalf("%d frames in all states: %+v", f.Sum(), f)
	}
	must(t, xdp.Recount(m.members[0].s))
	if !m.honest {
		return
	}
	var loans, held, built int
	// With the kernel: to receive into, and in receive rings.
	waiting := int(m.members[0].k.Fill.Used())
	for _, p := range m.members {
		waiting += p.s.Pending(1000)
		loans += len(p.loans)
		held += len(p.held)
		built += len(p.built)
		s := p.s.RingStats()
		if n := s.Posted - s.Sent; n != uint64(len(p.open)) || s.BadDescriptors+s.RingFaults != 0 {
			t.Fatalf("%d packets under way, want %d: %+v", n, len(p.open), s)
		}
	}
	if f.Loaned != uint64(loans) || f.Received != uint64(held) ||
		f.Build != uint64(built) || f.Quarantine != 0 ||
		f.Fill != uint64(waiting) || f.Illegal != 0 {
		t.Fatalf("%d loans, %d held, %d built, %d with the kernel: %+v", loans, held, built,
			waiting, f)
	}
}

var poolSeed = flag.Uint64("pool.seed", 0, "the first seed of random moves; 0: any")

// TestPoolProperty: random moves of the sockets of a queue, their kernel and applications; the sum
// of all states is the number of frames after each, and each frame in one of them. The indices of
// half of the rings start just below the wrap of their 32 bits.
func TestPoolProperty(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	first := cmp.Or(*poolSeed, rand.Uint64())
	t.Log("-pool.seed", first)
	for members, name := range map[int]string{1: "alone", 4: "together"} {
		for kernel, honest := range map[string]bool{"honest kernel": true, "lying kernel": false} {
			t.Run(name+", "+kernel, func(t *testing.T) {
				t.Parallel()
				for seed := first; seed != first+seeds; seed++ {
					m := newPoolModel(t, seed, uint32(seed%2)*^uint32(300), members, honest)
					for range 10_000 {
						m.step(t)
						m.check(t)
					}
				}
			})
		}
	}
}
