package fabric

import "github.com/shmring/shmring/internal/posted"

// arrival is a message whose header was examined: who sent it, and where its bytes are. Lanes make
// one and hand it to [Endpoint.arrive], which finds its receive, or keeps it in the store until
// there is one. Whoever finds that hands both to [Endpoint.bring], which moves the bytes and ends
// the receive by [Endpoint.endReceive].
type arrival struct {
	from *inLane // nil: sent by this endpoint to itself
	peer *peer   // who sent it
	n    int     // bytes
	here []byte  // they: in a slot, or in kept
	kept []byte  // private memory, which outlives the message for the next that is kept here
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
