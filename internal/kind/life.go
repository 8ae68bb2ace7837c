package kind

import (
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// Closed reports whether an address vector, or the reader's object of a queue, was destroyed by its
// owner.
func Closed(obj *shm.Object) (bool, error) {
	if obj.Header().Kind == shm.KindAddresses {
		words, err := WordsOf[AddrWords](obj, SectAddrWords, 0)
		return err == nil && words.State.Load() == StateClosed, err
	}
	words, err := WordsOf[QueueWords](obj, SectQueue, 0)
	return err == nil && words.State.Load() == StateClosed, err
}

// RefuseClosed is an error that matches [ErrClosed] if an object is [Closed].
func RefuseClosed(op, name string, obj *shm.Object) error {
	closed, err := Closed(obj)
	if closed {
		err = &shm.Error{Pkg: Pkg, Op: op, Name: name, Err: ErrClosed,
			Hint: "its owner destroyed it; create it again"}
	}
	return err
}

// InitReader writes what must be in a reader's object before anybody can see it: every row is born
// parked, with wake index 0, so that the first publish in it rings.
func InitReader(obj *shm.Object) error {
	rows, err := RowsOf(obj, 1)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Bell.Parked.Store(doorbell.Parked)
	}
	words, err := WordsOf[QueueWords](obj, SectQueue, 0)
	if err != nil {
		return err
	}
	words.State.Store(StateOpen)
	return nil
}

// Condemn tells those who come that the queue is closed, and writers at their next post. words is
// nil if they could not be mapped.
func Condemn(words *QueueWords, rows []RowWords) {
	if words != nil {
		words.State.Store(StateClosed)
	}
	for i := range rows {
		rows[i].Bell.Parked.Store(RowClosed | doorbell.Parked)
	}
}

// InitLane starts a new lane where its row stands, which is 0 unless an earlier lane of this row
// was removed.
func InitLane(obj *shm.Object, row int, r *RowWords) error {
	words, err := WordsOf[LaneWords](obj, SectLane, uint32(row))
	if err != nil {
		return err
	}
	words.Tail.Store(r.Head.Load())
	return nil
}

// LanePossible refuses a lane that no writer can go on in: its last one, or the reader, left an
// index there that cannot be.
func (q Queue) LanePossible(obj *shm.Object, row int, r *RowWords) error {
	words, err := WordsOf[LaneWords](obj, SectLane, uint32(row))
	if err != nil {
		return err
	}
	head, tail := r.Head.Load(), words.Tail.Load()
	if capacity := uint64(q.Capacity); tail-head > capacity {
		return Refuse("open lane", obj.Name(), "tail", tail, [2]uint64{head, head + capacity},
			ErrCorrupt)
	}
	return nil
}
