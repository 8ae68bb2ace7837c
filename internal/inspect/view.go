package inspect

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// View is one queue, of either kind, mapped to look at: for reading only, so that no byte, lock or
// time of change is touched and no party notices. It is one goroutine's at a time.
type View struct {
	parent *shm.Dir
	name   string
	dir    *shm.Dir
	reader *shm.Object
	opt    kind.Queue
	lanes  map[int]*shm.Object
}

// Open maps a queue. The directory must stay open as long as the View is used. Errors are
// fs.ErrNotExist and those of opening shared memory.
func Open(d *shm.Dir, name string) (*View, error) {
	v := &View{parent: d, name: name, lanes: map[int]*shm.Object{}}
	if err := v.open(); err != nil {
		_ = v.Close()
		return nil, v.failed(err)
	}
	return v, nil
}

func (v *View) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: inspect %q: %w", kind.Pkg, v.name, err)
}

func (v *View) open() (err error) {
	if v.dir, err = v.parent.Sub(v.name, false); err != nil {
		return err
	}
	if v.reader, err = v.dir.Open(kind.ReaderFile, shm.Inspect); err != nil {
		return err
	}
	v.opt, err = kind.StoredQueue("inspect", v.name, v.reader.Header())
	return err
}

// Close unmaps everything. It may be called again, and Look maps it again.
func (v *View) Close() error {
	var err error
	for row, obj := range v.lanes {
		err = errors.Join(err, obj.Close())
		delete(v.lanes, row)
	}
	if v.reader != nil {
		err = errors.Join(err, v.reader.Close())
		v.reader = nil
	}
	if v.dir != nil {
		err = errors.Join(err, v.dir.Close())
		v.dir = nil
	}
	return err
}

// Queue is the memory of a queue for one look. Its peers may write to it all the time, and truncate
// the files: a word is loaded once, and what is loaded is bounded.
type Queue struct {
	Options kind.Queue
	Path    string // of its directory
	Reader  *shm.Object
	Words   *kind.QueueWords
	Hints   *doorbell.Hints
	Rows    []kind.RowWords
	Lanes   map[int]Lane // those that are there, by row
}

// Lane is the object of a lane, which for row 0 is the reader's, or why it cannot be mapped.
type Lane struct {
	obj *shm.Object
	err error
}

// Read calls f with the object. A fault in its memory is the error [shm.ErrTruncated] of this lane
// only.
func (l Lane) Read(f func(*shm.Object) error) error {
	if l.err != nil {
		return l.err
	}
	return guarded(func() error { return f(l.obj) })
}

// guarded calls f and makes an error of a fault in memory that it reads.
func guarded(f func() error) (err error) {
	fault := shm.Guard(func() { err = f() })
	return errors.Join(fault, err)
}

// Look calls f with the queue that has the name by now, and with the lanes that it has by now. f
// may use them until it returns. A queue that was destroyed is fs.ErrNotExist; a reader's object
// that is damaged or truncated is an error as for [Open], a lane's object that is costs that lane.
func (v *View) Look(f func(*Queue) error) error {
	if err := v.refresh(); err != nil {
		return v.failed(err)
	}
	lanes, err := v.findLanes()
	if err != nil {
		return v.failed(err)
	}
	q := &Queue{Options: v.opt, Path: v.dir.Path(), Reader: v.reader, Lanes: lanes}
	return v.failed(guarded(func() error {
		if err := q.lay(); err != nil {
			return err
		}
		return f(q)
	}))
}

// lay lays the words over the reader's object.
func (q *Queue) lay() (err error) {
	if q.Words, err = kind.WordsOf[kind.QueueWords](q.Reader, kind.SectQueue, 0); err != nil {
		return err
	}
	if q.Rows, err = kind.RowsOf(q.Reader, q.Options.Rows); err != nil {
		return err
	}
	mem, _, err := q.Reader.Section(kind.SectHints, 0)
	if err != nil {
		return err
	}
	q.Hints, err = doorbell.MapHints(mem, q.Options.Rows)
	return err
}

// refresh goes from a queue that was destroyed to the one that has its name now.
func (v *View) refresh() error {
	if v.reader != nil {
		if linked, err := v.reader.Linked(); err != nil || linked {
			return err
		}
	}
	if err := v.Close(); err != nil {
		return err
	}
	return v.open()
}

// findLanes maps the lanes that there are now and lets go of those that are not any more.
func (v *View) findLanes() (map[int]Lane, error) {
	names, err := v.dir.List()
	if err != nil {
		return nil, err
	}
	found := map[int]Lane{0: {obj: v.reader}}
	for _, n := range names {
		row, ok := kind.LaneRow(n.Name)
		if !ok || row >= v.opt.Rows {
			continue
		}
		obj, err := v.findLane(row, n.Name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kind.ErrOtherQueue) {
			continue
		}
		found[row] = Lane{obj: obj, err: err}
	}
	for row, obj := range v.lanes {
		if found[row].obj != obj {
			_ = obj.Close()
			delete(v.lanes, row)
		}
	}
	return found, nil
}

func (v *View) findLane(row int, file string) (*shm.Object, error) {
	if obj := v.lanes[row]; obj != nil {
		if linked, err := obj.Linked(); err == nil && linked {
			return obj, nil
		}
		_ = obj.Close()
		delete(v.lanes, row)
	}
	obj, err := v.dir.Open(file, shm.Inspect)
	if err != nil {
		return nil, err
	}
	if err := v.opt.LaneBelongs(obj, row, v.reader.Header().UUID); err != nil {
		_ = obj.Close()
		return nil, err
	}
	v.lanes[row] = obj
	return obj, nil
}
