package device

import (
	"fmt"
	"math"
	"os"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp"
)

// pool says of each frame of an application's UMEM whether the application has it. It is private
// to the server and used by one goroutine. free + loaned is the number of frames at all times. Of
// an application that reads frames in place it only counts: those are the socket's to tell apart.
type pool struct {
	limit      int // how many it may have
	out        int // and has
	loaned     []bool
	generation []uint32 // of the last hand-out; a return has to name it
	free       []uint32 // a stack: what was used last is still in the cache
	stale      uint64   // returns refused: twice, of an old generation, or of no frame
	returned   uint64
}

func newPool(frames int) *pool {
	p := &pool{limit: frames, loaned: make([]bool, frames), generation: make([]uint32, frames)}
	for i := range frames {
		p.free = append(p.free, uint32(frames-1-i))
	}
	return p
}

// loan hands a frame out under a generation.
func (p *pool) loan(generation uint32) (frame uint32, ok bool) {
	n := len(p.free) - 1
	if n < 0 {
		return 0, false
	}
	frame, p.free = p.free[n], p.free[:n]
	p.loaned[frame], p.generation[frame] = true, generation
	p.out++
	return frame, true
}

// giveBack takes a frame back if it was handed out under this generation. Both numbers are the
// application's: wrong ones are counted and change nothing.
func (p *pool) giveBack(frame uint64, generation uint64) bool {
	if frame >= uint64(len(p.loaned)) || !p.loaned[frame] ||
		uint64(p.generation[frame]) != generation {
		return p.took(false)
	}
	p.loaned[frame] = false
	p.free = append(p.free, uint32(frame))
	return p.took(true)
}

// took counts a return.
func (p *pool) took(right bool) bool {
	if !right {
		p.stale++
		return false
	}
	p.out--
	p.returned++
	return true
}

// What differs for the one trusted application that reads frames where the kernel put them: whose
// memory it reads, and that the socket's own table says which frames it has.

// lentFrame stands for the frame of a packet that was lent, and is not to be dropped.
const lentFrame = math.MaxUint32

func lent(r xdp.Received) bool { return r.Frame == lentFrame }

// lendable is how many frames may be lent in place. The kernel needs the others: all applications
// receive into them, and send from them.
func (s *Server) lendable() int { return int(s.engine.queues[0].umem.Geometry().Frames) / 2 }

// admitReader makes an application the one that reads in place.
func (s *Server) admitReader(a *app) error {
	most := s.lendable()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.peer.UID != os.Geteuid():
		return fmt.Errorf("%w: only the server's own user may read in place", ErrRefused)
	case len(s.engine.queues) != 1:
		return fmt.Errorf("%w: a server with one queue lends in place", ErrRefused)
	case a.pool.limit > most:
		return fmt.Errorf("%w: %d frames are lent in place", ErrBudget, most)
	case s.reader != nil:
		return fmt.Errorf("%w: another process reads in place", ErrBudget)
	}
	s.reader, a.inPlace, a.umem = a, true, s.engine.queues[0].umem
	return nil
}

// forgetReader makes room for the next one. Frames are not lent any more.
func (s *Server) forgetReader(a *app) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == a {
		s.reader = nil
	}
}

// lend hands a received frame out, and returns where its chunk begins and how far behind that the
// packet does.
func (a *app) lend(r *xdp.Received, generation uint32) (chunk, start uint64) {
	a.queue.sock.Loan(generation, *r)
	r.Frame = lentFrame
	a.pool.out++
	chunk = a.geo.Chunk(r.Off)
	return chunk, r.Off - chunk
}

// takeBack ends the loan that a command names. What it says is the application's word: what names
// no loan is counted and changes nothing.
func (a *app) takeBack(e *cq.Entry) {
	mine := e.Buf.Region() == a.umem.Region().ID()
	if a.inPlace {
		a.pool.took(mine && e.Data <= math.MaxUint32 &&
			a.queue.sock.Return(xdp.Returned{Off: e.Buf.Offset(), Generation: uint32(e.Data)}) == 1)
		return
	}
	frame := uint64(1 << 32) // none
	if mine {
		frame = e.Buf.Offset() / uint64(a.geo.ChunkBytes)
	}
	a.pool.giveBack(frame, e.Data)
}

// reclaim takes all frames back that an application has in place, which is gone. Generations wrap:
// that before each quarter of them takes the oldest too.
func (a *app) reclaim() {
	if !a.inPlace {
		return
	}
	for quarter := range uint32(4) {
		a.queue.sock.Reclaim(quarter << 30)
	}
}
