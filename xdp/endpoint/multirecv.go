package endpoint

import "github.com/shmring/shmring/cq"

// placeMulti puts a payload behind those that a multi-receive buffer holds, and releases the buffer
// when too little is left of it. It reports false if there is no room to report that.
func (e *Endpoint) placeMulti(b *buffer, payload []byte, p *span) bool {
	left := b.room - b.used
	if len(payload) > left && b.used > 0 {
		e.release(b)
		if e.buffers.n == 0 {
			return false
		}
		return e.placeNext(payload, p)
	}
	last := left-len(payload) < e.cfg.MinMultiRecv
	alone := e.cfg.MultiRecv == ReleaseAlone
	together := last && !alone // one entry is both, and room for that was reserved
	if !together && e.staged.room <= 0 {
		return false
	}
	c, known := e.completion(b, payload, p)
	if together {
		c.Flags |= cq.FlagMultiRecv
	}
	n := copy(b.buf[b.used:], payload)
	switch {
	case n < len(payload):
		e.truncated(b, &c, n, len(payload)-n)
	case !known:
		e.stageUnknown(&c, b.flags)
	default:
		e.stage(&c, b.flags, together)
	}
	if !together && (n < len(payload) || !known) {
		e.staged.room = e.freeRoom()
	}
	b.used += n
	switch {
	case together:
		e.buffers.pop()
	case last:
		e.release(b)
	}
	return true
}

// placeNext goes on with the buffer behind one that was too full.
func (e *Endpoint) placeNext(payload []byte, p *span) bool {
	b := e.buffers.at(0)
	if b.flags&cq.FlagMultiRecv != 0 {
		return e.placeMulti(b, payload, p)
	}
	return e.placeSingle(b, payload, p)
}

// release gives the oldest buffer back by an entry of its own, for which room was reserved.
func (e *Endpoint) release(b *buffer) {
	e.stageEntry(&cq.Entry{Context: b.context, Flags: cq.FlagMultiRecv, Buf: b.base}, true)
	e.buffers.pop()
}
