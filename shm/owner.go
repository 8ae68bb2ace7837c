package shm

import (
	"fmt"
	"sync/atomic"
)

// OwnerState says whether an owner still claims its object.
type OwnerState uint64

// States in an owner record. Zero means that no valid record could be read.
const (
	StateOwned    OwnerState = 1 // claimed; whether the owner lives is what [Object.Life] tells
	StateReleased OwnerState = 2 // left on purpose, for a successor
)

// Owner identifies one process incarnation: a PID is re-used, PID with start time is not.
type Owner struct {
	PID        int    // in the PID namespace PIDNS
	PIDNS      uint64 // inode of the PID namespace; 0: unknown, no statement about PID is possible
	StartTicks uint64 // start time in clock ticks since boot
	BootID     UUID
	State      OwnerState
	ClaimedNs  int64 // CLOCK_MONOTONIC of the last claim or release
	Generation uint64
	// Program tells the programs apart that a process becomes one after the other (execve); 0:
	// unknown. Two may have the same.
	Program uint64
}

// NameProcess names the process of w in a message. If it is in another PID namespace the name says
// which, since the number means another process here.
func NameProcess(w Owner) string {
	switch w.PIDNS {
	case Self().PIDNS:
		return fmt.Sprintf("process %d", w.PID)
	case 0:
		return fmt.Sprintf("process %d of an unknown PID namespace", w.PID)
	}
	return fmt.Sprintf("process %d of PID namespace %d", w.PID, w.PIDNS)
}

// maxPID is the kernel's limit; larger numbers can only be damage.
const maxPID = 1 << 22

func boundPID(pid uint64) int {
	if pid > maxPID {
		return 0
	}
	return int(pid)
}

// ownerTries bounds the wait for a record that is being replaced. A record is replaced once per
// claim, so that more than a few changes during one read can only be mischief.
const ownerTries = 64

// loadOwner reads the present record. There are two slots and the low bit of turn says which one
// holds; a writer fills the other one and then stores turn, so a writer that dies half way leaves
// the old record standing. The slot that was copied is intact if turn has not moved meanwhile,
// because only the turn after next writes it again.
func loadOwner(page []byte) (Owner, bool) {
	turn := word(page, offTurn)
	for range ownerTries {
		t := turn.Load() // pairs with the store in storeOwner
		o := loadSlot(page, ownerSlot(t))
		if turn.Load() == t {
			return o, o.valid()
		}
	}
	return Owner{}, false
}

// storeOwner publishes a record. Only the holder of the object's lock may call it.
func storeOwner(page []byte, o Owner) {
	turn := word(page, offTurn)
	next := turn.Load() + 1
	base := ownerSlot(next)
	word(page, base+ownPID).Store(uint64(o.PID))
	word(page, base+ownPIDNS).Store(o.PIDNS)
	word(page, base+ownStart).Store(o.StartTicks)
	word(page, base+ownBootLo).Store(le.Uint64(o.BootID[:8]))
	word(page, base+ownBootHi).Store(le.Uint64(o.BootID[8:]))
	word(page, base+ownState).Store(uint64(o.State))
	word(page, base+ownClaimed).Store(uint64(o.ClaimedNs))
	word(page, base+ownGen).Store(o.Generation)
	word(page, base+ownProgram).Store(o.Program)
	if o.Program != 0 {
		word(page, base+ownProgramGen).Store(o.Generation)
	}
	turn.Store(next) // from here on the record holds
	word(page, offCurrentGen).Store(o.Generation)
}

func ownerSlot(turn uint64) int { return offOwner0 + int(turn&1)*ownerBytes }

func loadSlot(page []byte, base int) Owner {
	at := func(off int) *atomic.Uint64 { return word(page, base+off) }
	o := Owner{
		PID:        boundPID(at(ownPID).Load()),
		PIDNS:      at(ownPIDNS).Load(),
		StartTicks: at(ownStart).Load(),
		State:      OwnerState(at(ownState).Load()),
		ClaimedNs:  int64(at(ownClaimed).Load()),
		Generation: at(ownGen).Load(),
	}
	le.PutUint64(o.BootID[:8], at(ownBootLo).Load())
	le.PutUint64(o.BootID[8:], at(ownBootHi).Load())
	if at(ownProgramGen).Load() == o.Generation {
		o.Program = at(ownProgram).Load()
	}
	return o
}

func (o Owner) valid() bool {
	return o.PID > 0 && (o.State == StateOwned || o.State == StateReleased)
}

// decodeOwner reads the record out of a private copy, where nothing moves.
func decodeOwner(page []byte) Owner {
	b := page[ownerSlot(le.Uint64(page[offTurn:])):]
	o := Owner{
		PID:        boundPID(le.Uint64(b[ownPID:])),
		PIDNS:      le.Uint64(b[ownPIDNS:]),
		StartTicks: le.Uint64(b[ownStart:]),
		BootID:     UUID(b[ownBootLo : ownBootLo+16]),
		State:      OwnerState(le.Uint64(b[ownState:])),
		ClaimedNs:  int64(le.Uint64(b[ownClaimed:])),
		Generation: le.Uint64(b[ownGen:]),
	}
	if le.Uint64(b[ownProgramGen:]) == o.Generation {
		o.Program = le.Uint64(b[ownProgram:])
	}
	if !o.valid() {
		return Owner{}
	}
	return o
}
