package cq

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Fate says what may become of something that has a name.
type Fate uint32

// The fates. Only FateGarbage is ever removed, and only while the locks prove that it still is.
const (
	FateGarbage    Fate = iota + 1 // everybody who used it is provably gone, and nobody is to come
	FateLiving                     // a process that lives has it, if only to remove it
	FateLeft                       // left by its owner, for a successor
	FatePersistent                 // made to wait for a successor
	FateUnread                     // one of the last two, with entries that nobody has read
	FateLockLost                   // its owner lives and has lost the lock: nobody may claim it
	FateForeign                    // nothing of this library, or nothing that it knows
)

// String returns the lower-case name.
func (f Fate) String() string {
	names := [...]string{"garbage", "living", "left", "persistent", "unread", "lock lost", "foreign"}
	if i := int(f) - 1; i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("fate %d", uint32(f))
}

// Remains says how a queue, a counter, an address vector or the bell of a process stands with the
// processes that use it.
type Remains struct {
	Kind      shm.Kind // 0: the directory of a queue that is gone
	Fate      Fate
	Owner     shm.Owner // one that lives, of FateLiving and FateLockLost; zero if none is known
	Unread    uint64    // entries of a queue that were not read
	Counted   bool      // Unread is known
	SizeBytes uint64    // of all its objects
	Cut       bool      // it, or the reader's object, was cut: what it was is not known
}

// Removal is what may be removed.
type Removal struct {
	// Waiting also removes what is persistent or was left to a successor, if nothing in it is
	// unread and nobody alive uses it.
	Waiting bool
}

// errKept: what was to be removed is not garbage, or no longer.
var errKept error = kind.NewSentinel("it is in use, or waits for a successor",
	Errno(syscall.EBUSY), []error{ErrBusy})

// found is a queue's directory as a name led to it. What is looked at and removed is what that
// leads to, whatever the name means by then.
type found struct {
	at   *shm.Dir // where it has its name
	name string
	dir  *shm.Dir
	o    Removal
}

// find opens a queue's directory; the caller closes it.
func find(d *shm.Dir, name string, o Removal) (found, error) {
	dir, err := d.Sub(name, false)
	// Nobody waits for a queue whose maker died before it got its own name.
	o.Waiting = o.Waiting || shm.IsAside(name)
	return found{d, name, dir, o}, err
}

// moved reports whether a queue that was aside has got its own name since, under which it may wait
// for a successor.
func (f *found) moved() (bool, error) {
	if !shm.IsAside(f.name) {
		return false, nil
	}
	named, err := f.at.Names(f.name, f.dir)
	return err == nil && !named, err
}

