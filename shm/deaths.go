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
