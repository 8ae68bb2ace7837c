package shm

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/mapped"
	"github.com/shmring/shmring/internal/text"
)

// Life says how an object stands with its owner.
type Life int

// How an object stands with its owner.
const (
	Alive    Life = iota + 1 // an owner holds the lock; it may be stopped, which is not death
	Released                 // left on purpose: may be claimed
	Dead                     // the owner is proved gone, or another program by now: may be claimed
	LockLost                 // the lock is free though the owner lives: nobody may claim
)

// String returns the lower-case name.
func (l Life) String() string {
	return text.Name(l, "life", "", "alive", "released", "dead", "lock lost")
}

// Generation returns the number of the present ownership: it grows with every claim. It is read
// from shared memory with one atomic load, and is 0 after Close. An inspector calls it and Owner
// inside [Guard].
func (o *Object) Generation() uint64 {
	if o.mem == nil {
		return 0
	}
	return word(o.mem, offCurrentGen).Load()
}

// Owner reads the owner record afresh. The result is never torn; it is zero if no valid record is
// there, or after Close.
func (o *Object) Owner() Owner {
	if o.mem == nil {
		return Owner{}
	}
	owner, _ := loadOwner(o.mem)
	return owner
}

// lifeTries bounds how often an owner that comes just now may make us look again.
const lifeTries = 8

// Life finds out whether the owner lives, without guessing. It works on every kind of access and
// survives a file that was truncated. Errors: [ErrCorrupt], [ErrTruncated], os.ErrClosed.
func (o *Object) Life() (life Life, err error) {
	const op = "probe"
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return 0, named(op, o.name, os.ErrClosed)
	}
	return o.lifeBy(o.locked, o.ownerLife)
}

// lifeBy asks for the lock of the object, or of a seat, and assesses the owner if that is free.
func (o *Object) lifeBy(locked func() (bool, error), assess func() (Life, error)) (life Life,
	err error) {
	const op = "probe"
	for range lifeTries {
		is, err := locked()
		if err != nil {
			return 0, named(op, o.name, err)
		}
		if is {
			return Alive, nil
		}
		err = guarded(func() (e error) { life, e = assess(); return e })
		if err != nil {
			return 0, named(op, o.name, err)
		}
		if life != LockLost {
			return life, nil
		}
		// Perhaps it came between our two looks: then the lock is held by now.
	}
	return LockLost, nil
}

// ownerLife assesses the owner of an object whose lock is free.
func (o *Object) ownerLife() (Life, error) {
	owner, ok := loadOwner(o.mem)
	if !ok {
		return 0, damaged("owner record", "not valid", "a process")
	}
	return o.lifeOf(owner, whole), nil
}

// whole stands for the object itself where another number means one of its seats.
const whole = -1

// lifeOf assesses the noted owner of something whose lock is free.
func (o *Object) lifeOf(owner Owner, seat int) Life {
	switch {
	case owner.State == StateReleased:
		return Released
	case !owner.comparable():
		// The kernel drops the lock at death in every PID namespace; a second proof by PID is
		// possible in the same one only.
		return Dead
	}
	alive, known := ProcessAlive(owner)
	if known && !alive || alive && o.ofFormerProgram(owner, seat) {
		return Dead
	}
	return LockLost
}

// Claim makes this process the owner of an object that was opened ReadWrite and is [Released] or
// [Dead]. The lock is the claim and is taken first; then the name must still be there, the former
// owner provably gone, and check (which may be nil) content; last the owner record is written,
// with a generation one higher.
//
// Errors: *[BusyError] while it has a living owner; [ErrLockLost]; [ErrStale] if the object was
// removed meanwhile; [ErrCorrupt]; what check returned. After an error nothing has changed.
func (o *Object) Claim(check func() error) error {
	const op = "claim"
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.claim(op, check, o.takeOver)
}

