package place

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Claim is the search of a writer for a lane of a queue that has a name.
type Claim struct {
	Dir    *shm.Dir // the queue's own
	Name   string   // of the queue
	Queue  kind.Queue
	Reader *shm.Object
	Rows   []kind.RowWords
}

// Lane finds a row that nobody owns, and returns its object, which this process owns then. The lock
// on the object is the claim. Errors are [kind.ErrLanes], which is a [collect.TakenError] if there
// may be a lane in a moment, [kind.ErrClosed], [collect.ErrContested], and those of shared memory.
func (c *Claim) Lane() (*shm.Object, int, error) {
	for row := 1; row < c.Queue.Rows; row++ {
		if c.Rows[row].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue
		}
		if owned, err := c.Dir.Owned(kind.LaneFile(row)); owned && err == nil {
			continue // as the claim would find, which costs ten times as much
		}
		obj, err := c.take(row)
		if err != nil {
			return nil, 0, err
		}
		if obj != nil {
			return obj, row, nil
		}
	}
	err := NoLane("attach", c.Name, c.Queue)
	if c.MayComeFree() {
		err = &collect.TakenError{Err: err}
	}
	return nil, 0, err
}

// take tries one row: a nil object without error says that somebody has it.
func (c *Claim) take(row int) (*shm.Object, error) {
	name, queue := kind.LaneFile(row), c.Reader.Header().UUID
	words, err := kind.WordsOf[kind.QueueWords](c.Reader, kind.SectQueue, 0)
	if err != nil {
		return nil, err
	}
	for range 8 {
		obj, err := c.Dir.Open(name, shm.ReadWrite)
		if errors.Is(err, fs.ErrNotExist) {
			obj, err = c.Dir.Create(name, c.Queue.LaneSpec(name, row, queue),
				func(o *shm.Object) error { return kind.InitLane(o, row, &c.Rows[row]) })
			if errors.Is(err, fs.ErrExist) {
				continue // another writer was faster: see whether it is gone already
			}
			return obj, err
		}
		if kind.Damaged(err) {
			return nil, nil // nobody's, for as long as it stands there
		}
		if err != nil {
			return nil, err
		}
		former := false
		err = obj.Claim(func() (err error) {
			if former, err = c.usable(obj, row); former || err != nil {
				return err
			}
			if err = c.Queue.LanePossible(obj, row, &c.Rows[row]); err != nil {
				return err
			}
			// The state is looked at again when the lane is ours. But a claim that is given back
			// has made us its last owner, and who died in it would not be told of any more.
			return TakesWriters(words.State.Load(), c.Name)
		})
		if err == nil && !former {
			return obj, nil
		}
		if err == nil {
			err = obj.Unlink()
		}
		_ = obj.Close()
		switch {
		case errors.Is(err, kind.ErrClosed), errors.Is(err, collect.ErrContested):
			return nil, err
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, shm.ErrStale):
			return nil, nil
		}
		// It was in the way, or somebody removed it under our hands: there is room now.
	}
	return nil, nil
}

// usable checks that a lane is this queue's. former says that it is left over from a queue of the
// same name that was destroyed, and only in the way. While our reader object has its name no newer
// queue can have it; afterwards the lane may be one of those, and is not to be touched.
func (c *Claim) usable(obj *shm.Object, row int) (former bool, err error) {
	err = c.Queue.LaneBelongs(obj, row, c.Reader.Header().UUID)
	if !errors.Is(err, kind.ErrOtherQueue) {
		return false, err
	}
	linked, err := c.Reader.Linked()
	if err == nil && !linked {
		err = kind.ErrClosed
	}
	return err == nil, err
}

// MayComeFree reports that there is, or may be in a moment, a lane that nobody has, though none was
// found: one was left since it was looked at, or its owner has not begun to write and attaches just
// now, or has it to remove the queue and may give it back.
func (c *Claim) MayComeFree() bool {
	for row := 1; row < c.Queue.Rows; row++ {
		if c.Rows[row].Bell.Parked.Load()&kind.RowPoisoned != 0 {
			continue // nobody can have it afterwards
		}
		obj, err := c.Dir.Open(kind.LaneFile(row), shm.ReadOnly)
		if errors.Is(err, fs.ErrNotExist) {
			return true
		}
		if err != nil {
			continue
		}
		is := c.laneMayComeFree(obj, row)
		_ = obj.Close()
		if is {
			return true
		}
	}
	return false
}

func (c *Claim) laneMayComeFree(obj *shm.Object, row int) bool {
	belongs := c.Queue.LaneBelongs(obj, row, c.Reader.Header().UUID)
	if errors.Is(belongs, kind.ErrOtherQueue) {
		return true // of a queue that was destroyed: its writer removes it, or who collects it
	}
	words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(row))
	if err != nil {
		return false
	}
	life, err := obj.Life()
	if err != nil {
		return false
	}
	if o := obj.Owner(); life != shm.Dead && o.State == shm.StateOwned {
		if words.Epochs[o.Generation%kind.LaneEpochs].Generation.Load() != o.Generation {
			return true
		}
		if _, died, err := obj.OwnerDied(); err != nil || !died {
			return false
		}
	}
	// Its lock may be held all the same, for a moment: by who just leaves it, or looks whether it
	// may claim it. Or by a child of a dead owner, for longer: then there was nothing to wait for.
	return belongs == nil && c.Queue.LanePossible(obj, row, &c.Rows[row]) == nil
}

// NoLane is the error for want of a lane.
func NoLane(op, name string, q kind.Queue) error {
	return &shm.Error{Pkg: kind.Pkg, Op: op, Name: name, Field: "lanes", Got: q.Rows - 1,
		Err:  kind.ErrLanes,
		Hint: "detach a writer, or create the queue with a larger MaxLanes"}
}

// TakesWriters is nil if writers may attach to a queue in a state.
func TakesWriters(state uint64, name string) error {
	switch state {
	case kind.StateClosed:
		return kind.ErrClosed
	case kind.StateRemoving:
		return &shm.Error{Pkg: kind.Pkg, Op: "attach", Name: name, Err: collect.ErrContested,
			Hint: "try again; if who removes it has died, adopt the queue or collect it"}
	}
	return nil
}
