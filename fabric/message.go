package fabric

import "github.com/shmring/shmring/cq"

// arrival is a message whose header was examined: who sent it, and where its bytes are. Lanes make
// one and hand it to [Endpoint.arrive], which finds its receive, or keeps it in the store until
// there is one. Whoever finds that hands both to [Endpoint.bring], which moves the bytes and ends
// the receive by [Endpoint.endReceive].
type arrival struct {
	from *inLane // nil: sent by this endpoint to itself
	src  cq.Addr
	n    int    // bytes
	here []byte // they: in a slot, or in kept
	kept []byte // private memory, which outlives the message for the next that is kept here
}

// keep makes m a copy of a message, with bytes of its own.
func (m *arrival) keep(a *arrival) {
	kept := append(m.kept[:0], a.here...)
	*m = *a
	m.here, m.kept = kept, kept
}

// forget leaves m for the next.
func (m *arrival) forget() { *m = arrival{kept: m.kept[:0]} }

// bring moves the bytes of a message into the buffer of its receive, as many as fit, and ends it.
// The receive is the transport's from here on: it is in no list, and nobody cancels it.
func (e *Endpoint) bring(m *arrival, b buffer) {
	n := copy(b.buf, m.here)
	if m.from != nil {
		m.from.match(m.n)
	}
	e.endReceive(b, m, 0, n)
}
