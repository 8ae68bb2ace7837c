package fabric

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// sendSelf is a send to this endpoint. The receive has reserved its completion when it was posted.
func (e *Endpoint) sendSelf(p *peer, payload []byte, op *sendOp) (wait bool, err error) {
	waits := len(e.later) > 0 || op.flags&cq.FlagFence != 0 || e.owing == kind.FabricMostOps
	if waits && !e.takesLater(e.later, op) { // it may find no receive
		return true, cq.ErrFull
	}
	if e.tx != nil {
		if err := e.tx.Begin(op.flags); err != nil {
			return false, err
		}
	}
	if waits {
		e.later.add(e, payload, op)
	} else {
		e.putSelf(p, payload, op)
	}
	e.flush()
	return false, nil
}

func (e *Endpoint) putSelf(p *peer, payload []byte, op *sendOp) {
	e.stats.Sent++
	e.self += charge(len(payload))
	m := arrival{peer: p, n: len(payload), here: payload, flags: op.kind() &^ cq.FlagSend,
		meta: op.marks(), self: *op}
	if op.flags&cq.FlagTagged != 0 {
		m.tag = op.tag
	}
	if op.flags&cq.FlagRemoteCQData != 0 {
		m.flags, m.data = m.flags|cq.FlagRemoteCQData, op.data
	}
	if x, _ := e.pool.holds(payload, op); x != nil {
		op.hold(x)
		m.self.piece = x
	}
	if e.arrive(&m); !m.held {
		e.completeSend(op)
	}
}
