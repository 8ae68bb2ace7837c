package cq

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// PublishedBy returns how many entries were ever published through a lane object of a row, see
// [Lane]: the index after the last one. Whoever knows under which index a writer that died was
// about to publish, see [Writer.Next], learns from it whether that came about. A row whose writer
// was of another user gets a new object with each writer: [shm.ErrStale] says that it has had
// others since, but for the last one before, of which it is still known. Nothing of it is checked:
// a writer may have written anything. It may be called from anywhere.
func (q *Queue) PublishedBy(row int, object shm.UUID) (n uint64, err error) {
	err = q.withLane(row, func(obj *shm.Object, former formerLane) error {
		switch {
		case obj != nil && obj.Header().UUID == object:
			words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(row))
			if err == nil {
				n = words.Tail.Load()
			}
			return err
		case former.object == object && object != (shm.UUID{}):
			n = former.end
			return nil
		}
		return &Error{Pkg: kind.Pkg, Op: "look at lane of", Name: q.name, Field: "lane", Got: row,
			Want: object, Err: shm.ErrStale, Hint: "ask for its row again: it has another writer"}
	})
	return n, err
}

// formerLane is the last lane of a row that was retired, and the index after its last entry.
type formerLane struct {
	object shm.UUID
	end    uint64
}

// withLane lends the object of a row, or nil if there is none.
func (q *core) withLane(lane int, do func(obj *shm.Object, former formerLane) error) error {
	if lane < 0 || lane >= q.opt.rows() {
		return kind.Refuse("look at lane of", q.name, "lane", lane, q.opt.MaxLanes, ErrInvalid)
	}
	if !q.guard.enterAny() {
		return ErrClosed
	}
	defer q.guard.leaveAny()
	if lane == 0 {
		return do(q.obj, formerLane{})
	}
	if h, ok := q.home.(*memfdHome); ok {
		h.mu.Lock() // the object is not unmapped meanwhile
		defer h.mu.Unlock()
		return do(h.lanes[lane].obj, h.lanes[lane].former)
	}
	obj, err := q.home.openLane(lane)
	if err == nil {
		defer obj.Close()
		if err = q.opt.attrs().LaneBelongs(obj, lane, q.obj.Header().UUID); errors.Is(err,
			kind.ErrOtherQueue) {
			err = fs.ErrNotExist // it is only in the way
		}
	}
	if err != nil {
		return failed("look at lane of", q.name, err)
	}
	return do(obj, formerLane{})
}
