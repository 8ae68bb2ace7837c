package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

// model does random things to an endpoint, its kernel and its reader.
type model struct {
	*side
	t       testing.TB
	r       *rand.Rand
	lies    bool
	packet  []byte
	held    []cq.Entry // frames that the reader has
	old     []cq.Entry // and had
	frames  []endpoint.Frame
	sends   uint64 // posted
	answers uint64 // of sends
	kills   int
}

// maybe lets pass what back-pressure says.
func (m *model) maybe(err error) {
	m.t.Helper()
	if err != nil && !errors.Is(err, syscall.EAGAIN) &&
		(!m.lies || !errors.Is(err, endpoint.ErrFrame)) {
		m.t.Fatal(err)
	}
}

func (m *model) sent(err error) {
	m.t.Helper()
	m.maybe(err)
	if err == nil {
		m.sends++
	}
}

func (m *model) step() {
	switch m.r.IntN(12) {
	case 0, 1, 2:
		m.kernel.Deliver(m.packet)
	case 3:
		_, err := m.Progress()
		m.maybe(err)
	case 4:
		m.sent(m.SendMsg(&endpoint.Msg{To: m.peer, Buf: m.packet[:m.r.IntN(60)],
			Flags: cq.FlagMore * cq.Flags(m.r.IntN(2))}))
	case 5:
		m.maybe(m.Inject(m.packet, m.peer))
	case 6:
		m.frame()
	case 7:
		m.kernel.HoldCompletions(m.r.IntN(2) == 0)
		m.kernel.CompleteAt(m.r.IntN(max(1, m.kernel.Sending())))
	case 8:
		m.readSome()
	case 9, 10:
		m.giveBack()
	case 11:
		m.rare()
	}
}

func (m *model) rare() {
	switch m.r.IntN(40) {
	case 0:
		m.kill()
	case 1:
		m.kernel.SetDown(m.r.IntN(2) == 0)
	case 2:
		if len(m.old) > 0 { // a late return
			e := m.old[m.r.IntN(len(m.old))]
			_ = m.Release(e)
		}
		_ = m.Release(cq.Entry{Buf: shm.Ref(m.r.Uint64()), Meta: cq.Meta(m.r.Uint64())})
	default:
		m.kernel.Refuse(m.r.IntN(2))
		if m.lies {
			m.lie()
		}
	}
}

func (m *model) lie() {
	addr := m.r.Uint64N(70 * 2048)
	if m.r.IntN(8) == 0 {
		addr = m.r.Uint64()
	}
	if m.r.IntN(2) == 0 {
		m.kernel.ForgeCompletion(addr)
	} else {
		m.kernel.ForgeReceive(xskernel.Desc{Addr: addr, Len: m.r.Uint32N(4096), Options: m.r.Uint32N(2)})
	}
}

func (m *model) frame() {
	if n := len(m.frames); n > 3 || n > 0 && m.r.IntN(2) == 0 {
		f := m.frames[n-1]
		m.frames = m.frames[:n-1]
		if m.r.IntN(4) > 0 {
			err := m.SendFrame(f, 20, &endpoint.Msg{To: m.peer, Context: 1})
			m.sent(err)
			if err == nil {
				return
			}
		}
		must(m.t, m.AbandonFrame(f))
		return
	}
	f, err := m.Frame()
	m.maybe(err)
	if err == nil {
		m.frames = append(m.frames, f)
	}
}

// readSome takes completions as a reader does that keeps frames for a while.
func (m *model) readSome() {
	var es [8]cq.Entry
	n, err := cq.Read(m.q, es[:1+m.r.IntN(8)])
	if errors.Is(err, cq.ErrAvail) {
		var e cq.ErrorEntry
		must(m.t, m.q.ReadErr(&e))
		if e.Flags&cq.FlagNoContext == 0 {
			m.answers++
		}
		return
	}
	m.maybe(err)
	for _, e := range es[:n] {
		if e.Flags&cq.FlagSend != 0 {
			m.answers++
		} else {
			m.held = append(m.held, e)
		}
	}
}

func (m *model) giveBack() {
	if len(m.held) > 0 && m.r != nil && m.r.IntN(4) == 0 {
		err := m.Forward(&m.held[0], 5, &endpoint.Msg{To: m.peer})
		m.sent(err)
		if err == nil {
			m.held = append(m.held[:0], m.held[1:]...)
		}
	}
	n := m.r.IntN(len(m.held) + 1)
	err := m.Release(m.held[:n]...)
	if err != nil && !m.lies {
		m.t.Fatal(err)
	}
	m.old = append(m.old[:0], m.held[:n]...)
	m.held = append(m.held[:0], m.held[n:]...)
}

