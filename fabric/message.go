package fabric

import (
	"bytes"
	"maps"
	"slices"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/posted"
	"github.com/shmring/shmring/ring"
)

// arrival is a message whose header was examined: who sent it, and where its bytes are. Lanes make
// one and hand it to [Endpoint.arrive], which finds its receive, or keeps it in the store until
// there is one. Whoever finds that hands both to [Endpoint.bring], which moves the bytes and ends
// the receive by [Endpoint.endReceive].
type arrival struct {
	from *inLane
	peer *peer // who sent it
	// FlagMsg or FlagTagged, and FlagRemoteCQData.
	flags     cq.Flags
	meta      cq.Meta // MetaSolicited, if it is
	tag, data uint64
	n         int    // bytes
	here      []byte // they: in a slot, or in kept
	lies      []byte // they: in the sender's pool, which lends them
	kept      []byte // private memory, which outlives the message for the next that is kept here
	held      bool   // its send goes on: the bytes are its sender's until they have a receive
	op        uint16 // of the sender, if held; its bit, if asks
	asks      bool   // its sender waits for its match
	missed    uint64 // messages for groups before it that found no room
}

// headed says of a message what its slot does, until the next is examined. head is what was loaded
// of that.
func (l *inLane) headed(s *kind.FabricSlot, head uint64) (m *arrival) {
	m = &l.p.e.arrival
	m.from, m.peer, m.flags, m.meta, m.tag, m.data = l, l.p, cq.FlagMsg, marks(head), 0, 0
	m.n, m.here, m.lies = int(head>>32), nil, nil
	m.held, m.asks, m.missed = false, false, 0
	if head&kind.FabricTagged != 0 {
		m.flags, m.tag = cq.FlagTagged, s.Tag.Load()
	}
	if head&kind.FabricWithData != 0 {
		m.flags, m.data = m.flags|cq.FlagRemoteCQData, s.Data.Load()
	}
	if head&kind.FabricToGroup != 0 {
		l.grouped(m, s)
	}
	return m
}

// marks are those of an entry for which a slot says that.
func marks(head uint64) cq.Meta {
	if head&kind.FabricSolicits != 0 {
		return cq.MetaSolicited
	}
	return 0
}

// head writes what a slot says of a message but for its kind, and returns what its second word says
// of that.
func (o *sendOp) head(s *kind.FabricSlot) (head uint64) {
	if o.flags&cq.FlagTagged != 0 {
		head = kind.FabricTagged
		ring.StoreRelease(&s.Tag, o.tag)
	}
	if o.flags&cq.FlagRemoteCQData != 0 {
		head |= kind.FabricWithData
		ring.StoreRelease(&s.Data, o.data)
	}
	if o.flags&solicits != 0 {
		head |= kind.FabricSolicits
	}
	if o.flags&cq.FlagMulticast != 0 {
		head |= kind.FabricToGroup
		s.More[2].Store(0)
	}
	return head
}

// keep makes m a copy of a message, with bytes of its own.
func (e *Endpoint) keep(m, a *arrival) {
	kept := m.kept[:0]
	*m = *a
	if a.missed = 0; !a.held {
		kept = append(kept, a.here...)
		m.here = kept
	}
	if m.kept = kept; cap(kept) > MaxInline {
		m.kept = nil
	}
}

// forget leaves m for the next.
func (m *arrival) forget() { *m = arrival{kept: m.kept[:0]} }

// bring moves the bytes of a message to its part of a receive, as many as fit, and ends it: at
// once, or when its sender has sent them. That part is the transport's from here on, and nobody
// cancels it.
func (e *Endpoint) bring(m *arrival, s *posted.Span) {
	switch {
	case m.lies != nil:
		m.from.lend(m, s)
		return
	case m.held:
		m.from.clear(m, *s)
		return
	}
	m.from.match(m.n)
	m.from.answer(m)
	if s.Lends() {
		e.lend(s, bytes.Clone(m.here))
	} else {
		s.Put(0, m.here)
	}
	e.endReceive(s, m, 0, m.n)
}

// pull is a message of which the header came alone, at its receiver.
type pull struct {
	generation uint16
	m          arrival
	to         posted.Span
	clear      bool // it has its receive, and the sender is told or will be
	placed     int  // bytes
}

// mostRecords is how many records can be owed to who keeps to the rules: one of each operation, and
// one of each bit.
const mostRecords = kind.FabricMostOps + kind.FabricMostAsks

// announced takes a header that came alone.
func (l *inLane) announced(s *kind.FabricSlot, op uint16, m *arrival) (ok bool) {
	generation := s.More[0].Load()
	if m.n > MaxMessage || op >= kind.FabricMostOps || l.pulls[op] != nil || generation>>16 != 0 {
		return false
	}
	if l.p.e.opt.Datagram {
		return false
	}
	if len(l.owed) >= mostRecords { // a number is used again when its record was taken
		return false
	}
	if l.pulls == nil {
		l.pulls = map[uint16]*pull{}
	}
	l.pulls[op] = &pull{generation: uint16(generation)}
	m.held, m.op = true, op
	l.p.e.arrive(m)
	return true
}

// clear asks the sender of a message for the bytes that its receive has room for. The record stays
// owed as long as the control ring has no room.
func (l *inLane) clear(m *arrival, to posted.Span) {
	p := l.pulls[m.op]
	if e := l.p.e; to.Lends() && e.met() && m.n > e.opt.Window {
		to.Decline() // another user does not say how much memory it takes
	} else if to.Lends() {
		e.lend(&to, make([]byte, m.n))
	}
	p.m, p.to, p.clear = *m, to, true
	p.m.kept = nil
	l.touch()
	l.owed = append(l.owed, kind.FabricClear(m.op, p.generation, p.to.Len))
}

