package device

import "github.com/shmring/shmring/internal/drive"

// pool says of each frame of an application's UMEM whether the application has it. It is private
// to the server and used by one goroutine. free + loaned is the number of frames at all times. Of
// an application that reads frames in place it only counts: those are the socket's to tell apart.
type pool struct {
	limit      int // how many it may have
	out        int // and has
	loaned     []bool
	generation []uint32 // of the last hand-out; a return has to name it
	free       drive.Free
	stale      uint64 // returns refused: twice, of an old generation, or of no frame
	returned   uint64
}

func newPool(frames int) *pool {
	return &pool{limit: frames, loaned: make([]bool, frames), generation: make([]uint32, frames),
		free: drive.NewFree(frames)}
}

// loan hands a frame out under a generation.
func (p *pool) loan(generation uint32) (frame uint32, ok bool) {
	if frame, ok = p.free.Take(); ok {
		p.loaned[frame], p.generation[frame] = true, generation
		p.out++
	}
	return frame, ok
}

// giveBack takes a frame back if it was handed out under this generation. Both numbers are the
// application's: wrong ones are counted and change nothing.
func (p *pool) giveBack(frame uint64, generation uint64) bool {
	if frame >= uint64(len(p.loaned)) || !p.loaned[frame] ||
		uint64(p.generation[frame]) != generation {
		return p.took(false)
	}
	p.loaned[frame] = false
	p.free.Give(uint32(frame))
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
