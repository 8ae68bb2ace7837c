package fabric

import (
	"slices"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/fetch"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// pool is the endpoint's memory for payload that fits no slot. Its first part are chunks: one
// belongs to the slot that names it, and is free again when the receiver has examined that, since
// it has copied the payload then, to a buffer or to its store. The rest are pieces, which the user
// allocates, and which peers read in place. Who has what is private: peers know offsets.
type pool struct {
	kind.FabricPool
	chunks int
	// free are the chunks that nobody has. The one that was read longest ago is filled first: stores
	// wait for lines that another processor still has.
	free   []uint32
	pieces []*piece // all there are, in their order
}

// piece is some of the pool. It is free if nobody holds it and nothing refers to it.
type piece struct {
	at, n int
	held  bool // the user has it
	refs  int  // sends under way, and those that ended since their peer was cut off
}

func (p *piece) free() bool { return !p.held && p.refs == 0 }

func (p *pool) open(box *shm.Object, o kind.Outbox, chunks int) (err error) {
	p.FabricPool, err = kind.OutboxPool(box, o)
	p.free = make([]uint32, chunks)
	for i := range p.free {
		p.free[i] = uint32(i)
	}
	p.chunks = chunks
	if at := chunks * chunkBytes; at < len(p.FabricPool) {
		p.pieces = []*piece{{at: at, n: len(p.FabricPool) - at}}
	}
	return err
}

// pieceBytes is what the lengths of pieces are multiples of.
const pieceBytes = 4096

// alloc takes the first free piece that is long enough, and leaves the rest of it free. It is nil
// if there is none.
func (p *pool) alloc(n int) *piece {
	n = (n + pieceBytes - 1) &^ (pieceBytes - 1)
	for i, x := range p.pieces {
		if !x.free() || x.n < n {
			continue
		}
		if x.n > n {
			p.pieces = slices.Insert(p.pieces, i+1, &piece{at: x.at + n, n: x.n - n})
			x.n = n
		}
		x.held = true
		return x
	}
	return nil
}

// find returns the place of the piece that has a byte of the pool, or of the one before it.
func (p *pool) find(at int) int {
	i, ok := slices.BinarySearchFunc(p.pieces, at, func(x *piece, at int) int { return x.at - at })
	if !ok {
		i--
	}
	return i
}

// settle joins a piece to its neighbours if it is free.
func (p *pool) settle(x *piece) {
	if !x.free() {
		return
	}
	i := p.find(x.at)
	if i+1 < len(p.pieces) && p.pieces[i+1].free() {
		x.n += p.pieces[i+1].n
		p.pieces = slices.Delete(p.pieces, i+1, i+2)
	}
	if i > 0 && p.pieces[i-1].free() {
		p.pieces[i-1].n += x.n
		p.pieces = slices.Delete(p.pieces, i, i+1)
	}
}

// holds returns the piece that the user holds and payload lies in, and where; nil if there is none,
// or payload may change as soon as the call returns.
func (p *pool) holds(payload []byte, op *sendOp) (x *piece, offset uint64) {
	if len(p.pieces) == 0 || op.copied() {
		return nil, 0
	}
	at, ok := kind.Within(p.FabricPool, payload)
	if !ok || at < p.pieces[0].at {
		return nil, 0
	}
	x = p.pieces[p.find(at)]
	if !x.held && x != op.piece || at+len(payload) > x.at+x.n {
		return nil, 0
	}
	return x, uint64(at)
}

// hold has a send hold a piece until it ends, if it does not yet.
func (o *sendOp) hold(x *piece) {
	if o.piece == nil {
		x.refs++
		o.piece = x
	}
}

// release ends what a send that has ended holds.
func (p *pool) release(o *sendOp) {
	if x := o.piece; x != nil {
		o.piece = nil
		x.refs--
		p.settle(x)
	}
}

// count says what pieces are.
func (p *pool) count() (free, held, lent uint64) {
	for _, x := range p.pieces {
		switch {
		case x.refs > 0:
			lent += uint64(x.n)
		case x.held:
			held += uint64(x.n)
		default:
			free += uint64(x.n)
		}
	}
	return free, held, lent
}

// hasChunk reports whether a lane can have one more chunk. It has no more than are left, so a peer
// that is stopped keeps half of what it finds at most, and the next one finds the rest.
func (l *outLane) hasChunk() bool { return l.chunks < len(l.p.e.pool.free) }

// fits reports whether payload fits a slot, or a chunk that the lane can have.
func (l *outLane) fits(n int) bool {
	return n <= MaxInline || n <= chunkBytes && l.hasChunk()
}

// next returns how many of n bytes the next segment has. Fewer than none: a chunk of this lane
// comes back and has more room than a slot. If it has none, it goes by slots, whatever others do.
func (l *outLane) next(n int) int {
	switch {
	case n <= MaxInline:
		return n
	case l.hasChunk():
		return min(n, chunkBytes)
	case l.chunks > 0:
		return -1
	}
	return MaxInline
}

// fill copies payload to where it fits, and returns what the slot says of that.
func (l *outLane) fill(s *kind.FabricSlot, pass *passage, payload []byte) (flag uint64) {
	if len(payload) > MaxInline {
		return l.fillChunk(s, pass, payload)
	}
	copy(s.Payload[:], payload)
	return 0
}

// fillChunk is apart, so that fill is inlined.
func (l *outLane) fillChunk(s *kind.FabricSlot, pass *passage, payload []byte) (flag uint64) {
	p := &l.p.e.pool
	c := p.free[0]
	p.free = slices.Delete(p.free, 0, 1) // a few bytes, beside those of a chunk
	l.chunks++
	pass.chunk = c + 1
	at := uint64(c) * chunkBytes
	fetch.Copy(p.FabricPool[at:], payload)
	crash.At(crash.FabricChunkFilled)
	s.More[1].Store(at)
	return kind.FabricInPool
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
	if head&kind.FabricInPool != 0 {
		return l.pool.At(s.More[1].Load(), int(n))
	}
	if n > MaxInline {
		return nil, false
	}
	return s.Payload[:n], true
}
