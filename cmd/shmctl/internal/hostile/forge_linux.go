package hostile

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/futex"
	memory "github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Random words seldom get past the first check of what an endpoint reads. So attackers write field
// by field, too: each is what it ought to be, or what is just within or beyond one of the checks.

// mint draws values of fields, of which one in odds is not what it ought to be.
type mint struct {
	rnd  *rand.Rand
	odds int
}

// or returns what is right, or one of others, or one that is wrong almost anywhere.
func (m mint) or(right uint64, others ...uint64) uint64 {
	if m.rnd.IntN(m.odds) > 0 {
		return right
	}
	if at := m.rnd.IntN(len(others) + 2); at < len(others) {
		return others[at]
	}
	any := [...]uint64{0, 1, ^uint64(0), right + 1, right - 1, 1 << 31, 1<<32 - 1, 1 << 63,
		m.rnd.Uint64()}
	return any[m.rnd.IntN(len(any))]
}

const (
	forgedChunk = 4096
	chunkBytes  = 32 << 10 // of those that the library makes
)

// slot publishes the message of an index, of an endpoint with a pool of so many bytes.
func (m mint) slot(slots []memory.FabricSlot, i, pool uint64) {
	s := &slots[i%uint64(len(slots))]
	n := m.or(m.rnd.Uint64N(memory.FabricInline+1), memory.FabricInline, memory.FabricInline+1,
		memory.FabricInline+1, forgedChunk, forgedChunk+1, chunkBytes, chunkBytes+1, lifeWindow,
		lifeWindow+1, pool, pool+1, memory.FabricMostBytes, memory.FabricMostBytes+1)
	is := uint64(memory.FabricMessage)
	if at := i % 16; at > 8 { // one that is announced, and what follows it
		is = []uint64{memory.FabricData, memory.FabricRTS}[i%2]
	}
	what := m.or(is, memory.FabricRTS, memory.FabricRTS, memory.FabricData,
		memory.FabricFin, memory.FabricReached, memory.FabricGrow, 0, 8)
	flags := m.or(0, memory.FabricInPool, memory.FabricInPool, memory.FabricAsks,
		1<<13, memory.FabricToGroup, memory.FabricSolicits, memory.FabricTagged,
		memory.FabricWithData, 1<<15, m.rnd.Uint64N(1<<8)<<8)
	op := m.or(0, 1, memory.FabricRead, memory.FabricWrite, memory.FabricMostAsks-1,
		memory.FabricMostAsks, memory.FabricMostOps-1, memory.FabricMostOps)
	s.Tag.Store(m.or(0))
	s.Data.Store(m.or(0))
	s.More[0].Store(m.or(0, 1, 1<<16-1, 1<<16))
	at := m
	if flags&memory.FabricInPool != 0 {
		at.odds = 2
	}
	s.More[1].Store(at.or(0, pool-n, pool-n+1, pool-1, pool+1, pool+1, -n, -n+1))
	s.More[2].Store(m.or(0))
	s.Head.Store(what&0xff | flags&memory.FabricFlags | op&0xffff<<16 | n<<32)
	s.Seq.Store(i + 1)
}

// What messages of connections do.
const (
	connAsk     = 1
	connAccept  = 2
	connOpened  = 4
	connData    = 5
	connWhats   = 10
	connWindow  = 256 << 10
	connPlace   = 1 << 8
	firstNumber = 1 << 32
)

