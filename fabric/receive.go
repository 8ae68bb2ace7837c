package fabric

import (
	"errors"
	"io/fs"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/fetch"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// inLane is what one peer sends to us.
type inLane struct {
	p      *peer
	bit    int // of its row, which is ours
	id     uint64
	row    *kind.FabricRow
	box    *shm.Object // the peer's
	lanes  []kind.FabricLane
	done   []kind.Word
	place  int
	slots  []kind.FabricSlot
	pool   kind.FabricPool
	mask   uint64
	ringer *wake.Ringer // nil if the peer has closed already

	head    uint64 // next index to be examined
	bytes   uint64 // of what was examined
	matched uint64 // and of what has its receive
	rev     uint64
	dirty   bool
	refused bool
	forwarded

	pulls   map[uint16]*pull // by the sender's operation
	owed    []uint64         // records for the control ring
	cleared uint64           // its tail
	inBox   int              // who needs the outbox: the lane, and loans of its messages
	answers answers
}

// adopt maps the lane that somebody claimed a row for, and gives it the row. The bell asks for it
// at a mark.
func (e *Endpoint) adopt(bit int) (c wake.LaneConfig, ok bool) {
	if bit >= len(e.rows) { // a forged mark, or the notice of one that was cut off
		if l := e.out[bit-len(e.rows)]; l != nil {
			l.p.vacate()
		}
		return c, false
	}
	if l := e.in[bit]; l != nil { // refused, and it rang: it may have gone
		l.p.vacate()
		return c, false
	}
	id := e.claims[bit].Load()
	if id == 0 {
		return c, false
	}
	row := &e.rows[bit]
	if row.Owner.Load() == id|kind.FabricRefused {
		e.freeRefused(bit, id)
		return c, false
	}
	l, pays, err := e.openLane(bit, id)
	if err != nil && l != nil {
		defer l.turnDown()
	}
	if errors.Is(err, fs.ErrNotExist) { // the sender is gone, and who removed its outbox had proof
		e.remote.forget(bit)
		e.claims[bit].CompareAndSwap(id, 0)
		return c, false
	}
	if kind.Starved(err) && !errors.Is(err, ErrRefused) && !e.closed {
		e.later.Want()
		e.unheard(id, err, false)
		return c, false
	}
	crash.At(crash.FabricMapped)
	row.Head.Store(0)
	row.Control.Store(0)
	row.Matched.Store(0)
	row.Granted.Store(uint64(e.opt.Window))
	if err != nil {
		e.stats.Refused++
		row.Owner.Store(id | kind.FabricRefused)
		row.Rev.Add(1)
		e.unheard(id, err, true)
		return c, false
	}
	crash.At(crash.FabricRowFilled)
	row.Owner.Store(id)
	crash.At(crash.FabricAdopted)
	l.rev = row.Rev.Load()
	e.in[bit], l.p.in = l, l
	l.box.SpareFD()
	l.p.inBit.Store(int32(bit + 1))
	c = wake.LaneConfig{Row: &row.Bell, Source: l, Capacity: 1, ReaderPays: !pays}
	if e.met() {
		c.ReaderPays, c.Rung = false, &l.lanes[l.place].Rung
		l.silence = e.bell.Forward(bit, c.Rung, l.arrived)
	}
	return c, true
}

// turnDown gives up a lane that is not taken. Its sender may sleep, and looks at its row.
func (l *inLane) turnDown() {
	l.announce()
	l.unmap()
	l.p.forget()
}

// freeRefused frees a row that was refused at once, so that nobody watches its sender, if that has
// gone by now. Who lacks a row asks for it.
func (e *Endpoint) freeRefused(bit int, id uint64) {
	if box, _ := kind.FabricLaneOf(id); !e.lives(box) {
		e.remote.forget(bit)
		e.rows[bit].Owner.Store(0)
		e.claims[bit].CompareAndSwap(id, 0)
		e.collect(box)
	}
}

// markAgain has lanes looked at for which there were no descriptors, or no memory, who has asked
// answered for whom there was no lane, and removed what could not be. Who waits for a row looks
// again.
func (e *Endpoint) markAgain(pause time.Duration) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if m := e.opt.mux; m != nil && !e.closed {
		m.answerAgain(pause)
		for _, l := range e.out {
			if l != nil {
				e.spare([]*peer{l.p})
			}
		}
	}
	for row := range e.in {
		if !e.closed && e.in[row] == nil && e.claims[row].Load() != 0 {
			e.bell.Mark(row)
		}
	}
	remains := e.remains
	e.remains = nil
	for _, discard := range remains {
		discard()
	}
	e.makeRoom()
}

