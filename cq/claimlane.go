package cq

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// claimLane finds a row that nobody owns. The lock on the lane object is the claim.
func (h *dirHome) claimLane(reader *shm.Object, rows []kind.RowWords, opt shape) (*shm.Object, int,
	error) {
	for bit := 1; bit < opt.rows(); bit++ {
		if rows[bit].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue
		}
		if owned, err := h.dir.Owned(fmt.Sprintf(kind.LaneFile, bit)); owned && err == nil {
			continue // as the claim would find, which costs ten times as much
		}
		obj, err := h.takeLane(bit, opt, reader, &rows[bit])
		if err != nil {
			return nil, 0, err
		}
		if obj != nil {
			return obj, bit, nil
		}
	}
	err := noLane("attach", h.name, opt)
	if h.mayComeFree(reader.Header().UUID, rows, opt) {
		err = &claimedError{err}
	}
	return nil, 0, err
}

// takeLane tries one row: a nil object without error says that somebody has it.
func (h *dirHome) takeLane(bit int, opt shape, reader *shm.Object, row *kind.RowWords) (*shm.Object,
	error) {
	name, queue := fmt.Sprintf(kind.LaneFile, bit), reader.Header().UUID
	words, err := kind.WordsOf[kind.QueueWords](reader, kind.SectQueue, 0)
	if err != nil {
		return nil, err
	}
	for range 8 {
		obj, err := h.dir.Open(name, shm.ReadWrite)
		if errors.Is(err, fs.ErrNotExist) {
			obj, err = h.dir.Create(name, opt.attrs().LaneSpec(name, bit, queue),
				func(o *shm.Object) error { return initLane(o, bit, row) })
			if errors.Is(err, fs.ErrExist) {
				continue // another writer was faster: see whether it is gone already
			}
			return obj, err
		}
		if damaged(err) {
			return nil, nil // nobody's, for as long as it stands there
		}
		if err != nil {
			return nil, err
		}
		former := false
		err = obj.Claim(func() (err error) {
			if former, err = laneUsable(obj, bit, opt, reader); former || err != nil {
				return err
			}
			if err = lanePossible(obj, bit, opt.Size, row); err != nil {
				return err
			}
			// The state is looked at again when the lane is ours. But a claim that is given back
			// has made us its last owner, and who died in it would not be told of any more.
			return takesWriters(words.State.Load(), h.name)
		})
		if err == nil && !former {
			return obj, nil
		}
		if err == nil {
			err = obj.Unlink()
		}
		_ = obj.Close()
		switch {
		case errors.Is(err, ErrClosed), errors.Is(err, errContested):
			return nil, err
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, shm.ErrStale):
			return nil, nil
		}
		// It was in the way, or somebody removed it under our hands: there is room now.
	}
	return nil, nil
}

// laneUsable checks that a lane is this queue's. former says that it is left over from a queue of
// the same name that was destroyed, and only in the way. While our reader object has its name no
// newer queue can have it; afterwards the lane may be one of those, and is not to be touched.
func laneUsable(obj *shm.Object, bit int, opt shape, reader *shm.Object) (former bool,
	err error) {
	err = opt.attrs().LaneBelongs(obj, bit, reader.Header().UUID)
	if !errors.Is(err, kind.ErrOtherQueue) {
		return false, err
	}
	linked, err := reader.Linked()
	if err == nil && !linked {
		err = ErrClosed
	}
	return err == nil, err
}

// lanePossible refuses a lane that no writer can go on in: its last one, or the reader, left an
// index there that cannot be.
func lanePossible(obj *shm.Object, bit, capacity int, row *kind.RowWords) error {
	words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(bit))
	if err != nil {
		return err
	}
	head, tail := row.Head.Load(), words.Tail.Load()
	if tail-head > uint64(capacity) {
		return kind.Refuse("open lane", obj.Name(), "tail", tail,
			[2]uint64{head, head + uint64(capacity)}, ErrCorrupt)
	}
	return nil
}
