package shm

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
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
			if !o.valid() {
				break
			}
			return o, true
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

// self is what this process knows of itself.
var self knownSelf

// Self returns the identity of this process; State, ClaimedNs and Generation are zero. It is read
// once and kept, or again each second as long as a part may not be read.
func Self() Owner { return self.get(readSelf, monoNs) }

// knownSelf is kept once it is whole, and else for a while, unless it lacks something for want of a
// descriptor.
type knownSelf struct {
	whole   atomic.Pointer[Owner]
	mu      sync.Mutex
	part    Owner
	starved bool
	readNs  int64
}

// selfAgainNs is how long a part is kept. Some processes never see more.
const selfAgainNs = 1e9

func (k *knownSelf) get(read func() (Owner, bool), clock func() int64) Owner {
	if o := k.whole.Load(); o != nil {
		return *o
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := clock(); k.part.PID == 0 || k.starved || now-k.readNs >= selfAgainNs {
		o, starved := read()
		k.part, k.starved, k.readNs = o, starved, now
		if o.StartTicks != 0 && o.Program != 0 && o.BootID != (UUID{}) {
			k.whole.Store(&o)
		}
	}
	return k.part
}

// isSelf reports whether w is this very process. It is false where that cannot be told.
func (w Owner) isSelf() bool {
	me := Self()
	return w.PID == me.PID && w.PIDNS == me.PIDNS && w.PIDNS != 0 && w.StartTicks == me.StartTicks
}

// comparable reports whether the PID of w means the same process here. An object does not outlast
// its boot, so who noted another one lives in a container that has an id of its own for it.
func (w Owner) comparable() bool {
	me := Self()
	return w.PID > 0 && w.PIDNS != 0 && w.PIDNS == me.PIDNS &&
		(w.BootID == me.BootID || w.BootID == UUID{} || me.BootID == UUID{})
}

// ProcessAlive reports whether the process of w can still run user code. known is false when
// nothing can be said, because it lives in another PID namespace, noted another boot or is hidden
// from us. A stopped process is alive; one that is exiting, or a zombie, is not.
func ProcessAlive(w Owner) (alive, known bool) { return processAlive(w) }

// procStat is what we need of /proc/PID/stat.
type procStat struct {
	flags      uint64 // PF_* of the kernel
	startTicks uint64
}

// exiting is PF_EXITING: the thread will not run user code again. The kernel sets it before it
// drops the locks of a process, which become free a little earlier than the process is a zombie.
func (p procStat) exiting() bool { return p.flags&0x4 != 0 }

// parseStat reads the text of /proc/PID/stat, whose second field may hold anything.
func parseStat(b []byte) (p procStat, ok bool) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return procStat{}, false
	}
	f := strings.Fields(string(b[end+1:])) // f[0] is field 3, the state
	if len(f) < 20 {
		return procStat{}, false
	}
	flags, err1 := strconv.ParseUint(f[9-3], 10, 64)
	start, err2 := strconv.ParseUint(f[22-3], 10, 64)
	return procStat{flags: flags, startTicks: start}, err1 == nil && err2 == nil
}

// followed are the processes whose death somebody in this one wants to hear of: one descriptor and
// one goroutine a process, however many objects it owns that are looked at here.
var followed = struct {
	sync.Mutex
	of map[process]*following
}{of: map[process]*following{}}

// process is what tells one process from all others.
type process struct {
	pid       int
	ns, start uint64
}

type following struct {
	who process
	end func()               // ends the watch, whose descriptor is closed when it returns
	all map[*subscriber]bool // nil when the process has died; under followed
}

// subscriber is one who is told. The lock is held while he is.
type subscriber struct {
	mu     sync.Mutex
	notify func() // nil when he has stopped, or was told
}

func (s *subscriber) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notify != nil {
		s.notify()
		s.notify = nil
	}
}

// FollowOwner calls notify once, from another goroutine, when the process of w has died; at once
// if it is dead already. There is no notice of the death of this process, since who follows dies
// with it. It blocks no thread, and all who follow one process share a descriptor. notify must not
// block, since others are told after it. stop ends the subscription: when it returns notify does
// not run and will not, so do not call it from notify. It may be called again.
//
// An error means that there will be no notice, and that the caller must look now and then:
// errors.ErrUnsupported for a process of which [ProcessAlive] knows nothing.
func FollowOwner(w Owner, notify func()) (stop func(), err error) {
	if w.isSelf() {
		return func() {}, nil
	}
	s := &subscriber{notify: notify}
	who := process{w.PID, w.PIDNS, w.StartTicks}
	followed.Lock()
	defer followed.Unlock()
	f := followed.of[who]
	if f == nil {
		f = &following{who: who, all: map[*subscriber]bool{}}
		if f.end, err = watchDeath(w, f.died); err != nil {
			return nil, named("watch", "process "+strconv.Itoa(w.PID), err)
		}
		followed.of[who] = f
	}
	f.all[s] = true
	return func() { f.leave(s) }, nil
}

// died tells all, each under his own lock: one who stops meanwhile waits for nobody else's notice.
func (f *following) died() {
	followed.Lock()
	all := f.all
	f.all = nil
	delete(followed.of, f.who) // who comes now finds it dead
	followed.Unlock()
	for s := range all {
		s.tell()
	}
}

// leave ends one subscription, and with the last one the watch.
func (f *following) leave(s *subscriber) {
	s.mu.Lock()
	s.notify = nil
	s.mu.Unlock()
	followed.Lock()
	last := f.all[s] && len(f.all) == 1
	delete(f.all, s)
	if last {
		delete(followed.of, f.who)
	}
	followed.Unlock()
	if last {
		f.end()
	}
}
