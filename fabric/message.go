package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/posted"
)

// arrival is a message whose header was examined: who sent it, and where its bytes are. Lanes make
// one and hand it to [Endpoint.arrive], which finds its receive, or keeps it in the store until
// there is one. Whoever finds that hands both to [Endpoint.bring], which moves the bytes and ends
// the receive by [Endpoint.endReceive].
type arrival struct {
	from *inLane // nil: sent by this endpoint to itself
	peer *peer   // who sent it
	// FlagMsg or FlagTagged, and FlagRemoteCQData.
	flags     cq.Flags
	tag, data uint64
	n         int    // bytes
	here      []byte // they: in a slot, or in kept
	kept      []byte // private memory, which outlives the message for the next that is kept here
}

// headed says of a message what its slot does. head is what was loaded of that; ok is false if it
// cannot be.
func (l *inLane) headed(s *kind.FabricSlot, head uint64) (m arrival, ok bool) {
	m = arrival{from: l, peer: l.p, n: int(head >> 32), flags: cq.FlagMsg}
	if head&kind.FabricTagged != 0 {
		m.flags, m.tag = cq.FlagTagged, s.Tag.Load()
	}
	if head&kind.FabricWithData != 0 {
		m.flags, m.data = m.flags|cq.FlagRemoteCQData, s.Data.Load()
	}
	return m, head&kind.FabricFlags&^(kind.FabricTagged|kind.FabricWithData) == 0
}

// head writes what a slot says of a message but for its kind, and returns what its second word says
// of that.
func (o *sendOp) head(s *kind.FabricSlot) (head uint64) {
	if o.flags&cq.FlagTagged != 0 {
		head = kind.FabricTagged
		s.Tag.Store(o.tag)
	}
	if o.flags&cq.FlagRemoteCQData != 0 {
		head |= kind.FabricWithData
		s.Data.Store(o.data)
	}
	return head
}

// keep makes m a copy of a message, with bytes of its own.
func (m *arrival) keep(a *arrival) {
	kept := append(m.kept[:0], a.here...)
	*m = *a
	m.here, m.kept = kept, kept
}

// forget leaves m for the next.
func (m *arrival) forget() { *m = arrival{kept: m.kept[:0]} }

// bring moves the bytes of a message to its part of a receive, as many as fit, and ends it. That
// part is the transport's from here on, and nobody cancels it.
func (e *Endpoint) bring(m *arrival, s posted.Span) {
	s.Put(0, m.here)
	if m.from != nil {
		m.from.match(m.n)
	}
	e.endReceive(&s, m, 0, m.n)
}
