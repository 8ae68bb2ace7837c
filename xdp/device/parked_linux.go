package device

import (
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/cq"
)

// parked is what waits for hardware addresses, of one application. It is kept by destination:
// nothing overtakes what waits for the same one, and looking whether something does costs the same
// however much waits. The zero value is empty.
type parked struct {
	ways    map[netip.Addr]*parkedWay
	turn    []*parkedWay // all of ways
	at      int          // in turn: who is tried next
	round   int          // of turn: how many were tried since the last pause
	count   int          // sends
	retryAt int64
}

type parkedWay struct {
	to    netip.Addr
	place int // in turn
	sends []parkedSend
}

type parkedSend struct {
	e     cq.Entry
	until int64
}

// holds reports whether a send to this destination waits.
func (p *parked) holds(to netip.Addr) bool { return p.ways[to] != nil }

func (p *parked) add(e *cq.Entry, until int64) {
	to := targetOf(e).to.Addr()
	w := p.ways[to]
	if w == nil {
		if p.ways == nil {
			p.ways = map[netip.Addr]*parkedWay{}
		}
		w = &parkedWay{to: to, place: len(p.turn)}
		p.ways[to] = w
		p.turn = append(p.turn, w)
	}
	w.sends = append(w.sends, parkedSend{*e, until})
	p.count++
}

// pop removes the first send of a destination.
func (p *parked) pop(w *parkedWay) {
	p.count--
	if w.sends = w.sends[1:]; len(w.sends) > 0 {
		return
	}
	last := len(p.turn) - 1
	p.turn[w.place] = p.turn[last]
	p.turn[w.place].place = w.place
	p.turn[last] = nil
	p.turn = p.turn[:last]
	delete(p.ways, w.to)
}

// pausePerWayNs spaces tries out where many destinations wait, so that an application that waits
// for thousands of them is not what the server is busy with.
const pausePerWayNs = 10e3

// retry tries again what waits for a hardware address, in order for each destination, and no more
// of it than commands are taken in one turn.
func (a *app) retry(en *engine) {
	p := &a.parked
	if p.count == 0 || en.now < p.retryAt {
		return
	}
	for range en.s.c.TxBatch {
		if p.round >= len(p.turn) {
			p.round, p.retryAt = 0, en.now+max(1e6, pausePerWayNs*int64(len(p.turn)))
			return
		}
		p.at %= len(p.turn)
		w := p.turn[p.at]
		first := &w.sends[0]
		why, state := a.send(en, &first.e)
		switch {
		case state == sendWaits: // for a frame, as any other would
			p.retryAt = en.now + 1e6
			return
		case state == sendParked && en.now < first.until:
			p.at++
			p.round++
			continue
		case state == sendParked:
			why, state = cq.Errno(syscall.EHOSTUNREACH), sendFailed
		}
		if state == sendFailed {
			// Also of a send that failed before it asked again: nobody may be left who waits for the
			// answer. Those who are ask anew.
			a.account.ways.giveUp(w.to)
			a.underWay--
			a.fail(&first.e, why)
		}
		a.worked++
		p.pop(w)
	}
}

// forsake ends the wait for destinations, of an application that is gone.
func (a *app) forsake() {
	for to := range a.parked.ways {
		a.account.ways.giveUp(to)
	}
	a.parked = parked{}
}
