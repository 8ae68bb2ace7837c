package cq

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// judge looks at a queue's directory from outside.
func judge(dir *shm.Dir, o Removal) (r Remains, err error) {
	obj, err := dir.Open(kind.ReaderFile, shm.Inspect)
	if errors.Is(err, fs.ErrNotExist) {
		return judgeOrphans(dir, false)
	}
	if _, cut := cutOff(dir, kind.ReaderFile, err, Removal{Waiting: true}); cut {
		return judgeOrphans(dir, true)
	}
	if err != nil {
		return r, err
	}
	defer obj.Close()
	r.Kind, r.SizeBytes = obj.Header().Kind, obj.Header().TotalBytes
	opt, err := stored("judge", "", obj.Header())
	if err != nil {
		return r, err
	}
	life, err := obj.Life()
	if err != nil {
		return r, err
	}
	var rows []kind.RowWords
	var closed bool
	fault := shm.Guard(func() {
		closed = errors.Is(readerState(obj, ""), ErrClosed)
		r.Owner = kind.Present(obj.Owner())
		rows, err = kind.RowsOf(obj, opt.rows())
	})
	if err = errors.Join(fault, err); err != nil {
		return r, err
	}
	lives := r.livesOrMay(life)
	lanes, err := openLanes(dir, shm.Inspect)
	defer closeAll(lanes)
	if err == nil {
		var alive bool
		alive, err = r.lanes(lanes)
		lives = lives || alive
	}
	if err == nil {
		r.Unread, err = unread(lanes, rows, opt, obj)
	}
	if r.Counted = err == nil; lives { // whatever its lanes are like
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.Owner = shm.Owner{}
	r.Fate = fateOf(life, opt.Lifetime, closed, r.Unread, o)
	return r, nil
}

// heldByOthers reports that whoever has a lock in a queue's directory is not the owner of what is
// locked, who has died or left. So it is for a moment while somebody removes the queue, or looks
// whether he can have it; and for longer if a process that the owner forked has the lock as well.
func heldByOthers(dir *shm.Dir) bool {
	reader, err := dir.Open(kind.ReaderFile, shm.Inspect)
	if err == nil {
		defer reader.Close()
		if !ownerIsGone(reader) {
			return false
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	lanes, err := openLanes(dir, shm.Inspect)
	defer closeAll(lanes)
	for _, l := range lanes {
		if err == nil && !ownerIsGone(l) {
			return false
		}
	}
	return err == nil
}

// ownerIsGone reports that the owner of an object left it or is proved dead, whoever has its lock.
func ownerIsGone(obj *shm.Object) (gone bool) {
	fault := shm.Guard(func() {
		if obj.Owner().State == shm.StateReleased {
			gone = true
			return
		}
		_, died, err := obj.OwnerDied()
		gone = died && err == nil
	})
	return gone && fault == nil
}

// livesOrMay notes an owner that is not proved gone.
func (r *Remains) livesOrMay(life shm.Life) bool {
	switch life {
	case shm.Alive:
		r.Fate = FateLiving
	case shm.LockLost:
		r.Fate = FateLockLost
	}
	return r.Fate != 0
}

// fateOf judges a queue of which nobody lives.
func fateOf(life shm.Life, lifetime Lifetime, closed bool, unread uint64, o Removal) Fate {
	waits := lifetime == Persistent || life == shm.Released
	switch {
	case closed: // its reader died while it destroyed it
		return FateGarbage
	case waits && unread > 0:
		return FateUnread
	case o.Waiting || !waits:
		return FateGarbage
	case life == shm.Released:
		return FateLeft
	}
	return FatePersistent
}

// judgeOrphans looks at a directory without a reader's object: it is empty, or has lanes whose
// writers did not notice that the queue was destroyed. If that was cut, it is there all the same.
func judgeOrphans(dir *shm.Dir, cut bool) (r Remains, err error) {
	r.Cut = cut
	names, err := dir.List()
	if err != nil {
		return r, err
	}
	lanes, err := openLanes(dir, shm.Inspect)
	defer closeAll(lanes)
	if err != nil {
		return r, err
	}
	if alive, err := r.lanes(lanes); alive || err != nil {
		return r, err
	}
	r.Fate = FateGarbage
	for _, n := range names {
		ours := cut && (n.Name == kind.ReaderFile || n.Name == kind.FifoFile)
		if !ours && !strings.HasPrefix(n.Name, kind.LanePrefix) {
			r.Fate = FateForeign
		}
	}
	return r, nil
}

// lanes notes a living writer, unless one who lives is known, and how much memory the lanes take.
func (r *Remains) lanes(lanes []*shm.Object) (alive bool, err error) {
	for _, l := range lanes {
		r.SizeBytes += l.Header().TotalBytes
	}
	for _, l := range lanes {
		if r.Fate != 0 {
			break
		}
		life, err := l.Life()
		if err != nil {
			return false, err
		}
		if r.livesOrMay(life) {
			return true, shm.Guard(func() { r.Owner = kind.Present(l.Owner()) })
		}
	}
	return false, nil
}

// unread adds up the entries of all lanes that the reader did not give back. A lane of an earlier
// queue of the name has none that anybody will read.
func unread(lanes []*shm.Object, rows []kind.RowWords, o shape, reader *shm.Object) (n uint64,
	err error) {
	all := append([]*shm.Object{reader}, lanes...)
	for i, l := range all {
		row := 0
		if i > 0 {
			row = int(min(l.Header().Attrs[kind.AttrLaneRow], kind.MaxLanes+1))
			if row == 0 || row >= len(rows) {
				return n, kind.Refuse("judge", l.Name(), "row", row, len(rows), ErrCorrupt)
			}
			err = o.attrs().LaneBelongs(l, row, reader.Header().UUID)
			if errors.Is(err, kind.ErrOtherQueue) {
				continue
			}
			if err != nil {
				return n, err
			}
		}
		words, err := kind.WordsOf[kind.LaneWords](l, kind.SectLane, uint32(row))
		if err != nil {
			return n, err
		}
		fault := shm.Guard(func() {
			var at kind.Level
			at, err = kind.ReadLevel(&rows[row], words, uint64(o.Size), l.Name())
			n += at.Depth()
		})
		if err = errors.Join(fault, err); err != nil {
			return n, err
		}
	}
	return n, nil
}

// errNamedElsewhere: a reader's object that was aside has another name, and now only that.
var errNamedElsewhere = errors.New("the object has a name elsewhere")

// dropSecondName removes the name aside of a reader's object that has another name: under that it
// is a queue with lanes, of which nothing is seen from here. The caller has the object's lock, so
// that nobody who minds it moves it.
func (k *lastLook) dropSecondName() error {
	names, err := k.dir.Links(kind.ReaderFile)
	if err != nil || names == 1 {
		return err
	}
	if err := k.dir.Remove(kind.ReaderFile); err != nil {
		return err
	}
	return errNamedElsewhere
}
