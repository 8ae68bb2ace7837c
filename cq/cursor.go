package cq

import "github.com/shmring/shmring/internal/crash"

// laneBudget is how many entries one lane gives before the next one, in one read or in many small
// ones, so that a busy writer starves nobody. Order is kept per lane.
const laneBudget = 64

// coolAfter is how many reads in a row may find several lanes empty before all of them are parked:
// a system call for as many reads, so that polling costs what the lanes in use cost.
const coolAfter = 1024

// cursor is the lane that the next read begins with, and what it gave of its budget.
type cursor struct{ bit, given int }

// round goes once over the lanes that may have something: from the cursor to the last, then from
// the first to the cursor.
type round struct {
	q     *core
	bit   int // the lane after the last one returned
	start int // -1 when the first half is over
	end   int
}

// takeMarks makes candidates of the lanes whose writers marked them.
func (q *core) takeMarks() {
	q.bell.Take()
	crash.At(crash.TakeMarks)
	q.bell.Heat()
}

func (q *core) newRound() round {
	return round{q: q, bit: q.cursor.bit, start: q.cursor.bit, end: len(q.lanes)}
}

// next returns the next lane, or -1 at the end.
func (r *round) next() int {
	bit := r.q.bell.Next(r.bit)
	if (bit < 0 || bit >= r.end) && r.start >= 0 {
		r.end, r.start = r.start, -1
		bit = r.q.bell.Next(0)
	}
	if bit < 0 || bit >= r.end {
		r.bit = r.end
		return -1
	}
	r.bit = bit + 1
	return bit
}

// budget returns how much a lane may give now, which is not nothing.
func (q *core) budget(bit int) int {
	if bit != q.cursor.bit {
		return laneBudget
	}
	return max(1, laneBudget-q.cursor.given)
}

// gave moves the cursor after a lane gave n entries.
func (q *core) gave(bit, n int) {
	if bit != q.cursor.bit {
		q.cursor = cursor{bit: bit}
	}
	if q.cursor.given += n; q.cursor.given >= laneBudget {
		q.cursor = cursor{bit: (bit + 1) % len(q.lanes)}
	}
}

// cool parks all lanes now and then: a reader that only polls would look at every lane that was
// ever hot for ever.
func (q *core) cool() error {
	if q.idle++; q.idle < coolAfter {
		return nil
	}
	q.idle = 0
	if _, err := q.bell.Park(); err != nil {
		return err
	}
	if q.sliced.Load() { // nobody tells of a writer that died before it could mark its lane
		return q.findLanes(false)
	}
	return nil
}
