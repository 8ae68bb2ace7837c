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

// datagram publishes a message, or drops it and counts that.
func (e *Endpoint) datagram(p *peer, payload []byte, op *sendOp) (err error) {
	n, l, self := len(payload), p.out, p.addr == e.addr
	switch {
	case op.flags&strong != 0:
		return ErrNotSupported
	case n > MaxDatagram, n > MaxInline && e.pool.chunks == 0:
		return ErrTooLong
	case self:
	case p.group != nil:
		_, err = e.sendGroup(p.group, payload, op)
		return err
	case l == nil:
		if l, err = e.attach(p); err != nil {
			return err
		}
	case !l.offers(n):
		if e.poll(); l.err != nil {
			return l.err
		}
	}
	if e.tx != nil {
		if err := e.tx.Begin(op.flags); err != nil {
			return err
		}
	}
	switch {
	case self && e.self+charge(n) <= uint64(e.opt.Window):
		e.putSelf(p, payload, op)
		e.flush()
		return nil
	case !self && l.offers(n):
		l.offer(payload, op)
	default:
		e.stats.Dropped++
	}
	e.completeSend(op)
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
	s, pass := &l.slots[l.sent&l.mask], &l.passes[l.sent&l.mask]
	*pass = passage{}
	head := op.head(s)
	if op.flags&cq.FlagMulticast != 0 {
		s.More[2].Store(l.missed)
		l.missed = 0
	}
	l.bytes += charge(len(payload))
	l.publish(s, head|kind.FabricMessage|l.fill(s, pass, payload), 0, len(payload))
}
