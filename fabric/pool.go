package fabric

import (
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// pool is the endpoint's memory for payload that fits no slot. A chunk belongs to the slot that
// names it: it is free again when the receiver has examined that, since it has copied the payload
// then, to a buffer or to its store. So no receiver holds a chunk beyond its lane, and none can
// return what it has not, or twice.
type pool struct {
	kind.FabricPool
	free []uint32
}

func (p *pool) open(box *shm.Object, o kind.Outbox) (err error) {
	p.FabricPool, err = kind.OutboxPool(box, o)
	for i := p.Chunks; i > 0; i-- {
		p.free = append(p.free, uint32(i-1))
	}
	return err
}

// hasChunk reports whether a lane can have one more chunk: no peer that stands can keep them all.
func (l *outLane) hasChunk() bool {
	e := l.p.e
	if l.chunks >= (e.pool.Chunks+1)/2 {
		return false
	}
	if len(e.pool.free) == 0 {
		e.findChunks()
	}
	return len(e.pool.free) > 0
}

// findChunks takes those back that peers had when they were cut off, and that have died since.
func (e *Endpoint) findChunks() {
	for _, l := range e.out {
		if l != nil && len(l.lost) > 0 && l.p.dead.Load() {
			e.pool.free = append(e.pool.free, l.lost...)
			l.lost = nil
			l.p.bury()
		}
	}
}

// fits reports whether payload fits a slot, or a chunk that the lane can have.
func (l *outLane) fits(n int) bool {
	return n <= MaxInline || n <= l.p.e.pool.Bytes && l.hasChunk()
}

// next returns how many of n bytes the next segment has. Fewer than none: a chunk of this lane
// comes back and has more room than a slot. If it has none, it goes by slots, whatever others do.
func (l *outLane) next(n int) int {
	switch {
	case n <= MaxInline:
		return n
	case l.hasChunk():
		return min(n, l.p.e.pool.Bytes)
	case l.chunks > 0:
		return -1
	}
	return MaxInline
}

// fill copies payload to where it fits, and returns what the slot says of that.
func (l *outLane) fill(s *kind.FabricSlot, pass *passage, payload []byte) (flag uint64) {
	if len(payload) <= MaxInline {
		copy(s.Payload[:], payload)
		return 0
	}
	p := &l.p.e.pool
	c := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	l.chunks++
	pass.chunk = c + 1
	mem, _ := p.Chunk(uint64(c), len(payload))
	copy(mem, payload)
	s.More[1].Store(uint64(c))
	return kind.FabricInChunk
}

// giveBack frees the chunk of a slot that was examined, or whose receiver is proved dead.
func (l *outLane) giveBack(pass *passage) {
	if pass.chunk > 0 {
		l.p.e.pool.free = append(l.p.e.pool.free, pass.chunk-1)
		pass.chunk = 0
		l.chunks--
	}
}

// payload finds the bytes of a slot. It is false if there cannot be any.
func (l *inLane) payload(s *kind.FabricSlot, head uint64) (mem []byte, ok bool) {
	n := head >> 32
	if head&kind.FabricInChunk != 0 {
		return l.pool.Chunk(s.More[1].Load(), int(n))
	}
	if n > MaxInline {
		return nil, false
	}
	return s.Payload[:n], true
}
