package xdp

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xskernel"
)

// lent returns a table of four frames, of which holders have the first three under the generations
// 7, 8 and 9.
func lent(t *testing.T, holders ...uint16) *frameTable {
	t.Helper()
	f := newFrameTable(0, 4, 4)
	for i, h := range holders {
		id, ok := f.pop(&f.rxFree, frameFill)
		if !ok || !f.move(id, frameReceived) ||
			f.loan(uint32(7+i), h, []Received{{Frame: id}}) != 1 {
			t.Fatalf("frame %d cannot be lent", id)
		}
	}
	return f
}

// A reclaim takes the loans of one holder that are older than what it names.
func TestReclaimTakesTheOlder(t *testing.T) {
	t.Parallel()
	f := lent(t, 1, 1, 1)
	if n := f.reclaim(9, 1); n != 2 || f.counts[frameLoaned] != 1 || f.counts[frameFree] != 3 {
		t.Errorf("%d reclaimed, %v", n, f.stats())
	}
	if _, ok := f.lent(2, 9, 1); !ok {
		t.Error("the loan of the living reader is gone")
	}
	f = lent(t, 1, 2, 1)
	if n := f.reclaim(100, 1); n != 2 || !f.is(1, frameLoaned) {
		t.Errorf("%d reclaimed of holder 1, %v", n, f.stats())
	}
	f = lent(t, 1)
	f.loans[0].generation = 1<<32 - 3
	if n := f.reclaim(2, 1); n != 1 {
		t.Errorf("%d reclaimed across the end of the numbers", n)
	}
}

// A frame cannot get to where it would have two owners.
func TestIllegalMoves(t *testing.T) {
	t.Parallel()
	for to := range frameStates {
		for from := range frameStates {
			f := newFrameTable(0, 1, 1)
			f.state[0] = from
			f.counts = [frameStates]uint64{}
			f.counts[from] = 1
			legal := legalFrom[to]&(1<<from) != 0
			moved := f.move(0, to)
			if moved != legal || f.is(0, to) != (legal || from == to) || f.stats().Sum() != 1 {
				t.Errorf("%v to %v: moved %v, legal %v, %+v", from, to, moved, legal, f.stats())
			}
			if refused := f.stats().Illegal == 1; refused == legal {
				t.Errorf("%v to %v: counted %d", from, to, f.stats().Illegal)
			}
		}
	}
	f := newFrameTable(4, 1, 1)
	if f.move(3, frameFill) || f.move(5, frameFill) {
		t.Error("a frame of another table moves")
	}
}

// No frame of a UMEM is given out twice, whoever had it before.
func TestFramesAreGivenOnce(t *testing.T) {
	t.Parallel()
	u := &UMEM{geo: Geometry{Frames: 8}}
	var at uint32
	for _, n := range []uint32{3, 4, 0} {
		first, frames, err := u.take(n)
		if err != nil || first != at || n != 0 && frames != n {
			t.Fatalf("%d frames from %d: %v", frames, first, err)
		}
		at += frames
	}
	if at != 8 {
		t.Errorf("%d frames given out of 8", at)
	}
	if _, _, err := u.take(1); !errors.Is(err, ErrUMEMUsed) {
		t.Errorf("one more: %v", err)
	}
}

// fakeConfig sizes a fake device. Zero values give 32 frames of 2048 bytes, half of them to send,
// and rings of 16.
type fakeConfig struct {
	frames, rxFrames, entries int
	start                     uint32 // of all indices
	chains                    bool
}

// newFake returns a core that has no socket around it, over memory of the Go heap, where the race
// detector sees the packets too.
func newFake(c fakeConfig) (*core, *xskernel.Kernel) {
	if c.frames == 0 {
		c.frames = 32
	}
	if c.rxFrames == 0 {
		c.rxFrames = c.frames / 2
	}
	if c.entries == 0 {
		c.entries = 16
	}
	n := uint32(c.entries)
	o := Options{RxEntries: n, TxEntries: n, FillEntries: n, CompEntries: n}
	g := Geometry{Frames: uint32(c.frames), ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	mem := make([]byte, g.bytes())
	q := xskernel.NewQueue(n, n, c.start)
	p := newPool(mem, g, 0, g.Frames, g.Frames-uint32(c.rxFrames))
	p.fill = newProducer(wordsOf(q.Fill), q.Fill.Slots)
	p.comp = newConsumer(wordsOf(q.Comp), q.Comp.Slots)
	k := newFakeMember(p, q, o, c)
	return p.members[0], k
}

// newFakeMember adds a core to a pool.
func newFakeMember(p *pool, q *xskernel.Queue, o Options, c fakeConfig) *xskernel.Kernel {
	e := &core{maxPacket: 1518, mtu: 1500, chains: c.chains}
	if c.chains {
		e.maxPacket, e.mtu = 1728, 9000
	}
	p.join(e)
	k := simKernel(e, q, o, c.start, func() {})
	k.HoldCompletions(true)
	return k
}

// TestRingUnits: each of the four rings, alone, against its other end: no more can be taken than
// there is, nothing comes that was not put, and every address comes back as it was.
func TestRingUnits(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, start := range []uint32{0, ^uint32(5)} {
		r := xskernel.NewRing[uint64](8, start)
		p := newProducer(wordsOf(r), r.Slots)
		c := newConsumer(wordsOf(r), r.Slots)
		if c.available(8) != 0 || p.room(100) != 8 || p.pending() != 0 || p.publish() != 0 {
			t.Fatal("a new ring is not empty")
		}
		next, want := uint64(0), uint64(0)
		for round := range uint64(50) {
			n := p.room(8)
			for range min(uint64(n), round%9) {
				p.put(next << 11)
				next++
			}
			if c.available(8) != uint32(next-want) && p.publish() != 0 &&
				c.available(8) != uint32(next-want) {
				t.Fatalf("round %d: %d can be taken of %d", round, c.available(8), next-want)
			}
			for range min(c.available(3), 3) {
				if e := c.take(); e != want<<11 {
					t.Fatalf("%d came, want %d", e, want<<11)
				}
				want++
			}
			before := p.pending()
			c.release()
			if now := p.pending(); now != uint32(next-want) || now > before {
				t.Fatalf("round %d: %d pending, want %d", round, now, next-want)
			}
			if p.faults+c.faults != 0 {
				t.Fatal("faults of an honest ring")
			}
		}
		if want < 50 {
			t.Fatalf("only %d entries passed", want)
		}
	}
}

func TestRecordRoundTrip(t *testing.T) {
	for _, a := range []string{"192.0.2.1:4000", "[2001:db8::1]:65535"} {
		want := Record{
			Sequence: 1<<40 + 7, RxNs: 123456789, Src: netip.MustParseAddrPort(a),
			Dst: netip.MustParseAddrPort("192.0.2.2:9"), Queue: 3, VLAN: 100, PayloadOff: 46,
			PayloadLen: 1400, FrameLen: 1446, Flags: RecordVLAN | RecordChecksumOK,
		}
		b := make([]byte, RecordBytes)
		want.Put(b, false)
		diff := cmp.Diff(want, readRecord(b), cmpopts.EquateComparable(netip.AddrPort{}))
		if diff != "" {
			t.Error(diff)
		}
		if n := testing.AllocsPerRun(100, func() { want.Put(b, false); want = readRecord(b) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// ReadRecord decodes a record.
var ReadRecord = readRecord
