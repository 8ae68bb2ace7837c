package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// What an endpoint with Options.Datagram sends goes now or never. Lanes, grants, chunks and the
// store are those of every endpoint, but nothing waits for room there: the call ends the send, and
// what becomes of its message later is not told.

// strong are levels that say something of the receiver.
const strong = cq.FlagDeliveryComplete | cq.FlagMatchComplete

// typeWord is what the page of the endpoint and its lanes say of its type.
func (e *Endpoint) typeWord() uint64 {
	if e.opt.Datagram {
		return kind.FabricDatagrams
	}
	return 0
}

// allowedDatagram says why what waits for nobody cannot be sent so.
func (e *Endpoint) allowedDatagram(op *sendOp) error {
	switch {
	case op.flags&strong != 0:
		return ErrNotSupported
	case op.bytes > MaxDatagram, op.bytes > MaxInline && e.pool.chunks == 0:
		return ErrTooLong
	}
	return nil
}

// offers reports whether a message can go at once, with its bytes.
func (l *outLane) offers(n int) bool {
	return l.err == nil && len(l.later) == 0 && l.hasSlot() &&
		l.bytes+charge(n) <= l.granted && l.fits(n)
}

// offer publishes one that can. Its send does not wait for the receiver.
func (l *outLane) offer(payload []byte, op *sendOp) {
	l.p.e.stats.Sent++
	s, pass := l.slot()
	pass.offered = true
	head := op.head(s)
	if op.flags&cq.FlagMulticast != 0 {
		s.More[2].Store(l.missed)
		l.missed = 0
	}
	l.bytes += charge(len(payload))
	l.publish(s, pass, head|kind.FabricMessage|l.fill(s, pass, payload), 0, len(payload))
}