// tells reports whether there is room for records that are owed.
func (l *inLane) tells() bool { return len(l.owed) > 0 && l.room() > 0 }

// room is how many records the control ring has room for.
func (l *inLane) room() uint64 {
	used := l.cleared - l.lanes[l.place].Control.Load()
	return kind.FabricControls - min(used, kind.FabricControls)
}

// tellClear puts what is owed into the control ring, as far as it fits. What does not is said,
// before a last look for room: the sender stores the head of the ring, looks whether more is owed,
// and rings then. So one of them notices.
func (l *inLane) tellClear() {
	for l.tells() {
		n := min(len(l.owed), int(l.room()))
		for _, record := range l.owed[:n] {
			l.row.Clear[l.cleared%kind.FabricControls].Store(record)
			l.cleared++
		}
		crash.At(crash.FabricRecorded)
		l.row.Control.Store(l.cleared)
		if l.owed = append(l.owed[:0], l.owed[n:]...); len(l.owed) == 0 {
			l.row.Owed.Store(0)
			return
		}
		l.row.Owed.Store(1)
	}
	l.row.Owed.Store(1)
}

// placeSegment takes a segment of a message, and ends its receive after the last one.
func (l *inLane) placeSegment(op uint16, from []byte) (ok bool) {
	p := l.pulls[op]
	if p == nil || !p.clear || len(from) > p.to.Len-p.placed || len(from) == 0 && p.to.Len != 0 {
		return false
	}
	p.to.Put(p.placed, from)
	p.placed += len(from)
	if p.placed == p.to.Len {
		delete(l.pulls, op)
		l.p.e.endReceive(&p.to, &p.m, 0, p.placed)
	}
	return true
}

// orphan ends what the sender will not go on with: receives fail with what they have, and headers
// without a receive go.
func (l *inLane) orphan(num cq.Errno) {
	if m := l.p.e.opt.mux; m != nil {
		m.lost(l.p, !l.refused && !l.p.e.closed && l.p.stays())
	}
	if len(l.pulls) == 0 {
		return
	}
	l.p.e.drop(l)
	for _, op := range slices.Sorted(maps.Keys(l.pulls)) {
		if p := l.pulls[op]; p.clear {
			l.p.e.endReceive(&p.to, &p.m, num, p.placed)
		}
	}
	clear(l.pulls)
	l.owed = nil
}

// push is a message of which the header went alone, at its sender.
type push struct {
	sendOp
	payload    []byte
	generation uint16
	is         pushState
	want, sent int // bytes
}

type pushState uint8

const (
	pushFree pushState = iota
	pushAnnounced
	pushClear
)

// number takes the number of an operation that nobody has, which the caller knows to be there.
func (l *outLane) number() (id uint16) {
	if len(l.free) == 0 {
		l.free = append(l.free, uint16(len(l.pushes)))
		l.pushes = append(l.pushes, push{})
	}
	id = l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	return id
}

// announce makes an operation of a message whose header goes alone.
func (l *outLane) announce(s *kind.FabricSlot, payload []byte, op *sendOp) (id uint16) {
	id = l.number()
	p := &l.pushes[id]
	*p = push{sendOp: *op, payload: payload, generation: p.generation + 1, is: pushAnnounced}
	if op.copied() {
		p.payload = bytes.Clone(payload)
	}
	s.More[0].Store(uint64(p.generation))
	return id
}

// freePush has an operation be for another message.
func (l *outLane) freePush(id uint16) {
	l.pushes[id] = push{generation: l.pushes[id].generation}
	l.free = append(l.free, id)
}

// takeClear takes what the receiver asks for, in the control ring up to its tail. Fewer than none:
// it cannot be.
func (l *outLane) takeClear(tail uint64) (work int) {
	if tail-l.control > kind.FabricControls {
		return -1
	}
	for ; l.control != tail; l.control++ {
		id, generation, want := kind.FabricCleared(
			l.row.Clear[l.control%kind.FabricControls].Load())
		if want == kind.FabricUnwritten {
			if !l.unwritten(id, generation) {
				return -1
			}
			work++
			continue
		}
		if int(id) >= len(l.pushes) {
			return -1
		}
		p := &l.pushes[id]
		if p.is != pushAnnounced || p.generation != generation || want > len(p.payload) {
			return -1
		}
		if work++; p.piece != nil { // the receiver has it, or has done with it
			l.p.e.endSend(&p.sendOp, 0)
			l.freePush(id)
			continue
		}
		p.is, p.want = pushClear, want
		l.clear = append(l.clear, id)
	}
	if work > 0 {
		l.head.Control.Store(tail)
		crash.At(crash.FabricAsked)
		if l.row.Owed.Load() != 0 {
			l.ringer.Published(l.sent, 0)
		}
	}
	return work
}

// pump sends segments of what the receiver asked for, as far as there is room. One slot is left to
// headers.
func (l *outLane) pump() {
	done := 0
	for done < len(l.clear) && l.sent-l.seen < max(l.mask-1, 1) {
		id := l.clear[done]
		p := &l.pushes[id]
		n := l.next(p.want - p.sent)
		if n < 0 {
			break
		}
		s, pass := l.slot()
		what := kind.FabricData | l.fill(s, pass, p.payload[p.sent:p.sent+n])
		crash.At(crash.FabricSegmented)
		if p.sent += n; p.sent == p.want {
			pass.sendOp, pass.ends = p.sendOp, true
			l.freePush(id)
			done++
		}
		l.publish(s, pass, what, id, n)
	}
	l.clear = append(l.clear[:0], l.clear[done:]...)
}
