package place

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// WriterSide is a writer's way to the objects of a queue: [Named] or [Joining].
type WriterSide interface {
	OpenReader() (*shm.Object, error)
	// ClaimLane returns a lane object that this process owns, and its row.
	ClaimLane(reader *shm.Object, rows []kind.RowWords, q kind.Queue) (*shm.Object, int, error)
	// Gone reports whether the queue was destroyed, beyond what its words say.
	Gone(reader *shm.Object) (bool, error)
	// OpenFace returns a descriptor that wakes the user of the reader of that generation, or -1 and
	// why there is none.
	OpenFace(reader *shm.Object, words *kind.QueueWords, generation uint16) (int, error)
	// Leave gives the lane back: to the next writer, or to nobody if the queue is closed, which
	// last then reports.
	Leave(lane *shm.Object, closed func() bool) (last bool, err error)
	// Bell returns the directory of the bell of the reader's process, or a descriptor of it, which
	// stay the side's; nil and -1 if there is no such way to it.
	Bell() (*shm.Dir, int)
	RemoveDir()
	Close() error
}

// Named is the directory of a queue that has a name, for its reader and its writers.
type Named struct {
	Dir  *shm.Dir // the queue's own
	at   *shm.Dir // where that has its name
	name string
}

// NewNamed takes over dir. The caller's own handle on the directory above may be closed before
// Named is.
func NewNamed(at *shm.Dir, name string, dir *shm.Dir) *Named {
	return &Named{at: at.Dup(), name: name, Dir: dir}
}

// Owned is for who owns an object in the directory from now on: that keeps it, and no descriptor
// need do so.
func (h *Named) Owned() *Named {
	h.Dir.Nest(h.at, h.name)
	return h
}

// OpenReader opens the queue's reader object.
func (h *Named) OpenReader() (*shm.Object, error) {
	return h.Dir.Open(kind.ReaderFile, shm.ReadOnly)
}

// ClaimLane finds a row that nobody owns.
func (h *Named) ClaimLane(reader *shm.Object, rows []kind.RowWords,
	q kind.Queue) (*shm.Object, int, error) {
	c := Claim{Dir: h.Dir, Name: h.name, Queue: q, Reader: reader, Rows: rows}
	obj, row, err := c.Lane()
	if err == nil {
		h.Owned()
	}
	return obj, row, err
}

// Gone: whoever destroys a queue closes it first and unlinks then, and does not see a lane that
// came later.
func (h *Named) Gone(reader *shm.Object) (bool, error) {
	linked, err := reader.Linked()
	return !linked, err
}

// OpenFace gets the reader's own eventfd, or the queue's FIFO where the kernel does not let us
// have it.
func (h *Named) OpenFace(reader *shm.Object, words *kind.QueueWords, _ uint16) (int, error) {
	fd, err := takeEvent(reader, words)
	if err == nil {
		return fd, nil
	}
	fd, e := openFIFO(h.Dir, false)
	if e != nil {
		return -1, errors.Join(err, e)
	}
	return fd, nil
}

// takeEvent duplicates the reader's own eventfd. The number must be this reader's, not one that its
// predecessor left; and the reader clears the word before it closes what the number means, so that
// one which still stands afterwards was the right one.
func takeEvent(reader *shm.Object, words *kind.QueueWords) (int, error) {
	n, owner := words.Face.Load(), reader.Owner()
	if n == 0 || n >= 1<<31 || words.FaceGen.Load() != owner.Generation {
		return -1, kind.ErrPeerGone
	}
	fd, err := descriptorOf(owner, int(n-1))
	if err != nil {
		return -1, err
	}
	if words.Face.Load() != n || !eventfd.Is(fd) {
		eventfd.Close(fd)
		return -1, kind.ErrPeerGone
	}
	return fd, nil
}

// Leave gives the lane to the next writer, or removes it if the queue is closed.
func (h *Named) Leave(lane *shm.Object, closed func() bool) (last bool, err error) {
	if closed() {
		return true, lane.Unlink()
	}
	err = lane.Release()
	if closed() && lane.Claim(nil) == nil {
		// Closed between the look and the release: its reader found the lane ours.
		return true, lane.Unlink()
	}
	return false, err
}

// Bell returns the directory in which the queue has its name.
func (h *Named) Bell() (*shm.Dir, int) { return h.at, -1 }

// RemoveDir removes the queue's directory if it is empty. That takes no descriptor.
func (h *Named) RemoveDir() { _ = h.at.RemoveSub(h.name) }

// Close closes both directories.
func (h *Named) Close() error { return errors.Join(h.Dir.Close(), h.at.Close()) }

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
		case errors.Is(err, kind.ErrClosed), errors.Is(err, collect.ErrContested), kind.Starved(err):
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