// stream publishes the message of an index about the connection that has a number at its peer: it
// begins as it should, and has bytes then.
func (m mint) stream(slots []memory.FabricSlot, i, pool, number uint64, begin ...uint64) {
	s := &slots[i%uint64(len(slots))]
	what, n, data := uint64(connData), m.rnd.Uint64N(memory.FabricInline+1), uint64(0)
	if i < uint64(len(begin)) {
		what, n, data = begin[i], 8, firstNumber
	}
	if what == connOpened {
		n, data, m.odds = 0, 0, 4*m.odds
	}
	const says = memory.FabricMessage | memory.FabricTagged | memory.FabricWithData
	of := m.or(number, 0, number^connPlace, number^firstNumber, number|1<<31)
	s.Tag.Store(m.or(what, m.rnd.Uint64N(connWhats), m.rnd.Uint64N(connWhats)) | of)
	s.Data.Store(m.or(data, firstNumber, 2*firstNumber, connWindow, connWindow+1, 1<<30, 1<<30+1))
	memory.Overlay[memory.Word](s.Payload[:]).Store(m.or(1<<16, 0, 1<<30, 1<<30+1))
	n = m.or(n, 0, 7, 7, 9, memory.FabricInline, memory.FabricInline+1, memory.FabricInline+1, pool,
		pool+1)
	s.More[1].Store(m.or(0, pool-n, pool-n+1, pool, pool+1))
	s.Head.Store(m.or(says, says|memory.FabricInPool, says|memory.FabricInPool,
		memory.FabricFin, memory.FabricMessage, says|1<<16)&(1<<32-1) | n<<32)
	s.Seq.Store(i + 1)
}

// receive writes what the receiver of a lane says, which has sent so much.
func (m mint) receive(r *memory.FabricRow, id, sent, window uint64) {
	r.Owner.Store(m.or(id, id|memory.FabricRefused, 0, id^1<<12, id^1<<24))
	r.Head.Store(m.or(sent, sent+1, sent+1, sent+1, sent-1, sent+8, sent+9, sent+1<<63))
	r.Granted.Store(m.or(window, 0, window-1, 1<<63))
	tail := r.Control.Load()
	if m.rnd.IntN(2) == 0 {
		r.Clear[tail%memory.FabricControls].Store(m.record())
		tail++
	}
	r.Control.Store(m.or(tail, tail+1, tail-1, tail+memory.FabricControls,
		tail+memory.FabricControls+1))
	r.Matched.Store(m.or(r.Matched.Load(), r.Matched.Load()^1<<m.rnd.IntN(64)))
	r.Owed.Store(m.or(0, 1))
	r.Rev.Add(m.or(1, 0, 2))
}

// record is one of a control ring.
func (m mint) record() uint64 {
	return memory.FabricClear(uint16(m.or(0, 1, 2, memory.FabricMostAsks, memory.FabricMostOps)),
		uint16(m.or(1, 0, 2)), int(uint32(m.or(0, 1<<32-1, memory.FabricUnwritten,
			chunkBytes, lifePool, lifePool+1))))
}

// lead writes what leads to a peer.
func (m mint) lead(l *memory.FabricLane, id, slots uint64, to shm.UUID) {
	high, low := memory.UuidWords(to)
	l.Slab.Store(m.or(0, 1, slots-1, slots, slots/2))
	l.Slots.Store(m.or(slots, 0, 0, 1, 3, slots+1, 2*slots, memory.FabricMostSlots,
		2*memory.FabricMostSlots))
	l.TargetHigh.Store(m.or(high))
	l.TargetLow.Store(m.or(low))
	l.Type.Store(m.or(0, memory.FabricDatagrams))
	l.Pays.Store(m.or(1, 0))
	l.Control.Store(m.or(0, 1, memory.FabricControls, memory.FabricControls+1))
	l.Bell.Parked.Store(m.or(1))
	l.ID.Store(m.or(id, 0, id^1<<12, id|memory.FabricRefused, id+2))
}

// forger is a peer of a meeting that makes its objects by itself.
type forger struct {
	mint
	t        *talker
	conn     *net.UnixConn
	uuid     shm.UUID
	f        memory.Fabric
	o        memory.Outbox
	obj, box *shm.Object
	row      *memory.FabricRow
	lane     *memory.FabricLane
	slots    []memory.FabricSlot
	shrinks  bool

	victim, its *shm.Object // what it was passed: endpoint and outbox
	theirRow    *memory.FabricRow
	theirs      []memory.FabricSlot
	theirLane   uint64
}