// kill ends the reader, with all that it holds, and begins its successor.
func (m *model) kill() {
	m.kills++
	must(m.t, m.q.Detach())
	m.held = m.held[:0]
	s := shmtest.Got(ctl.Show(m.dir, m.name)).Or(m.t)
	for _, l := range s.Lanes {
		if l.Row == m.rx.Lane() {
			m.Reclaim(uint32(*l.Head))
		}
	}
	m.q = shmtest.Got(cq.Open(cq.Named(m.dir, m.name), cq.Options{Existing: true})).Or(m.t)
}

// TestOwnership: whatever happens in whatever order, each frame is in one state, and when all comes
// to rest none is missing.
func TestOwnership(t *testing.T) {
	shmtest.Conforms(t)
	for _, lies := range []bool{false, true} {
		t.Run(map[bool]string{false: "honest", true: "lies"}[lies], func(t *testing.T) {
			s := alone(t, func(o *options) {
				o.sim.StartIndex = ^uint32(1000) // the indices wrap
				o.queue = cq.Options{Size: 32, Lifetime: cq.Persistent}
				o.lies = lies
			})
			s.kernel.OnSend(func([]byte) {})
			tm := shmtest.Got(packet.NewTemplate(macB, macA, addrB, addrA)).Or(t)
			m := &model{side: s, t: t, r: rand.New(rand.NewPCG(4, 58)), lies: lies,
				packet: make([]byte, 100)}
			shmtest.Got(tm.Build(m.packet, make([]byte, 58))).Or(t)
			for i := range 100000 {
				m.step()
				if f := s.Socket().FrameStats(); f.Sum() != f.Frames || f.Illegal != 0 && !lies {
					t.Fatalf("step %d: %+v", i, f)
				}
			}
			m.rest()
			if f := s.Socket().FrameStats(); !lies && (f.Free != 16 ||
				f.Fill != 48) {
				t.Errorf("at rest: %+v", f)
			}
			if m.kills < 10 || !lies && m.answers != m.sends {
				t.Errorf("%d kills; %d sends, %d answers", m.kills, m.sends, m.answers)
			}
		})
	}
}

// rest lets everything end that was begun.
func (m *model) rest() {
	m.kernel.SetDown(false)
	m.kernel.HoldCompletions(false)
	for _, f := range m.frames {
		must(m.t, m.AbandonFrame(f))
	}
	for range 1000 {
		m.kernel.Complete(1000)
		m.Flush()
		_, err := m.Progress()
		m.maybe(err)
		m.readSome()
		m.giveBack()
	}
	_ = m.Release(m.held...)
	_, err := m.Progress()
	m.maybe(err)
}

// holder is a reader in another process that never gives back what it reads: it reads frames where
// they are, in memory that it cannot write to.
func holder() {
	d := shmtest.Needs(shm.OpenDir(""))
	frames, geo, err := xdp.OpenUMEM(3, "umem", 0)
	need(err)
	q := shmtest.Needs(cq.Open(cq.Named(d, "alone"), cq.Options{Existing: true}))
	var es [8]cq.Entry
	n, err := cq.ReadContext(context.Background(), q, es[:], cq.ReadOptions{Timeout: time.Minute})
	need(err)
	for _, e := range es[:n] {
		loan := shmtest.Needs(frames.View(e.Buf, int(e.Len)))
		r := shmtest.Needs(xdp.ReadFrame(frames, geo, e.Buf))
		if string(loan.Bytes()) != "x" || r.Src != addrB || uint32(r.Sequence) != e.Meta.Seq() {
			need(fmt.Errorf("%q, %+v", loan.Bytes(), r))
		}
	}
	_, _ = os.Stdout.Write([]byte{byte(n)})
	shmtest.UntilTold() // it is killed before
}

// TestReaderKilled: the frames of a reader that was killed come back.
func TestReaderKilled(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, func(o *options) { o.queue.Lifetime = cq.Persistent })
	m := &model{side: s, t: t}
	for range 5 {
		must(t, s.q.Detach())
		cmd := shmtest.Child(t, "holder")
		cmd.ExtraFiles = []*os.File{xdptest.UMEMFile(t, s.Socket().UMEM())}
		c := shmtest.Start(t, cmd)
		for range 20 {
			s.arrive(t, addrB, addrA, "x")
		}
		s.drive(t)
		taken := shmtest.Got(c.Out.ReadByte()).Or(t)
		c.Kill()
		s.q = shmtest.Got(cq.Open(cq.Named(s.dir, s.name), cq.Options{Existing: true})).Or(t)
		m.kill()
		s.drive(t)
		es := s.read(t)
		if len(es) != 20-int(taken) {
			t.Fatalf("%d are left after %d", len(es), taken)
		}
		must(t, s.Release(es...))
		s.drive(t)
		if f := s.Stats().Frames; f.Loaned != 0 || f.StaleReturn != 0 {
			t.Fatalf("%+v", f)
		}
	}
	if n := s.Stats().Reclaimed; n == 0 {
		t.Error("nothing was reclaimed")
	}
}
