package collect

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

func removeOnce(d *shm.Dir, name string, o Options) error {
	t, err := find(d, name, o)
	if err != nil {
		return err
	}
	defer t.dir.Close()
	if err = t.remove(); err == nil && t.isQueue() && !o.forNew {
		crash.At(crash.CollectEmptied)
		err = d.RemoveSub(name)
	}
	return err
}

// remove removes the objects of the target if it is garbage, or fails with errKept, with
// ErrContested if it may be garbage in a moment, or with ErrStale if others remove it too.
func (t *target) remove() error {
	r, err := t.assess()
	switch {
	case err != nil:
		return err
	case r.Fate == Garbage && r.Socket:
		return RemoveUnbound(t.at, t.name)
	case r.Fate == Garbage:
		err = t.take()
	case r.Fate == Living && t.heldByOthers():
		err = ErrContested
	default:
		err = errKept
	}
	var busy *shm.BusyError
	switch {
	case !errors.As(err, &busy):
	case busy.Gone, busy.Released:
		err = ErrContested
	default:
		err = errKept // somebody has it by now
	}
	return err
}

// heldByOthers reports that whoever has a lock of the target is not the owner of what is locked,
// who has died or left. So it is for a moment while somebody removes it, or looks whether he can
// have it; and for longer if a process that the owner forked has the lock as well.
func (t *target) heldByOthers() bool {
	obj, err := t.objectDir().Open(t.main, shm.Inspect)
	if err == nil {
		defer obj.Close()
		if !ownerIsGone(obj) {
			return false
		}
	}
	gone := errors.Is(err, fs.ErrNotExist)
	if !t.isQueue() || err != nil && !gone {
		return err == nil || gone // they have removed it by now
	}
	lanes, err := t.openLanes(shm.Inspect)
	defer closeAll(lanes)
	for _, l := range lanes {
		if err == nil && !ownerIsGone(l) {
			return false
		}
	}
	return err == nil
}

// ownerIsGone reports that the owner of an object left it or is proved dead, whoever has its lock.
// A counter and a group have users instead, who may keep it for as long as they like.
func ownerIsGone(obj *shm.Object) (gone bool) {
	fault := shm.Guard(func() {
		if obj.Owner().State == shm.StateReleased {
			gone = !isShared(obj.Header().Kind)
			return
		}
		_, died, err := obj.OwnerDied()
		gone = died && err == nil
	})
	return gone && fault == nil
}

// take removes what was found to be garbage. Every step is one after which another process can go
// on, should this one die: until the main object has lost its name, which comes last, a queue is
// what it was, or condemned.
func (t *target) take() error {
	if t.isQueue() {
		if err := t.removeTruncated(); err != nil {
			return err
		}
	}
	obj, err := t.objectDir().Open(t.main, shm.ReadWrite)
	gone := t.isQueue() && errors.Is(err, fs.ErrNotExist)
	_, cut := t.truncated(t.main, err)
	switch {
	case (gone || cut) && t.o.Object != (shm.UUID{}): // it came since assess
		return fs.ErrNotExist
	case gone:
		return t.removeOrphans()
	case cut:
		return RemoveTruncated(t.objectDir(), t.main)
	}
	if err != nil {
		return err
	}
	defer obj.Close()
	if err := t.o.admits(obj); err != nil {
		return err
	}
	last := &lastLook{target: t, obj: obj}
	if t.isQueue() {
		last.lanes, err = t.holdLanes()
		defer closeAll(last.lanes)
		if err != nil {
			return err
		}
		crash.At(crash.CollectLanes)
	}
	// The owner's record stays as it was: dead stays dead and left stays left, whatever refuses under
	// the lock or becomes of us, and who wants the name sees that its owner does not have it.
	err = obj.Hold(last.look)
	if errors.Is(err, errNamedElsewhere) {
		return nil
	}
	if err != nil {
		return err
	}
	if !t.isQueue() {
		crash.At(crash.CollectObject)
		return obj.Unlink()
	}
	return last.unlink()
}