// Remaining judges the queue of a directory, of either kind, by read-only mappings: no lock is
// taken and nobody notices. An error says that it cannot be judged: it is damaged, of another
// version, or of another user.
func Remaining(d *shm.Dir, name string, o Removal) (Remains, error) {
	f, err := find(d, name, o)
	if err != nil {
		return Remains{}, failed("judge", name, err)
	}
	defer f.dir.Close()
	r, err := judge(f.dir, f.o)
	if err == nil && r.Fate == FateGarbage {
		var moved bool
		if moved, err = f.moved(); moved {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		return r, failed("judge", name, err)
	}
	return r, nil
}

// Remove removes the queue of a directory, of either kind, if [Remaining] calls it garbage and the
// locks of all its objects prove that it is still so. Any number of processes may do so at once,
// while others create, adopt and attach. Otherwise it fails with [ErrBusy], and nothing that counts
// has changed. A queue that is not there is no error. ENOTEMPTY says that the queue is gone, and
// that its directory holds foreign files, or the lane of a writer that came late and removes it.
func Remove(d *shm.Dir, name string, o Removal) error {
	err := removeOnce(d, name, o)
	for n := 1; n < staleTries && errors.Is(err, shm.ErrStale); n++ {
		err = removeOnce(d, name, o) // what is left, or stands there instead
	}
	if errors.Is(err, shm.ErrStale) {
		err = errContested
	}
	if err == nil {
		crash.At(crash.CollectEmptied)
		err = d.RemoveSub(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("remove", name, err)
	}
	return nil
}

// staleTries bounds how often others may remove what we have opened.
const staleTries = 8

func removeOnce(d *shm.Dir, name string, o Removal) error {
	f, err := find(d, name, o)
	if err != nil {
		return err
	}
	defer f.dir.Close()
	return f.remove()
}

// removeFormer makes room for what is created where something dead stands, of whatever kind. It
// waits for others who remove a queue, for as long as Attach would.
func removeFormer(d *shm.Dir, name string) error {
	var met contest
	for {
		err := removeDead(d, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a collector was faster
		}
		if errors.Is(err, shm.ErrStale) {
			err = errContested // or is about to be
		}
		pause, again := met.wait(err, time.Now())
		if !again {
			return err
		}
		time.Sleep(pause)
	}
}

// createFile makes an object that is a file of d itself, in the place of something dead.
func createFile(d *shm.Dir, name string, s shm.Spec, init func(*shm.Object) error) (*shm.Object,
	error) {
	obj, err := d.Create(name, s, init)
	if nameTaken(err) && removeFormer(d, name) == nil {
		_ = d.RemoveSub(name) // that of a queue
		obj, err = d.Create(name, s, init)
	}
	return obj, err
}

// removeDead removes nothing that waits for a successor, not even what is aside.
func removeDead(d *shm.Dir, name string) error {
	dir, err := d.Sub(name, false)
	if errors.Is(err, shm.ErrOwner) { // no directory, or a stranger's, which then is no object either
		if err = d.RemoveAbandoned(name); err != nil {
			err = RemoveObject(d, name, Removal{})
		}
		return err
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return (&found{at: d, name: name, dir: dir}).remove()
}

// nameTaken reports that the error of making something is that its name is taken, by whatever.
func nameTaken(err error) bool {
	return errors.Is(err, fs.ErrExist) || errors.Is(err, shm.ErrOwner)
}

// openLanes opens every lane of a directory. Those that it could open come with an error too.
func openLanes(dir *shm.Dir, acc shm.Access) (lanes []*shm.Object, err error) {
	names, err := dir.List()
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		if !strings.HasPrefix(n.Name, kind.LanePrefix) {
			continue
		}
		l, err := dir.Open(n.Name, acc)
		if errors.Is(err, fs.ErrNotExist) { // its writer removed it meanwhile
			continue
		}
		if _, cut := cutOff(dir, n.Name, err, Removal{Waiting: true}); cut {
			continue // nobody has it any more, nor what was in it
		}
		if err != nil {
			return lanes, err
		}
		lanes = append(lanes, l)
	}
	return lanes, nil
}

func closeAll(objects []*shm.Object) {
	for _, o := range objects {
		_ = o.Close()
	}
}

// remove removes the objects of a queue that is garbage, or fails with errKept, with errContested
// if it may be garbage in a moment, or with ErrStale if others remove it too.
func (f *found) remove() error {
	r, err := judge(f.dir, f.o)
	if err != nil {
		return errors.Join(err, errKept)
	}
	switch {
	case r.Fate == FateGarbage:
		err = f.take()
	case r.Fate == FateLiving && heldByOthers(f.dir):
		err = errContested
	default:
		err = errKept
	}
	var busy *shm.BusyError
	switch {
	case !errors.As(err, &busy):
	case busy.Gone, busy.Released:
		err = errContested
	default:
		err = errKept // somebody has it by now
	}
	return err
}

// take removes what was found to be garbage. Every step is one after which another process can go
// on, should this one die: until the reader's object has lost its name, which comes last, the queue
// is what it was, or condemned.
func (f *found) take() error {
	dir := f.dir
	if err := removeCut(dir); err != nil {
		return err
	}
	obj, err := dir.Open(kind.ReaderFile, shm.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		return removeOrphans(dir)
	}
	if err != nil {
		return err
	}
	defer obj.Close()
	opt, err := stored("remove", "", obj.Header())
	if err != nil {
		return err
	}
	lanes, err := openLanes(dir, shm.ReadWrite)
	defer closeAll(lanes)
	if err == nil {
		err = holdAll(lanes)
	}
	if err != nil {
		return err
	}
	crash.At(crash.CollectLanes)
	last := &lastLook{found: f, obj: obj, lanes: lanes, opt: opt}
	// What refuses under the lock of the reader leaves the owner's record as it was: dead stays
	// dead, and left stays left.
	err = obj.Claim(last.look)
	if errors.Is(err, errNamedElsewhere) {
		return nil
	}
	if err != nil {
		return err
	}
	crash.At(crash.CollectClaimed)
	condemn(last.words, last.rows)
	crash.At(crash.CollectCondemned)
	for _, l := range lanes {
		err = errors.Join(err, l.Unlink())
	}
	crash.At(crash.CollectUnlinked)
	if err := errors.Join(err, removeFIFO(dir), obj.Unlink()); err != nil {
		return err
	}
	// A writer that came while we could still have given up has left its lane for the next.
	_ = removeOrphans(dir)
	return nil
}

// removeCut removes the objects of a queue that were cut and that nobody has any more. Without the
// reader's there is no queue, and what belongs to that goes too.
func removeCut(dir *shm.Dir) error {
	names, err := dir.List()
	if err != nil {
		return err
	}
	for _, n := range names {
		reader := n.Name == kind.ReaderFile
		if !reader && !strings.HasPrefix(n.Name, kind.LanePrefix) {
			continue
		}
		if _, err := dir.Abandoned(n.Name); err != nil {
			continue
		}
		if reader {
			if err := removeFIFO(dir); err != nil {
				return err
			}
		}
		err := dir.RemoveAbandoned(n.Name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// holdAll keeps writers from lanes. Nobody lives there, or else nothing is done. The records stay
// as they are: a reader that adopts the queue, should this one give up or die, tells of those who
// died in the lanes, and not of us.
func holdAll(lanes []*shm.Object) error {
	for _, l := range lanes {
		if err := l.Hold(); err != nil {
			return err
		}
	}
	return nil
}

// lastLook proves, with all lanes held and the reader's object locked, that a queue is garbage.
type lastLook struct {
	*found
	obj   *shm.Object
	lanes []*shm.Object
	opt   shape

	words *kind.QueueWords
	rows  []kind.RowWords
}

func (k *lastLook) look() (err error) {
	// Its maker moves it while it has our lock, so a name that is still the one aside stays so.
	if moved, err := k.moved(); moved || err != nil {
		return errors.Join(err, errKept)
	}
	if shm.IsAside(k.name) {
		if err := k.dropSecondName(); err != nil {
			return err
		}
	}
	if k.words, err = kind.WordsOf[kind.QueueWords](k.obj, kind.SectQueue, 0); err != nil {
		return err
	}
	if k.rows, err = kind.RowsOf(k.obj, k.opt.rows()); err != nil {
		return err
	}
	life := shm.Dead
	if k.obj.Owner().State == shm.StateReleased { // it may have been adopted and left meanwhile
		life = shm.Released
	}
	state := k.words.State.Load()
	n, err := unread(k.lanes, k.rows, k.opt, k.obj)
	if err == nil && fateOf(life, k.opt.Lifetime, state == kind.StateClosed, n, k.o) != FateGarbage {
		err = errKept
	}
	if err != nil || state == kind.StateClosed {
		return err
	}
	// Writers attach without our lock: they claim a lane and then look at the state. So either we
	// see the lane of one who comes now, or he sees this. A queue that overran takes no entries.
	if state == kind.StateOverrun {
		k.words.State.Store(kind.StateClosed)
	} else {
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
		if strings.HasPrefix(n.Name, kind.LanePrefix) && !ours[n.Name] {
			return errKept
		}
	}
	return nil
}

// removeOrphans removes what writers left who died after their queue was destroyed.
func removeOrphans(dir *shm.Dir) error {
	lanes, err := openLanes(dir, shm.ReadWrite)
	defer closeAll(lanes)
	if err != nil {
		return err
	}
	// The lanes were there before this look: while there is no reader's object, none can be of a
	// queue that comes now.
	obj, err := dir.Open(kind.ReaderFile, shm.ReadOnly)
	if err == nil {
		_ = obj.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, errKept)
	}
	for _, l := range lanes {
		err := l.Hold()
		if err == nil {
			err = l.Unlink()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
