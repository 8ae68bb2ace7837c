package kind

import (
	"fmt"
	"math"
)

// Level says where a lane stands. Indices count entries since the queue was made:
// Head <= Peeked <= Tail, and Tail - Head is at most the capacity.
type Level struct {
	Head      uint64 // first entry that was not given back to the writer
	Peeked    uint64 // first entry that was not handed to the application
	Tail      uint64 // next entry that will be published
	HighWater uint64 // most entries that were ever waiting, as far as the reader noticed
	Read      uint64 // entries handed to the application for good
}

// Depth returns how many entries occupy room.
func (l Level) Depth() uint64 { return l.Tail - l.Head }

// Unreleased returns how many of them the application has and did not give back.
func (l Level) Unreleased() uint64 { return l.Peeked - l.Head }

// Add sums up, but for the high-water mark, which is the highest one.
func (l *Level) Add(m Level) {
	l.Head += m.Head
	l.Peeked += m.Peeked
	l.Tail += m.Tail
	l.Read += m.Read
	l.HighWater = max(l.HighWater, m.HighWater)
}

// LevelTries bounds the wait for indices that stand still: a busy lane's never do.
const LevelTries = 64

// ReadLevel reads the indices of a lane that may be in use. Indices that moved all the time are
// set to what they were, or must have been, at the moment when head was loaded.
func ReadLevel(r *RowWords, words *LaneWords, capacity uint64, name string) (Level, error) {
	var l Level
	still := false
	for range LevelTries {
		l.Head, l.Peeked, l.Tail = r.Head.Load(), r.Peeked.Load(), words.Tail.Load()
		if still = r.Head.Load() == l.Head && words.Tail.Load() == l.Tail; still {
			break
		}
	}
	if l.Depth() > capacity {
		if still || l.Depth() > math.MaxInt64 {
			return Level{}, Refuse("inspect", name, "distance of tail from head", l.Depth(),
				fmt.Sprintf("at most %d", capacity), ErrCorrupt)
		}
		l.Tail = l.Head + capacity
	}
	switch out := int64(l.Peeked - l.Head); {
	case out < 0: // reading without Peek leaves it behind
		l.Peeked = l.Head
	case uint64(out) > l.Depth():
		l.Peeked = l.Tail
	}
	l.HighWater = max(min(r.HighWater.Load(), capacity), l.Depth())
	l.Read = l.Head // every row begins at 0
	return l, nil
}

// Traffic is what the writers of a lane count.
type Traffic struct {
	Publishes       uint64 // batches
	Wakes           uint64 // batches that made system calls to wake the reader
	WakesSuppressed uint64 // batches that needed none
	Refused         uint64 // posts for which there was no room
}

// Add sums up.
func (t *Traffic) Add(u Traffic) {
	t.Publishes += u.Publishes
	t.Wakes += u.Wakes
	t.WakesSuppressed += u.WakesSuppressed
	t.Refused += u.Refused
}

// Traffic reads what the lane's writers counted. A batch is counted before its wake, and the wakes
// are loaded first, so that there are never more of them; a writer can store what it likes.
func (w *LaneWords) Traffic() Traffic {
	wakes, publishes := w.Wakes.Load(), w.Publishes.Load()
	wakes = min(wakes, publishes)
	return Traffic{Publishes: publishes, Wakes: wakes, WakesSuppressed: publishes - wakes,
		Refused: w.Refused.Load()}
}