// removeTruncated removes the objects of a queue that were truncated and that nobody has any more.
// Without the reader's there is no queue, and what belongs to that goes too.
func (t *target) removeTruncated() error {
	names, err := t.dir.List()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !kind.IsQueueObject(n.Name()) {
			continue
		}
		if _, err := Truncated(t.dir, n.Name()); err != nil {
			continue
		}
		if n.Name() == kind.ReaderFile {
			if err := removeFIFO(t.dir); err != nil {
				return err
			}
		}
		err := RemoveTruncated(t.dir, n.Name())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// holdLanes keeps writers from lanes. Nobody lives there, or else nothing is done. The records stay
// as they are: a reader that adopts the queue, should this one give up or die, tells of those who
// died in the lanes, and not of us. The caller closes them, also after an error.
func (t *target) holdLanes() ([]*shm.Object, error) {
	lanes, err := t.openLanes(shm.ReadWrite)
	if err != nil {
		return lanes, err
	}
	for _, l := range lanes {
		if err := l.Hold(nil); err != nil {
			return lanes, err
		}
	}
	return lanes, nil
}

// HoldLanes begins to remove a queue, and gets no further, until release gives up: so it is for
// tests of those who meet that.
func HoldLanes(d *shm.Dir, name string) (release func(), err error) {
	t, err := find(d, name, Options{})
	if err != nil {
		return nil, err
	}
	lanes, err := t.holdLanes()
	return func() {
		closeAll(lanes)
		_ = t.dir.Close()
	}, err
}

// lastLook proves, with all lanes held and the main object locked, that the target is garbage.
type lastLook struct {
	*target
	obj   *shm.Object
	lanes []*shm.Object

	words *kind.QueueWords
	rows  []kind.RowWords
}

func (k *lastLook) look() (err error) {
	// Its maker moves it while it has our lock, so a name that is still the one aside stays so.
	if moved, err := k.moved(); moved || err != nil {
		return errors.Join(err, errKept)
	}
	if k.isAside() {
		if err := k.dropSecondName(); err != nil {
			return err
		}
	}
	m, err := k.terms(k.obj)
	if err != nil {
		return err
	}
	life := shm.Dead
	if k.obj.Owner().State == shm.StateReleased { // it may have been adopted and left meanwhile
		life = shm.Released
	}
	n := uint64(0)
	if k.isQueue() {
		n, err = unread(k.lanes, k.obj, m.queue)
	}
	if err == nil && m.fate(life, n, k.o) != Garbage {
		err = errKept
	}
	if err == nil && k.isQueue() {
		err = k.closeToWriters(m.queue)
	}
	return err
}

// closeToWriters keeps writers from the queue, and fails if one has come already.
func (k *lastLook) closeToWriters(q kind.Queue) (err error) {
	if k.words, err = kind.WordsOf[kind.QueueWords](k.obj, kind.SectQueue, 0); err != nil {
		return err
	}
	if k.rows, err = kind.RowsOf(k.obj, q.Rows); err != nil {
		return err
	}
	// Writers attach without our lock: they claim a lane and then look at the state. So either we
	// see the lane of one who comes now, or he sees this. A queue that overran takes no entries.
	state := k.words.State.Load()
	switch state {
	case kind.StateClosed:
		return nil
	case kind.StateOverrun:
		k.words.State.Store(kind.StateClosed)
	default:
		k.words.State.Store(kind.StateRemoving)
	}
	crash.At(crash.CollectShut)
	if err := k.nobodyCame(); err != nil {
		k.words.State.Store(state)
		return err
	}
	return nil
}

// nobodyCame fails if there is a lane that we do not hold.
func (k *lastLook) nobodyCame() error {
	names, err := k.dir.List()
	if err != nil {
		return err
	}
	ours := map[string]bool{}
	for _, l := range k.lanes {
		ours[l.Name()] = true
	}
	for _, n := range names {
		if kind.IsLane(n.Name()) && !ours[n.Name()] {
			return errKept
		}
	}
	return nil
}

// errNamedElsewhere: a reader's object that was aside has another name, and now only that.
var errNamedElsewhere = errors.New("the object has a name elsewhere")

// dropSecondName removes the name aside of a reader's object that has another name: under that it
// is a queue with lanes, of which nothing is seen from here. The caller has the object's lock, so
// that nobody who minds it moves it.
func (k *lastLook) dropSecondName() error {
	names, err := links(k.dir, kind.ReaderFile)
	if err != nil || names == 1 {
		return err
	}
	if err := k.dir.Remove(kind.ReaderFile); err != nil {
		return err
	}
	return errNamedElsewhere
}

// unlink removes the names of a queue that is ours by now.
func (k *lastLook) unlink() (err error) {
	crash.At(crash.CollectClaimed)
	kind.Condemn(k.words, k.rows)
	crash.At(crash.CollectCondemned)
	for _, l := range k.lanes {
		err = errors.Join(err, l.Unlink())
	}
	crash.At(crash.CollectUnlinked)
	if err := errors.Join(err, removeFIFO(k.dir), k.obj.Unlink()); err != nil {
		return err
	}
	// A writer that came while we could still have given up has left its lane for the next.
	_ = k.removeOrphans()
	return nil
}

// removeOrphans removes what writers left who died after their queue was destroyed.
func (t *target) removeOrphans() error {
	lanes, err := t.openLanes(shm.ReadWrite)
	defer closeAll(lanes)
	if err != nil {
		return err
	}
	// The lanes were there before this look: while there is no reader's object, none can be of a
	// queue that comes now.
	obj, err := t.dir.Open(kind.ReaderFile, shm.ReadOnly)
	if err == nil {
		_ = obj.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, errKept)
	}
	for _, l := range lanes {
		err := l.Hold(nil)
		if err == nil {
			err = l.Unlink()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
