package device

// pool says of each frame of an application's UMEM whether the application has it. It is private
// to the server and used by one goroutine. free + loaned is the number of frames at all times. Of
// an application that reads frames in place it only counts: those are the socket's to tell apart.
type pool struct {
	limit      int // how many it may have
	out        int // and has
	loaned     []bool
	generation []uint32 // of the last hand-out; a return has to name it
	free       []uint32 // a stack: the frame used last is the one that is still in the cache
	stale      uint64   // returns refused: twice, of an old generation, or of no frame
	returned   uint64
}

func newPool(frames int) *pool {
	p := &pool{limit: frames, loaned: make([]bool, frames), generation: make([]uint32, frames),
		free: make([]uint32, 0, frames)}
	for i := frames; i > 0; i-- {
		p.free = append(p.free, uint32(i-1))
	}
	return p
}

// loan hands a frame out under a generation.
func (p *pool) loan(generation uint32) (frame uint32, ok bool) {
	n := len(p.free)
	if n == 0 {
		return 0, false
	}
	frame = p.free[n-1]
	p.free = p.free[:n-1]
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
