package cq

import (
	"slices"
	"time"
)

// askAgainMost is the longest time between two tries to open lanes.
const askAgainMost = time.Second

// askAgain has a lane marked again that could not be opened for want of descriptors or memory. The
// mark of its writer is taken, and there may never be another one. It reports whether this is news:
// no other lane waits for that. It runs under breaks, in a call of the queue's user.
func (q *Queue) askAgain(bit int) (news bool) {
	if slices.Contains(q.starved, bit) {
		return false
	}
	q.starved = append(q.starved, bit)
	if !q.asking {
		q.asking = true
		q.ticker.Go(q.ask)
	}
	return len(q.starved) == 1
}

// ask marks them, less often the longer it takes, until none is left. The queue's memory stays
// until it returns.
func (q *Queue) ask() {
	for pause := acceptAgain; ; pause = min(2*pause, askAgainMost) {
		select {
		case <-q.gone:
			return
		case <-time.After(pause):
		}
		q.breaks.Lock()
		bits := q.starved
		q.starved = nil
		q.asking = len(bits) > 0
		q.breaks.Unlock()
		if len(bits) == 0 {
			return
		}
		for _, bit := range bits {
			q.bell.Mark(bit)
		}
	}
}
