package port_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/port"
)

// portModel drives a port with random moves of the wire, the kernel and an application that is
// killed and replaced, and keeps its own account of all datagrams, frames and sends.
type portModel struct {
	*portRig
	r        *rand.Rand
	sent     uint64 // number of the next datagram from the wire
	seen     uint64 // and of the next one that the application must get
	held     []heldFrame
	returned []cq.Entry // returns that were posted, to be posted again by a confused application
	open     map[uint64]bool
	context  uint64
	kills    int
	reclaim  []cq.Entry // to be posted when there is room
}

type heldFrame struct {
	e   cq.Entry
	seq uint64
}

func (m *portModel) step(t testing.TB) {
	m.remind(t)
	switch m.r.IntN(12) {
	case 0, 1, 2:
		var b [40]byte
		binary.LittleEndian.PutUint64(b[:], m.sent)
		if m.arrive(t, m.from, b[:8+m.r.IntN(32)]) {
			m.sent++
		}
	case 3, 4:
		_, err := m.port.Progress()
		must(t, err)
	case 5, 6:
		m.readSome(t)
	case 7:
		m.giveBack(t)
	case 8:
		m.send(t)
	case 9:
		m.hostile(t)
	case 10:
		m.kernel.HoldCompletions(m.r.IntN(2) == 0)
		m.kernel.Transmit(1)
		if n := m.kernel.Sending(); n > 0 {
			m.kernel.CompleteAt(m.r.IntN(n))
		}
	case 11:
		if m.r.IntN(400) == 0 {
			m.kill(t)
		}
	}
}

// remind posts what a successor has to, as far as there is room.
func (m *portModel) remind(t testing.TB) {
	for len(m.reclaim) > 0 && m.tell(t, m.reclaim[0]) {
		m.reclaim = m.reclaim[1:]
	}
}

// tell posts a command if there is room.
func (m *portModel) tell(t testing.TB, e cq.Entry) bool {
	err := m.asker.Post(&e)
	if !errors.Is(err, cq.ErrFull) {
		must(t, err)
	}
	return err == nil
}

func (m *portModel) readSome(t testing.TB) {
	var buf [16]cq.Entry
	n, err := cq.Read(m.app, buf[:1+m.r.IntN(16)])
	switch {
	case errors.Is(err, cq.ErrAvail):
		e := m.readErr(t)
		m.complete(t, e.Context)
	case !errors.Is(err, cq.ErrWouldBlock):
		must(t, err)
	}
	for _, e := range buf[:n] {
		if e.Flags&cq.FlagSend != 0 {
			m.complete(t, e.Context)
			continue
		}
		if seq := binary.LittleEndian.Uint64(m.bytes(&e)); seq != m.seen {
			t.Fatalf("datagram %d, want %d", seq, m.seen)
		}
		m.seen++
		m.held = append(m.held, heldFrame{e, m.seen - 1})
	}
}

func (m *portModel) complete(t testing.TB, context uint64) {
	if !m.open[context] {
		t.Fatalf("send %d completed, which is not under way", context)
	}
	delete(m.open, context)
}

func (m *portModel) giveBack(t testing.TB) {
	if len(m.held) == 0 {
		return
	}
	i := m.r.IntN(len(m.held))
	h := m.held[i]
	if seq := binary.LittleEndian.Uint64(m.bytes(&h.e)); seq != h.seq {
		t.Fatalf("frame of datagram %d was overwritten by %d while on loan", h.seq, seq)
	}
	if m.tell(t, port.ReturnCommand(&h.e)) {
		m.held = append(m.held[:i], m.held[i+1:]...)
		m.returned = append(m.returned, h.e)
		m.returned = m.returned[max(0, len(m.returned)-64):]
	}
}

func (m *portModel) send(t testing.TB) {
	m.context++
	from := m.payload.Ref(m.r.Uint64N(1 << 16))
	e := port.SendCommand(m.context, from, m.r.IntN(2000), cq.Addr(m.r.IntN(3)))
	if m.tell(t, e) {
		m.open[m.context] = true
	}
}

// hostile posts returns again, and nonsense.
func (m *portModel) hostile(t testing.TB) {
	if n := len(m.returned); n > 0 {
		m.tell(t, port.ReturnCommand(&m.returned[m.r.IntN(n)]))
	}
	e := cq.Entry{Flags: cq.FlagFrame, Buf: shm.MakeRef(m.umem.Region().ID(), m.r.Uint64N(1<<17)),
		Data: m.r.Uint64()}
	m.tell(t, e)
	m.context++
	e = cq.Entry{Context: m.context, Flags: cq.Flags(m.r.Uint64()) | 1, Len: m.r.Uint64(),
		Buf: shm.Ref(m.r.Uint64()), Src: cq.From(cq.Addr(m.r.Uint64()))}
	if m.tell(t, e) {
		m.open[m.context] = true
	}
}

