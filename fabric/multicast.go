package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// A message to a group goes to each member by the lane to it, as a message of its own. Where all
// wait for room the sends of these are parts of one operation, which ends with the last of them.

// multicast is an operation whose parts are sends to members.
type multicast struct {
	sendOp
	parts int // that have not ended
	num   cq.Errno
}

// sendGroup is a send to a group, which is nil if the endpoint has left that.
func (e *Endpoint) sendGroup(g *Group, payload []byte, op *sendOp) (wait bool, err error) {
	op.flags |= cq.FlagMulticast
	switch {
	case g == nil || !g.joined:
		return false, ErrNoPeer
	case g.opt.Access&cq.FlagSend == 0:
		return false, ErrNotSupported
	case g.opt.Misses:
		if err = e.allowedDatagram(op); err != nil {
			return false, err
		}
	}
	room := func(l *outLane) bool {
		if g.opt.Misses {
			return l.offers(len(payload))
		}
		return l.takes(op)
	}
	ready, err := g.ready(room)
	if err == nil && !ready {
		e.poll()
		ready, err = g.ready(room)
	}
	switch {
	case err != nil:
		return err == cq.ErrFull, err
	case !ready && !g.opt.Misses:
		return true, cq.ErrFull
	}
	if err = e.promise(op); err != nil {
		return false, err
	}
	if g.opt.Misses {
		g.offer(payload, op)
	} else {
		g.put(payload, op)
	}
	return false, nil
}

// ready reports whether all members have room.
func (g *Group) ready(room func(l *outLane) bool) (bool, error) {
	if err := g.look(); err != nil {
		return false, err
	}
	for _, p := range g.members {
		if p.out.err == nil && !room(p.out) {
			return false, nil
		}
	}
	return true, nil
}

// offer publishes a message to each member that has room, and completes.
func (g *Group) offer(payload []byte, op *sendOp) {
	for _, p := range g.members {
		switch l := p.out; {
		case l.err != nil:
		case l.offers(len(payload)):
			l.offer(payload, op)
		default:
			l.missed++
			g.e.stats.Dropped++
		}
	}
	g.e.report(op, 0)
}

// put sends a message to each member. All have room.
func (g *Group) put(payload []byte, op *sendOp) {
	e := g.e
	id := len(e.multicasts)
	if free := len(e.freeMulticasts); free > 0 {
		id = e.freeMulticasts[free-1]
		e.freeMulticasts = e.freeMulticasts[:free-1]
	} else {
		e.multicasts = append(e.multicasts, multicast{})
	}
	e.multicasts[id] = multicast{sendOp: *op, parts: 1}
	for _, p := range g.members {
		l := p.out
		if l.err != nil {
			continue
		}
		e.multicasts[id].parts++
		part := *op
		part.context = uint64(id)
		l.begin(payload, &part)
	}
	e.endPart(&sendOp{context: uint64(id)}, 0)
}

// endPart ends a send to a member, and with the last of them the operation. A member that has gone
// is none any more.
func (e *Endpoint) endPart(part *sendOp, num cq.Errno) {
	m := &e.multicasts[part.context]
	if num != 0 && num != number(ErrPeerDied) && num != number(ErrPeerClosed) {
		m.num = num
	}
	if m.parts--; m.parts > 0 {
		return
	}
	op, num := m.sendOp, m.num
	e.freeMulticasts = append(e.freeMulticasts, int(part.context))
	e.report(&op, num)
}

// missed takes notice of what was missed before a message that has its receive now.
func (e *Endpoint) missed(m *arrival) {
	now := reached{peer: m.peer, n: m.missed}
	m.missed = 0
	for i := range e.remote.untold {
		if r := &e.remote.untold[i]; r.what == 0 && r.peer == now.peer {
			r.n += now.n
			return
		}
	}
	e.reached(now)
}

// grouped says of a message that it is for a group, and what its receiver has missed before it.
func (l *inLane) grouped(m *arrival, s *kind.FabricSlot) {
	m.flags |= cq.FlagMulticast
	m.missed = s.More[2].Load()
	l.p.e.stats.Missed += m.missed
}
