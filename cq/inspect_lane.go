package cq

import (
	"errors"
	"fmt"
	"math"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// lane looks at one lane. A fault in it costs this lane only.
func (i *Inspector) lane(row int, f foundLane, r *rowWords) LaneSnapshot {
	l := LaneSnapshot{Row: row, Own: row == 0}
	err := f.err
	if err == nil {
		fault := shm.Guard(func() { err = i.readLane(&l, f.obj, r) })
		err = errors.Join(fault, err)
	}
	if err != nil {
		return LaneSnapshot{Row: row, Own: row == 0, Err: err}
	}
	return l
}

func (i *Inspector) readLane(l *LaneSnapshot, obj *shm.Object, r *rowWords) (err error) {
	mem, err := sectionOf(obj, sectLane, uint32(l.Row), laneBytes)
	if err != nil {
		return err
	}
	if l.Life, err = obj.Life(); err != nil {
		return err
	}
	words := overlay[laneWords](mem)
	if l.Level, err = readLevel(r, words, uint64(i.opt.Size), obj.Name()); err != nil {
		return err
	}
	l.Writer, l.Generation = obj.Owner(), obj.Generation()
	l.Traffic = words.traffic()
	bell := r.bell.Parked.Load()
	l.Parked, l.Poisoned = bell&doorbell.Parked != 0, bell&rowPoisoned != 0
	l.Overrun = words.overrun.Load() != 0
	l.ReaderPays = words.order.Load() == orderRelease
	l.SizeBytes = obj.Header().TotalBytes
	return nil
}

// traffic reads what the lane's writers counted. A batch is counted before its wake, and the wakes
// are loaded first, so that there are never more of them; a writer can store what it likes.
func (w *laneWords) traffic() Traffic {
	wakes, publishes := w.wakes.Load(), w.publishes.Load()
	wakes = min(wakes, publishes)
	return Traffic{Publishes: publishes, Wakes: wakes, WakesSuppressed: publishes - wakes,
		Refused: w.refused.Load()}
}

// levelTries bounds the wait for indices that stand still: a busy lane's never do.
const levelTries = 64

// readLevel reads the indices of a lane that may be in use. Indices that moved all the time are
// set to what they were, or must have been, at the moment when head was loaded.
func readLevel(r *rowWords, words *laneWords, capacity uint64, name string) (Level, error) {
	var l Level
	still := false
	for range levelTries {
		l.Head, l.Peeked, l.Tail = r.head.Load(), r.peeked.Load(), words.tail.Load()
		if still = r.head.Load() == l.Head && words.tail.Load() == l.Tail; still {
			break
		}
	}
	if l.Depth() > capacity {
		if still || l.Depth() > math.MaxInt64 {
			return Level{}, refuse("inspect", name, "distance of tail from head", l.Depth(),
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
	l.HighWater = max(min(r.highWater.Load(), capacity), l.Depth())
	l.Read = l.Head // every row begins at 0
	return l, nil
}

// sectionOf returns a section that is large enough for what will be laid over it.
func sectionOf(obj *shm.Object, k shm.SectionKind, id uint32, needBytes int) ([]byte, error) {
	mem, _, err := obj.Section(k, id)
	if err != nil {
		return nil, err
	}
	if len(mem) < needBytes {
		return nil, refuse("inspect", obj.Name(), "section length", len(mem), needBytes, ErrCorrupt)
	}
	return mem, nil
}
