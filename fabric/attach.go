package fabric

import (
	"errors"
	"io/fs"
	"slices"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
)

// attach takes a place in our outbox and a row of the peer's, and tells it.
func (e *Endpoint) attach(p *peer) (l *outLane, err error) {
	defer func() {
		if err != nil {
			p.forget()
		}
	}()
	if p.dead.Load() {
		return nil, ErrPeerDied
	}
	if err := p.open(); err != nil {
		return nil, p.fault(err)
	}
	if p.words.page.Type.Load() != e.typeWord() {
		return nil, p.fault(ErrType)
	}
	place := e.freePlace()
	if place < 0 {
		return nil, e.noPeers(p, nil)
	}
	// The place may have had this number before. Who is late with a word about a former lane, whose
	// claim was taken back, leaves that of the next: see markDone.
	e.uses[place] = e.uses[place]%kind.FabricMostUses + 1
	e.done[place].Store(0)
	n := e.opt.Slots
	l = &outLane{p: p, place: place, head: &e.lanes[place], mask: uint64(n - 1),
		slots: e.slots[place*n : (place+1)*n], passes: make([]passage, n), granted: p.window,
		id: kind.FabricLaneID(e.addr.Outbox, place, e.uses[place]), missed: p.missed}
	for i := range l.slots {
		l.slots[i].Seq.Store(0)
	}
	high, low := kind.UuidWords(p.addr.UUID)
	l.head.Slab.Store(uint64(place * n))
	l.head.Slots.Store(uint64(n))
	l.head.Target.Store(p.addr.Outbox)
	l.head.TargetHigh.Store(high)
	l.head.TargetLow.Store(low)
	l.head.Pays.Store(1)
	l.head.Control.Store(0)
	l.head.Type.Store(e.typeWord())
	l.head.Bell.Parked.Store(wake.Parked)
	crash.At(crash.FabricLaneFilled)
	l.head.ID.Store(l.id) // whole before anybody can find it
	crash.At(crash.FabricLaneNamed)
	row := l.claim()
	closed := !e.met() && p.hasClosed()
	if row < 0 || closed {
		if row >= 0 {
			p.words.claims[row].CompareAndSwap(l.id, 0)
		}
		l.head.ID.Store(0)
		if !closed {
			return nil, e.noPeers(p, p.words.claims)
		}
		return nil, p.fault(ErrNoPeer)
	}
	l.ringer = p.ringer(&l.row.Bell, row, &l.head.Rung)
	p.out, e.out[place], p.missed = l, l, 0
	p.outBit.Store(int32(len(e.rows) + place + 1))
	c := wake.LaneConfig{Row: &l.head.Bell, Source: l, Capacity: 1}
	if e.met() {
		c.Rung = &l.row.Rung
		l.silence = e.bell.Forward(len(e.rows)+place, c.Rung, l.row.Rev.Load)
	}
	e.bell.Add(len(e.rows)+place, c)
	l.ringer.Announce()
	return l, nil
}

// lane returns the lane to a peer. It begins one if there is none.
func (e *Endpoint) lane(p *peer) (*outLane, error) {
	if p.out == nil {
		e.seekPlace()
	}
	if p.out != nil {
		return p.out, nil
	}
	return e.attach(p)
}

// seekPlace looks who has gone if all places are taken. The notice of a death may come later.
func (e *Endpoint) seekPlace() {
	if e.freePlace() >= 0 {
		return
	}
	for _, l := range e.out {
		if !e.lives(l.p.addr.Outbox) {
			l.p.died()
		}
	}
	e.poll()
}

// fault is an error of a send that has no lane.
func (p *peer) fault(err error) error {
	hint := ""
	if err == ErrNoPeer {
		hint = "ask for its address again"
	}
	return hinted("send", p.addr.String(), hint, err)
}

// noPeers says that there is no room for one more peer, in rows of its own or here; or not yet, and
// has who waits look again. A lane of ours has its place until its end is examined, and one who has
// gone its row until the peer notices that.
func (e *Endpoint) noPeers(p *peer, rows []kind.Word) error {
	soon := slices.ContainsFunc(e.out, func(l *outLane) bool {
		return l != nil && (l.parted() || l.err == nil && !l.p.used())
	})
	for row := 0; row < len(rows) && !soon; row++ {
		box, _ := kind.FabricLaneOf(rows[row].Load())
		soon = !e.lives(box)
	}
	if soon {
		e.later.Want()
		return cq.ErrFull
	}
	return p.fault(ErrPeers)
}

// lives reports whether the endpoint with an outbox is not proved gone: it has the lock of that, or
// was met over a socket.
func (e *Endpoint) lives(box uint64) bool {
	if e.met() {
		return true
	}
	owned, err := e.dir.Owned(kind.FabricOutboxName(box))
	return owned || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// freePlace returns a place that nobody has, or -1. One that has refused us, and closes its
// endpoint, says nothing of that.
func (e *Endpoint) freePlace() int {
	place := slices.Index(e.out, nil)
	for i := 0; place < 0 && i < len(e.out); i++ {
		if l := e.out[i]; l.err != nil {
			l.p.vacate()
			place = slices.Index(e.out, nil)
		}
	}
	return place
}

// claim takes a row that nobody has, or -1. Then the receiver is told of rows that it has not given
// to who claimed them: a sender may have died before it rang, or after it was refused.
func (l *outLane) claim() int {
	w := &l.p.words
	if w.claims == nil { // it was met over a socket, and has one row
		l.row = &w.rows[0]
		l.rev = l.row.Rev.Load() - 1 // it may have given up already: it is looked at once
		return 0
	}
	for i := range w.claims {
		row := (i + l.place) % len(w.claims)
		if w.claims[row].Load() != 0 || !w.claims[row].CompareAndSwap(0, l.id) {
			continue
		}
		crash.At(crash.FabricClaimed)
		l.bit, l.row = row, &w.rows[row]
		l.rev = l.row.Rev.Load() // before the state is looked at: see Endpoint.leave
		return row
	}
	for row := range w.claims {
		if r := &w.rows[row]; r.Owner.Load() != w.claims[row].Load() {
			l.p.ringer(&r.Bell, row, nil).Announce()
		}
	}
	return -1
}