// forge meets who has said hello, up to some field that is wrong.
func (t *talker) forge(conn *net.UnixConn, streams bool) {
	f := &forger{t: t, conn: conn, mint: mint{t.rnd, 40}, uuid: shm.NewUUID()}
	defer f.close()
	if len(t.got) != 2 || f.opens(t.got) != nil || f.make() != nil {
		return
	}
	fds := []int{f.obj.FD(), f.box.FD()}
	switch t.rnd.IntN(48) {
	case 0:
		slices.Reverse(fds)
	case 1:
		fds[t.rnd.IntN(2)] = fds[t.rnd.IntN(2)]
	case 2:
		fds[t.rnd.IntN(2)] = t.got[t.rnd.IntN(2)]
	case 3:
		fds = t.choose()
	}
	if f.says(1, fds...) != nil || f.says(2) != nil {
		return
	}
	if f.shrinks {
		time.Sleep(time.Millisecond)
		_ = unix.Ftruncate(f.box.FD(), 0)
	}
	t.last = nil
	if t.listen(conn, 100*time.Millisecond); len(t.last) == 0 || t.last[10] != 2 {
		return
	}
	for range 20 { // until it has read that we are ready, too
		if f.theirRow.Owner.Load() == f.id() {
			add(&t.c.did.Attaches, 1)
			f.goOn(streams)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// says is a message of a meeting.
func (f *forger) says(step uint64, fds ...int) error {
	m := binary.LittleEndian.AppendUint16([]byte(dialects["fabric"].magic),
		uint16(f.or(1, 0, 2)))
	m = binary.LittleEndian.AppendUint16(m, uint16(f.or(step, 0, 1, 2, 3)))
	m = binary.LittleEndian.AppendUint32(m, uint32(f.or(0)))
	add(&f.t.c.did.Mutations, 1)
	return shm.SendFDs(f.conn, m, fds...)
}

// opens maps what the victim has passed.
func (f *forger) opens(fds []int) (err error) {
	if f.victim, err = shm.OpenPassed(fds[0], "victim", 1<<30); err != nil {
		return err
	}
	if f.its, err = shm.OpenPassed(fds[1], "victim", 1<<30); err != nil {
		return err
	}
	v, err := memory.StoredFabric("victim", f.victim.Header())
	if err != nil {
		return err
	}
	f.theirLane = memory.FabricLaneID(v.Outbox, 0, 1)
	f.theirRow = &overlaid[memory.FabricRow](f.victim, memory.SectFabricRows)[0]
	f.theirs = overlaid[memory.FabricSlot](f.its, memory.SectFabricSlots)
	return nil
}

func overlaid[T any](o *shm.Object, k shm.SectionKind) []T {
	mem, _, _ := o.Section(k, 0)
	return memory.Overlays[T](mem)
}

// id is the number of its lane.
func (f *forger) id() uint64 { return memory.FabricLaneID(f.o.ID, 0, 1) }

// make makes its objects, with some attribute or section that is wrong now and then.
func (f *forger) make() (err error) {
	box := memory.FabricOutboxID(f.rnd.Uint64())
	high, low := memory.UuidWords(f.uuid)
	f.f = memory.Fabric{Rows: 1, Window: lifeWindow, Outbox: box}
	f.o = memory.Outbox{Lanes: 1, Slots: 8 << f.rnd.IntN(4), ID: box, High: high, Low: low,
		Generation: 1, Chunks: 1 + f.rnd.IntN(8), ChunkBytes: forgedChunk}
	if f.obj, err = f.object(f.f.Spec("forged"), memory.SectFabricRows); err != nil {
		return err
	}
	if f.box, err = f.object(f.o.Spec("forged"), memory.SectFabricSlots); err != nil {
		return err
	}
	page := overlaid[memory.FabricPage](f.obj, memory.SectFabricPage)
	rows := overlaid[memory.FabricRow](f.obj, memory.SectFabricRows)
	lanes := overlaid[memory.FabricLane](f.box, memory.SectFabricLanes)
	f.slots = overlaid[memory.FabricSlot](f.box, memory.SectFabricSlots)
	if len(page) == 0 || len(rows) == 0 || len(lanes) == 0 || len(f.slots) < f.o.Slots {
		return shm.ErrCorrupt
	}
	f.row, f.lane, f.slots = &rows[0], &lanes[0], f.slots[:f.o.Slots]
	page[0].Type.Store(f.or(0, memory.FabricDatagrams))
	f.row.Bell.Parked.Store(1)
	f.row.Granted.Store(f.f.Window)
	mint{f.rnd, 16}.lead(f.lane, f.id(), uint64(f.o.Slots), f.victim.Header().UUID)
	if f.shrinks = f.or(0, 1) != 0; f.shrinks {
		return nil
	}
	seals := f.or(0, 1) // and one that could be written to
	return errors.Join(f.obj.Seal(shm.SealOthers), f.box.Seal([]shm.Seals{shm.SealOthers,
		shm.SealShrink | shm.SealGrow | shm.SealSeal}[seals%2]))
}

// object makes one of them.
func (f *forger) object(s shm.Spec, k shm.SectionKind) (*shm.Object, error) {
	s.UUID, s.Generation = f.uuid, 1
	for i := range s.Attrs[:8] {
		s.Attrs[i] = f.or(s.Attrs[i], 2*s.Attrs[i], s.Attrs[i]/2)
	}
	right := slices.Clone(s.Sections)
	x := &s.Sections[f.rnd.IntN(len(s.Sections))]
	x.Length = f.or(x.Length, x.Length/2, x.ElemSize, 2*x.Length)
	x.Capacity = f.or(x.Capacity, x.Capacity/2, 2*x.Capacity)
	x.Kind = shm.SectionKind(f.or(uint64(x.Kind), uint64(k)))
	o, err := shm.CreateMemfd(s, nil)
	if err != nil { // such as cannot even be made
		s.Sections = right
		o, err = shm.CreateMemfd(s, nil)
	}
	return o, err
}

// goOn sends and receives until the other one has had enough. Fields are wrong more often then.
func (f *forger) goOn(streams bool) {
	number, pool := uint64(0), uint64(f.o.Chunks*f.o.ChunkBytes)
	begin := []uint64{connAsk, connOpened}
	if f.t.c.s.beside != nil { // who is attacked has asked
		begin = []uint64{connAccept}
	}
	answers := uint64(len(begin)) - 1
	late := time.Now().Add(50 * time.Millisecond)
	for i := uint64(0); i < 128 && time.Now().Before(late); {
		time.Sleep(50 * time.Microsecond)
		if f.theirRow.Owner.Load() != f.id() {
			return
		}
		sent := newest(f.theirs)
		if add(&f.t.c.did.Mutations, 1); f.rnd.IntN(4) == 0 {
			mint{f.rnd, 32}.receive(f.row, f.theirLane, sent, f.f.Window)
			f.row.Rung.Add(1)
			futex.WakeAll(&f.row.Rung)
			continue
		}
		if i-f.theirRow.Head.Load() >= uint64(len(f.slots)) {
			continue
		}
		if streams {
			if i == answers && sent == 0 {
				continue // it has not said anything
			}
			if i == answers {
				number = f.theirs[0].Data.Load()
			}
			mint{f.rnd, 6}.stream(f.slots, i, pool, number, begin...)
		} else {
			mint{f.rnd, 3}.slot(f.slots, i, pool)
		}
		i++
		f.lane.Rung.Add(1)
		futex.WakeAll(&f.lane.Rung)
	}
}

// newest is how many messages were published in a lane.
func newest(slots []memory.FabricSlot) (n uint64) {
	for i := range slots {
		n = max(n, slots[i].Seq.Load())
	}
	return n
}

func (f *forger) close() {
	for _, o := range []*shm.Object{f.obj, f.box, f.victim, f.its} {
		if o != nil {
			_ = o.Close()
		}
	}
}