// kill replaces the application. The successor returns what it believes to be redelivered, part of
// which was returned already, and reclaims the rest.
func (m *portModel) kill(t testing.TB) {
	m.kills++
	must(t, m.app.Detach())
	q, err := cq.Adopt(m.dir, "app", cq.Options{})
	must(t, err)
	m.app = q
	for i := range m.returned {
		m.tell(t, port.ReturnCommand(&m.returned[i]))
	}
	for i := range m.held {
		if m.r.IntN(3) == 0 {
			m.tell(t, port.ReturnCommand(&m.held[i].e))
		}
	}
	// What the dead one held is nobody's now.
	m.held = m.held[:0]
	es, err := port.ReclaimCommands(m.dir, "app", m.umem.Region().ID())
	must(t, err)
	m.reclaim = append(m.reclaim, es...)
}

// TestModel makes 100,000 moves. The frames add up after every one; each datagram that was
// taken comes out once, in order; each send is answered once; at the end nothing is on loan.
func TestModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := &portModel{portRig: newPortRig(t, rigOptions{lane: 16, commands: 64, frames: 64, send: 24,
		start: ^uint32(500)}),
		r: rand.New(rand.NewPCG(seed, 1)), open: map[uint64]bool{}}
	for range 100000 {
		m.step(t)
		if s := m.socket.FrameStats(); s.Sum() != s.Frames || s.Illegal != 0 {
			t.Fatalf("%+v", s)
		}
	}
	m.kernel.HoldCompletions(false)
	for range 10000 {
		m.remind(t)
		m.kernel.Complete(64)
		m.rounds(t)
		m.readSome(t)
		m.giveBack(t)
	}
	m.rounds(t)
	s := m.port.Stats()
	if m.seen != m.sent || len(m.open) != 0 || s.Frames.States[xdp.FrameLoaned] != 0 ||
		s.Frames.States[xdp.FrameSend] != 0 || s.Frames.States[xdp.FrameQuarantine] != 0 {
		t.Errorf("%d of %d datagrams, %d sends open, %+v", m.seen, m.sent, len(m.open), s)
	}
	if m.kills == 0 || s.Reclaimed == 0 || s.Frames.StaleReturn == 0 || s.BadCommands == 0 ||
		s.RxBlocked == 0 || s.TxBlocked == 0 {
		t.Errorf("not everything happened: %d kills, %+v", m.kills, s)
	}
}

// FuzzCommand posts one command of any content: it never harms the frames and is answered
// once, unless it is a return.
func FuzzCommand(f *testing.F) {
	r := newPortRig(f, rigOptions{})
	// Regions have other numbers each time: the fuzzer says which one, and where in it.
	region, umem := uint8(0), uint8(1)
	for _, s := range []struct {
		e      cq.Entry
		region uint8
		offset uint64
	}{{port.SendCommand(1, 0, 100, 1), region, 0}, {port.SendCommand(2, 0, 9999, 0), region, 0},
		{port.SendCommand(3, 0, 1472, 1), region, 1<<16 - 1472},
		{port.SendCommand(4, 0, 1400, 1), region, 1<<16 - 1399},
		{port.ReturnCommand(&cq.Entry{}), umem, 400}, {port.ReturnCommand(&cq.Entry{}), umem, 1 << 40},
		{cq.Entry{Flags: cq.FlagFrame | cq.FlagClaim}, umem, 400}, {cq.Entry{}, 2, 0}} {
		e := s.e
		f.Add(e.Context, uint64(e.Flags), e.Len, s.region, s.offset, e.Data, uint64(e.Src.Addr()),
			uint64(e.Meta))
	}
	f.Fuzz(func(t *testing.T, context, flags, n uint64, which uint8, offset, data, src, meta uint64) {
		regions := [...]uint16{r.payload.ID(), r.umem.Region().ID(), 0, 0xffff}
		e := cq.Entry{Context: context, Flags: cq.Flags(flags), Len: n,
			Buf: shm.MakeRef(regions[which%4], offset&(1<<48-1)), Data: data, Src: cq.From(cq.Addr(src)),
			Meta: cq.Meta(meta)}
		must(t, r.asker.Post(&e))
		r.rounds(t)
		r.checkFrames(t)
		es := r.read(t)
		answers := len(es)
		if answers == 0 {
			var failed cq.ErrorEntry
			if r.app.ReadErr(&failed) == nil {
				answers++
				es = append(es, cq.Entry{Context: failed.Context})
			}
		}
		want := 1
		if e.Flags == cq.FlagFrame || e.Flags == cq.FlagFrame|cq.FlagClaim {
			want = 0
		}
		if answers != want || want == 1 && es[0].Context != context {
			t.Errorf("%d answers to %+v: %+v", answers, e, es)
		}
	})
}
