package shm

import (
	"cmp"
	"slices"
)

// A record of an owner that died, in bytes from its start; see the package comment.
const (
	deadGen    = 0 // 0 while the record is being written
	deadPID    = deadGen + 8
	deadPIDNS  = deadPID + 8
	deadStart  = deadPIDNS + 8
	deadEnd    = deadStart + 8
	deathBytes = 64
	deathSlots = 8
)

func deathSlot(generation uint64) int { return offDeaths + int(generation%deathSlots)*deathBytes }

// storeDeath notes that an owner died. The next owner does so, who has proved it, under the lock
// and before it writes its own record: if it dies between the two, its successor does it again.
func storeDeath(page []byte, o Owner) {
	base := deathSlot(o.Generation)
	word(page, base+deadGen).Store(0)
	word(page, base+deadPID).Store(uint64(o.PID))
	word(page, base+deadPIDNS).Store(o.PIDNS)
	word(page, base+deadStart).Store(o.StartTicks)
	word(page, base+deadGen).Store(o.Generation) // from here on the record holds
}

// loadDeath copies a record, unless it is being replaced: then it is older than all that matter.
func loadDeath(page []byte, base int) (Owner, bool) {
	gen := word(page, base+deadGen).Load()
	o := Owner{PID: boundPID(word(page, base+deadPID).Load()),
		PIDNS:      word(page, base+deadPIDNS).Load(),
		StartTicks: word(page, base+deadStart).Load(), State: StateOwned, Generation: gen}
	return o, gen != 0 && word(page, base+deadGen).Load() == gen
}

// Deaths returns the last owners, eight at most, that died and had the object taken over from them,
// oldest first: whoever looks at an object now and then learns so of those whom it missed. The
// present owner is not among them, see [Object.OwnerDied], nor are owners that released the
// object. It is nil after Close. An inspector calls it inside [Guard].
func (o *Object) Deaths() []Owner {
	if o.mem == nil {
		return nil
	}
	var out []Owner
	for i := range deathSlots {
		if d, ok := loadDeath(o.mem, offDeaths+i*deathBytes); ok {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b Owner) int { return cmp.Compare(a.Generation, b.Generation) })
	return out
}

// OwnerDied reports whether the present owner is proved dead, and who it was. It says more than
// [Object.Life] in one case: a process that is gone in our own PID namespace is dead even while a
// child that it forked still holds the lock, so that nobody can claim the object yet. An owner that
// released the object before it died is not meant. Errors are those of Life.
func (o *Object) OwnerDied() (Owner, bool, error) {
	before := o.Owner()
	if before.State != StateOwned {
		return Owner{}, false, nil
	}
	life, err := o.Life()
	if err != nil {
		return Owner{}, false, err
	}
	dead := life == Dead
	if life == Alive {
		alive, known := ProcessAlive(before)
		dead = known && !alive
	}
	// The dead write nothing: what stands there now, if it is theirs, is their last word.
	after := o.Owner()
	return after, dead && after.State == StateOwned && after.Generation == before.Generation, nil
}