// Hold keeps other processes from claiming an object, until Unlink and Close, or Release. It proves
// what [Object.Claim] proves, with such a check, and leaves the owner record as it is: the dead
// owner stays recorded, whatever becomes of this process. It is for those who remove objects, and
// nothing to do for the owner. Errors are those of Claim.
func (o *Object) Hold(check func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lockFD >= 0 {
		return nil
	}
	err := o.claim("hold", check, func() error { return nil })
	if err == nil {
		o.held = true
	}
	return err
}

// claim takes the lock, with which the record is changed if nothing forbids it.
func (o *Object) claim(op string, check, store func() error) error {
	switch {
	case o.closed:
		return named(op, o.name, os.ErrClosed)
	case o.acc != ReadWrite:
		return &Error{Op: op, Name: o.name, Err: syscall.EBADF, Hint: "open it ReadWrite"}
	case o.lockFD >= 0:
		return &BusyError{Name: o.name, PID: Self().PID}
	}
	fd, err := o.lock()
	if err != nil {
		return named(op, o.name, err)
	}
	crash.At(crash.ClaimLocked)
	err = guarded(func() error {
		if err := o.mayTake(check); err != nil {
			return err
		}
		return store()
	})
	if err != nil {
		file.GiveUp(fd)
		return named(op, o.name, err)
	}
	o.lockFD, o.held = fd, false
	o.spareFD()
	return nil
}

// lock takes the lock through a new private description.
func (o *Object) lock() (int, error) {
	fd, err := sysReopen(o.fd, true)
	if err != nil {
		return -1, err
	}
	err = file.Lock(fd, file.Whole, true)
	if err == nil {
		return fd, nil
	}
	sysClose(fd)
	if !file.Busy(err) {
		return -1, err
	}
	return -1, o.busy()
}

// busy is the error of an object whose lock somebody has.
func (o *Object) busy() *BusyError {
	busy := &BusyError{Name: o.name}
	_ = Guard(func() { // its owner may truncate the file
		owner, ok := loadOwner(o.mem)
		switch {
		case !ok:
		case owner.State == StateReleased: // its number may be that of a stranger by now
			busy.Released = true
		default:
			alive, known := ProcessAlive(owner)
			busy.PID, busy.Gone = owner.PID, owner.State == StateOwned && known && !alive
			busy.PIDNS, busy.Elsewhere = owner.PIDNS, owner.PIDNS != Self().PIDNS
		}
	})
	return busy
}

// mayTake proves, under the lock, that nobody has the object.
func (o *Object) mayTake(check func() error) error {
	if o.dir != nil { // a remover had the lock before us
		info, err := sysStat(o.anyFD())
		if err != nil {
			return err
		}
		if info.nlink == 0 {
			return &Error{Err: ErrStale, Hint: "it was removed meanwhile; open it again"}
		}
	}
	life, err := o.ownerLife()
	if err != nil {
		return err
	}
	if life == LockLost {
		return &Error{Field: "owner", Got: o.Owner().PID, Want: "a process that is gone",
			Err: ErrLockLost, Hint: "end that process; one that is another program by now need only " +
				"close what it has of this object"}
	}
	if check != nil {
		return check()
	}
	return nil
}

// takeOver writes the owner record, under the lock.
func (o *Object) takeOver() error {
	o.claimed.set(o, whole)
	before, _ := loadOwner(o.mem)
	me := Self()
	me.State, me.ClaimedNs = StateOwned, monoNs()
	me.Generation = max(before.Generation, o.Generation()) + 1
	if before.State != StateReleased {
		objectDeaths(o.mem).store(before)
	}
	storeOwner(o.mem, me)
	o.gen = me.Generation
	crash.At(crash.ClaimStored)
	return nil
}

// Release leaves the object for a successor: it records that, then gives up the lock. The memory
// stays mapped, but the caller must not write to it any more.
func (o *Object) Release() error {
	const op = "release"
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return named(op, o.name, os.ErrClosed)
	}
	if o.lockFD < 0 {
		return &Error{Op: op, Name: o.name, Err: syscall.ENOLCK, Hint: "claim it first"}
	}
	err := o.leave()
	crash.At(crash.ClaimLeft)
	o.dropLock()
	return named(op, o.name, err)
}