// openLane maps a lane by its number. What cannot be is [ErrCorrupt]. With an error there is a lane
// if its sender is known.
func (e *Endpoint) openLane(bit int, id uint64) (l *inLane, pays bool, err error) {
	boxID, place := kind.FabricLaneOf(id)
	box, o, name, err := e.openBox(boxID)
	if err != nil {
		return nil, false, err
	}
	defer func() {
		if l == nil {
			_ = box.Close()
		}
	}()
	l = &inLane{bit: bit, id: id, row: &e.rows[bit], box: box, inBox: 1, place: place}
	if l.lanes, _, err = kind.OutboxLanes(box, o); err != nil {
		return nil, false, err
	}
	if place >= o.Lanes {
		return nil, false, ErrCorrupt
	}
	head := &l.lanes[place]
	high, low := kind.UuidWords(e.addr.UUID)
	slots, ok := kind.LaneSlots(box, o, head)
	if !ok || head.ID.Load() != id || head.Type.Load() != e.typeWord() ||
		head.TargetHigh.Load() != high || head.TargetLow.Load() != low {
		return nil, false, ErrCorrupt
	}
	l.slots, l.mask = slots, uint64(len(slots)-1)
	if l.pool, err = kind.OutboxPool(box, o); err != nil {
		return nil, false, err
	}
	if !e.met() {
		mem, err := box.MapWritable(kind.SectFabricDone, 0)
		if err != nil {
			return nil, false, err
		}
		l.done = kind.Overlays[kind.Word](mem)
	}
	a := Address{Outbox: boxID, UUID: kind.UuidOf(o.High, o.Low), Generation: o.Generation}
	p := e.peerOf(a)
	for n := 0; n < len(l.slots) && p.in != nil && p.in.has() && !e.closed; n++ {
		p.in.examine() // it may have ended that one before it began this
	}
	p = e.peerOf(a)  // it may have been forgotten
	if p.in != nil { // one lane a peer, and those that end unused
		if l.p = p; !l.has() || l.slots[0].Head.Load() != kind.FabricFin || l.meet(place) != nil {
			return nil, false, ErrCorrupt
		}
		l.markDone()
		if rev := l.row.Rev.Add(1); l.ringer != nil {
			l.ringer.Published(rev, 0)
		}
		return nil, false, fs.ErrNotExist
	}
	if l.p = p; !e.met() { // who came over a socket does not say what it is called
		p.setName(name)
	}
	err = l.meet(place)
	if err == nil && e.link.strange(a) {
		l.markDone()
		err = ErrRefused
	}
	return l, head.Pays.Load() == 1, err
}

// meet maps what the sender sleeps on. It may have gone: then it has published its end, or is dead.
func (l *inLane) meet(place int) error {
	p := l.p
	switch err := p.open(); {
	case err == nil:
		bit := len(p.words.rows) + place
		if place >= len(p.words.rows) {
			return ErrCorrupt
		}
		l.ringer = l.p.ringer(&l.lanes[place].Bell, bit, &l.row.Rung)
		return nil
	case !errors.Is(err, ErrNoPeer):
		return err
	}
	life, err := l.box.Life()
	alive, known := shm.ProcessAlive(l.box.Owner())
	switch {
	case err != nil:
		return err
	case life == shm.LockLost:
		return shm.ErrLockLost
	case life == shm.Dead, life == shm.Alive && known && !alive: // a collector has its lock
		p.dead.Store(true)
	}
	return nil
}

// Level implements wake.Source. A lane whose sender is dead has more to look at than it holds.
func (l *inLane) Level() (head, tail uint64) {
	if l.p.dead.Load() || l.has() || l.tells() {
		return l.head, l.head + 1
	}
	return l.head, l.head
}

// has reports whether there is a message.
func (l *inLane) has() bool { return l.slots[l.head&l.mask].Seq.Load() == l.head+1 }

// mostMessages is how many messages of a lane are examined before it is the next one's turn.
const mostMessages = 32

// longBytes is from how many bytes on a chunk is told of by itself. To copy less takes no longer
// than its sender needs to hear of it.
const longBytes = 16 << 10

// examine takes what a peer sent, in order, and frees the slots. What is dead is drained first.
func (l *inLane) examine() (work int) {
	dead := l.p.dead.Load() // before the look
	most := mostMessages
	if dead {
		most = max(most, len(l.slots))
	}
	if l.has() { // what is told of it is stored soon, and lies with the sender, who looks at it
		fetch.Own(&l.row.Rev)
	}
	for long := false; work < most && l.has(); l.head++ {
		if long { // its chunk is filled again while the next one is copied
			l.touch()
			l.p.e.flush()
		}
		s := &l.slots[l.head&l.mask]
		head := s.Head.Load() // once: the length is bounded and used as it was
		long = head&kind.FabricInPool != 0 && head>>32 >= longBytes
		work++
		switch {
		case head == kind.FabricFin:
			l.head++
			l.leave()
			return work
		case !l.slot(s, head):
			l.p.cut()
			return work
		}
	}
	if l.tells() {
		work++
	}
	if work > 0 {
		crash.At(crash.FabricExamined)
		l.touch()
	}
	if dead {
		work++
		l.free()
		l.p.forget() // if there is a lane back, that does it
	}
	return work
}

