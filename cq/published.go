package cq

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Published returns how many entries were ever published through the lane that a row has now, or
// had last: the index after the last one. Whoever knows under which index a writer that died was
// about to publish, see [Writer.Next], learns from it whether that came about; if others may have
// attached since, only [Queue.PublishedBy] tells. Nothing of it is checked: a writer may have
// written anything. It may be called from anywhere.
func (q *Queue) Published(lane int) (uint64, error) {
	return q.published(lane, shm.UUID{})
}

// LaneObject returns which object a row has now: the one that PeerEntry.Object means. It is
// fs.ErrNotExist if there is none. It may be called from anywhere.
func (q *Queue) LaneObject(lane int) (id shm.UUID, err error) {
	err = q.withLane(lane, func(obj *shm.Object, _ formerLane) error {
		if obj == nil {
			return fs.ErrNotExist
		}
		id = obj.Header().UUID
		return nil
	})
	return id, err
}

// PublishedBy is Published for one lane object: a row whose writer was of another user gets a new
// one with each writer. [shm.ErrStale] says that the row has had others since, but for the last one
// before, of which it is still known. A zero object, which none is, is ErrInvalid.
func (q *Queue) PublishedBy(lane int, object shm.UUID) (uint64, error) {
	if object == (shm.UUID{}) {
		return 0, kind.Refuse("look at lane of", q.name, "object", object, "one of LaneObject",
			ErrInvalid)
	}
	return q.published(lane, object)
}

// published is PublishedBy, or Published of whichever object the row has if it is zero.
func (q *Queue) published(lane int, object shm.UUID) (n uint64, err error) {
	err = q.withLane(lane, func(obj *shm.Object, former formerLane) error {
		whichever := object == (shm.UUID{})
		switch {
		case obj != nil && (whichever || obj.Header().UUID == object):
			words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(lane))
			if err == nil {
				n = words.Tail.Load()
			}
			return err
		case obj == nil && whichever:
			n = q.rows[lane].Head.Load() // what was published is read
			return nil
		case !whichever && former.object == object:
			n = former.end
			return nil
		}
		return &Error{Pkg: kind.Pkg, Op: "look at lane of", Name: q.name, Field: "lane", Got: lane,
			Want: object, Err: shm.ErrStale, Hint: "another writer has the lane by now"}
	})
	return n, err
}

// formerLane is the last lane of a row that was retired, and the index after its last entry.
type formerLane struct {
	object shm.UUID
	end    uint64
}

// withLane lends the object of a row, or nil if there is none.
func (q *Queue) withLane(lane int, do func(obj *shm.Object, former formerLane) error) error {
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