// leave records that the object was released, unless it was held only.
func (o *Object) leave() error {
	if o.held {
		return nil
	}
	return o.markReleased()
}

// markReleased runs under the lock, if that is still there: a stray close in this process may have
// dropped it, and then the record can be somebody else's. Nor must a truncated file kill us.
func (o *Object) markReleased() error {
	return guarded(func() error {
		locked, err := o.locked()
		if err != nil {
			return err
		}
		me, ok := loadOwner(o.mem)
		switch {
		case !ok:
			return damaged("owner record", "not valid", "this process")
		case !locked || me.Generation != o.gen || me.PID != Self().PID:
			return lockLost()
		}
		me.State, me.ClaimedNs = StateReleased, monoNs()
		storeOwner(o.mem, me)
		return nil
	})
}

func lockLost() error {
	return &Error{Err: ErrLockLost, Hint: "something in this process closed a descriptor that was " +
		"not its own"}
}

// dropLock gives up the lock, and the descriptor unless its number means another file by now.
func (o *Object) dropLock() {
	if o.lockFD < 0 {
		return
	}
	info, err := sysStat(o.lockFD)
	if err == nil && info.ino == o.ino && info.dev == o.dev {
		if o.fd < 0 && !o.closed {
			file.Unlock(o.lockFD, file.Whole)
			o.fd = o.lockFD
		} else {
			file.GiveUp(o.lockFD)
		}
	}
	o.lockFD = -1
}

// A process can become another program (execve). It lives on under its number and start time, and
// its locks and all that it had mapped are gone; so an object that the former program owned is one
// whose lock is free while the process lives. That is a lost lock too, of an owner that may still
// write. What tells them apart is whether it is the same program, and, where that cannot be told,
// whether the memory is still mapped.

// claimed are the objects that handles of this program have owned and still have mapped, and the
// seats that they have.
var claimed = struct {
	sync.Mutex
	handles map[inode]int
}{handles: map[inode]int{}}

type inode struct {
	dev, ino uint64
	seat     int // or whole
}

// claimNote is what one handle, or seat, has added to claimed.
type claimNote struct {
	of inode
	on bool
}

// set comes before the claim can be seen, and drop when the memory is gone.
func (n *claimNote) set(o *Object, seat int) {
	if n.on {
		return
	}
	*n = claimNote{inode{o.dev, o.ino, seat}, true}
	claimed.Lock()
	defer claimed.Unlock()
	claimed.handles[n.of]++
}

func (n *claimNote) drop() {
	if !n.on {
		return
	}
	n.on = false
	claimed.Lock()
	defer claimed.Unlock()
	if claimed.handles[n.of]--; claimed.handles[n.of] == 0 {
		delete(claimed.handles, n.of)
	}
}

// ofFormerProgram reports that the owner of an object, or of a seat at it, whose lock is free, a
// process that lives, is proved to have none of its memory any more. A process that cannot be
// looked at proves nothing.
func (o *Object) ofFormerProgram(owner Owner, seat int) bool {
	if owner.isSelf() { // which may have it mapped as one that looks, or is about to claim it
		claimed.Lock()
		defer claimed.Unlock()
		return claimed.handles[inode{o.dev, o.ino, seat}] == 0
	}
	if is := programOf(strconv.Itoa(owner.PID)); owner.Program != 0 && is != 0 && is != owner.Program {
		return true // it may have mapped the memory anew
	}
	is, known := mapped.By(owner.PID, o.dev, o.ino)
	return known && !is
}

// A record of an owner that died, in bytes from its start; see the package comment.
const (
	deadGen    = 0 // 0 while the record is being written
	deadPID    = deadGen + 8
	deadPIDNS  = deadPID + 8
	deadStart  = deadPIDNS + 8
	deadTally  = deadStart + 8 // how many died, up to this one, and the low bits of its generation
	deadEnd    = deadTally + 8
	deathBytes = 64
	deathSlots = 8
)

// deathLog is where the owners of something are recorded that died: so many records from an offset.
type deathLog struct {
	mem       []byte
	at, slots int
}