// slot takes what lies in a slot. head is what was loaded of it: the length is bounded and used as
// it was then. It reports whether that can be.
func (l *inLane) slot(s *kind.FabricSlot, head uint64) (ok bool) {
	const said = kind.FabricTagged | kind.FabricWithData | kind.FabricSolicits |
		kind.FabricToGroup
	if m := l.p.e.opt.mux; m != nil {
		return l.streamed(m, s, head)
	}
	op, what := uint16(head>>16), head&0xffff
	switch what &^ said {
	case kind.FabricRTS:
		return l.announced(s, op, l.headed(s, head))
	case kind.FabricRTS | kind.FabricInPool:
		m := l.headed(s, head)
		m.lies, ok = l.pool.At(s.More[1].Load(), m.n)
		return ok && l.announced(s, op, m)
	case kind.FabricMessage, kind.FabricMessage | kind.FabricInPool,
		kind.FabricMessage | kind.FabricAsks,
		kind.FabricMessage | kind.FabricAsks | kind.FabricInPool:
		m := l.headed(s, head)
		m.asks, m.op = what&kind.FabricAsks != 0, op
		if m.here, ok = l.payload(s, head); !ok || op != 0 && !m.asks || op >= kind.FabricMostAsks ||
			l.bytes+charge(m.n) > l.matched+uint64(l.p.e.opt.Window) {
			return false
		}
		l.bytes += charge(m.n)
		l.p.e.arrive(m)
		return true
	}
	if what&^(kind.FabricWithData|kind.FabricSolicits|kind.FabricAsks) == kind.FabricReached {
		return l.reached(s, head)
	}
	here, ok := l.payload(s, head)
	return ok && what&^kind.FabricInPool == kind.FabricData && l.placeSegment(op, here)
}

// match notes that a message has its receive. Its sender may send more.
func (l *inLane) match(n int) {
	l.matched += charge(n)
	if l.heard() {
		l.touch()
	}
}

// heard reports whether the sender is told anything: the row is the lane's.
func (l *inLane) heard() bool { return l.p.in == l && !l.refused }

func (l *inLane) touch() {
	if !l.dirty {
		l.dirty = true
		l.p.e.dirty = append(l.p.e.dirty, l)
	}
}

// tell publishes how far the lane was examined, and rings if its sender has parked that. The
// sequence is the sender's look in reverse: rev last.
func (l *inLane) tell() {
	ring.StoreRelease(&l.row.Head, l.head)
	crash.At(crash.FabricHeadStored)
	l.tellMatched()
	ring.StoreRelease(&l.row.Granted, l.matched+uint64(l.p.e.opt.Window))
	if len(l.owed) > 0 {
		l.tellClear()
	}
	l.rev++
	crash.At(crash.FabricGranted)
	l.row.Rev.Store(l.rev)
	crash.At(crash.FabricTold)
	if l.ringer != nil {
		l.ringer.Published(l.rev, 0)
	}
}

// announce has the sender look at what was told, even if it ignores the lane.
func (l *inLane) announce() {
	if l.ringer != nil {
		l.ringer.Announce()
	}
}

// leave ends a lane whose sender has closed.
func (l *inLane) leave() {
	l.orphan(number(ErrPeerClosed))
	l.free()
	l.p.forget()
}

// free gives the row to the next, after the lane's last message.
func (l *inLane) free() {
	e := l.p.e
	l.orphan(number(ErrPeerDied))
	l.markDone()
	crash.At(crash.FabricDone)
	l.tell() // after the word: a sender that lives may use the place again
	e.bell.Drop(l.bit)
	l.p.inBit.Store(0)
	l.p.in, e.in[l.bit] = nil, nil
	l.row.Bell.Parked.Store(wake.Parked)
	l.row.Owner.Store(0)
	crash.At(crash.FabricDisowned)
	e.remote.forget(l.bit)
	e.claims[l.bit].CompareAndSwap(l.id, 0)
	crash.At(crash.FabricFreed)
	last := l.done != nil && len(kind.OutboxOpen(l.lanes, l.done)) == 0
	l.unmap()
	if box, _ := kind.FabricLaneOf(l.id); last {
		e.collect(box)
	}
}

// refuse ends a lane whose sender wrote what cannot be. The row stays its own until it has gone.
func (l *inLane) refuse() {
	if l.refused {
		return
	}
	l.refused = true
	e := l.p.e
	l.orphan(number(ErrCorrupt))
	l.row.Owner.Store(l.id | kind.FabricRefused)
	l.tell()
	l.announce()
	l.markDone()
	e.bell.Drop(l.bit)
	l.silent()
	if l.p.dead.Load() || l.p.hasClosed() { // the notice came before, and its mark is taken
		e.bell.Mark(l.bit)
	}
}

// markDone tells the outbox that nothing in the lane is for us any more. A sender may have taken
// its claim back meanwhile: what the receiver of a later lane of the place said stays.
func (l *inLane) markDone() {
	if l.done == nil {
		return
	}
	word := &l.done[l.place]
	for was := word.Load(); kind.FabricBefore(was, l.id) && !word.CompareAndSwap(was, l.id); {
		was = word.Load()
	}
}