func objectDeaths(page []byte) deathLog { return deathLog{page, offDeaths, deathSlots} }

func (l deathLog) slot(generation uint64) int {
	return l.at + int(generation%uint64(l.slots))*deathBytes
}

// Death is an owner that died. Count is how many have died until then, this one included, or 0 if
// that is not known.
type Death struct {
	Owner
	Count uint64
}

// tallyBits of a tally say whose it is: what was in a slot before is of a generation that differs
// by a multiple of its number of slots.
const tallyBits = 16

// store notes that an owner died. The next owner does so, who has proved it, under the lock
// and before it writes its own record: if it dies between the two, its successor does it again, and
// by the tally knows that this death is counted.
func (l deathLog) store(o Owner) {
	page, base := l.mem, l.slot(o.Generation)
	gen, tally := word(page, base+deadGen).Load(), word(page, base+deadTally).Load()
	if gen == o.Generation {
		return // it is whole: that is its last store
	}
	counted := gen == 0 && tally != 0 && uint16(tally) == uint16(o.Generation) // killed over it
	if !counted {
		count := uint64(0)
		for i := range l.slots {
			count = max(count, word(page, l.at+i*deathBytes+deadTally).Load()>>tallyBits)
		}
		tally = (count+1)<<tallyBits | uint64(uint16(o.Generation))
	}
	word(page, base+deadGen).Store(0)
	word(page, base+deadTally).Store(tally)
	word(page, base+deadPID).Store(uint64(o.PID))
	word(page, base+deadPIDNS).Store(o.PIDNS)
	word(page, base+deadStart).Store(o.StartTicks)
	word(page, base+deadGen).Store(o.Generation) // from here on the record holds
}

// loadDeath copies a record, unless it is being replaced: then the count of the next one tells of
// it.
func loadDeath(page []byte, base int) (Death, bool) {
	gen := word(page, base+deadGen).Load()
	o := Owner{PID: boundPID(word(page, base+deadPID).Load()),
		PIDNS:      word(page, base+deadPIDNS).Load(),
		StartTicks: word(page, base+deadStart).Load(), State: StateOwned, Generation: gen}
	d := Death{o, word(page, base+deadTally).Load() >> tallyBits}
	return d, gen != 0 && word(page, base+deadGen).Load() == gen
}

// load returns what is recorded, oldest first.
func (l deathLog) load() (out []Death) {
	for i := range l.slots {
		if d, ok := loadDeath(l.mem, l.at+i*deathBytes); ok {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Death) int { return cmp.Compare(a.Generation, b.Generation) })
	return out
}

// Deaths returns the last owners that died and from whom another process took the object over:
// eight at most, oldest first. The counts say how many died before these. The present owner is not
// among them, see [Object.OwnerDied], nor are owners that released the object. It is nil after
// Close. An inspector calls it inside [Guard].
func (o *Object) Deaths() []Death {
	if o.mem == nil {
		return nil
	}
	return objectDeaths(o.mem).load()
}

// OwnerDied reports whether the present owner is proved dead, and who it was. It says more than
// [Object.Life] in one case: a process that is gone in our own PID namespace is dead even while a
// child that it forked still holds the lock, so that nobody can claim the object yet. An owner that
// released the object before it died is not meant. Errors are those of Life.
func (o *Object) OwnerDied() (Owner, bool, error) { return ownerDied(o) }

// owned is what one process at a time has: an object, or a seat at one.
type owned interface {
	Owner() Owner
	Life() (Life, error)
}

func ownerDied(of owned) (Owner, bool, error) {
	before := of.Owner()
	if before.State != StateOwned {
		return Owner{}, false, nil
	}
	life, err := of.Life()
	if err != nil {
		return Owner{}, false, err
	}
	dead := life == Dead
	if life == Alive {
		alive, known := ProcessAlive(before)
		dead = known && !alive
	}
	// The dead write nothing: what stands there now, if it is theirs, is their last word.
	after := of.Owner()
	return after, dead && after.State == StateOwned && after.Generation == before.Generation, nil
}
