// Package counterbell is the bell of a counter, which has no reader: any process adds, and any
// sleeps until the value reaches its threshold. Nothing is disarmed here, armings are numbered, and
// each process says what it sleeps for, so that an add that reaches nobody wakes nobody.
package counterbell

import (
	"math"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
)

// Seats is how many handles of a counter can say which value they sleep for.
const Seats = 64

// Idle is the threshold of a seat where nobody sleeps. Any is the value of [Words.Ring] that
// reaches every threshold.
const (
	Idle uint64 = math.MaxUint64
	Any         = Idle - 1
)

// Words are the shared words of a counter's bell. Unlike a queue's, where one reader sleeps,
// they are written by everybody: any process adds, and any may sleep until the value reaches its
// threshold.
//
//	adder                                    waiter, the one of its seat that sleeps
//	C1 add to the value: v                   W1 threshold of the seat = lowest of its waiters'
//	C2 a = armed                             W2 e = epoch
//	C3 rung == a: done                       W3 armed++
//	C4 no seat with threshold <= v: done     W4 new handles to watch? second look at the value
//	C5 epoch++                               W5 futex wait(epoch, e), then W2 again
//	C6 wake all                              W6 threshold of the seat = lowest of the others'
//	C7 rung = a
//
// Each arming is a new number, so rung == armed says that all who sleep were woken since they
// armed; a late store of an old number can only cause a wake too many. An adder marks the arming
// rung after it has woken, so that one which is stopped in between mutes nobody. Nothing is
// disarmed: a waiter that leaves takes its threshold back, and costs nothing; one that was killed
// costs one wake.
//
// An adder that dies between C1 and C6 leaves a value behind that nobody was told of. So every
// handle says who it is before it adds, and whoever sleeps watches the processes of the others and
// looks again when one dies. A handle that came since is announced by Announce, which wakes.
//
// A peer that scribbles here can keep sleepers asleep until the next wake of any kind, or wake them
// for nothing. Nothing in these words indexes memory unbounded.
type Words struct {
	epoch    atomic.Uint32 // futex word; grows with every wake
	_        uint32
	armed    atomic.Uint64 // number of armings so far
	rung     atomic.Uint64 // the arming up to which everybody was woken
	joined   atomic.Uint64 // number of handles that came so far
	seats    atomic.Uint64 // seats from this one on were never taken
	standing atomic.Uint64 // 1: some handle found no seat, so that C4 cannot tell
	_        [80]byte

	// Each written by the handle that has the seat: threshold + 1, so that 0 is Idle.
	thresholds [Seats]atomic.Uint64
}

// Quiet is C2 and C3 for the hot path, after the value was added to: nobody sleeps. Otherwise Ring
// follows.
func (w *Words) Quiet() bool { return w.armed.Load() == w.rung.Load() }

// Ring is C2 to C7, after v was added up to or stored; Any for what concerns every threshold. It
// reports whether it made a system call.
func (w *Words) Ring(v uint64) bool {
	a := w.armed.Load() // C2
	if w.rung.Load() == a {
		return false // C3
	}
	if !w.wanted(v) { // C4
		return false
	}
	w.Kick() // C5, C6
	crash.At(crash.CountWoken)
	w.rung.Store(a) // C7
	return true
}

// wanted looks for a seat whose threshold v has reached.
func (w *Words) wanted(v uint64) bool {
	if w.standing.Load() != 0 {
		return true
	}
	for i := range min(w.seats.Load(), Seats) {
		if t := w.Threshold(int(i)); v >= t && t != Idle {
			return true
		}
	}
	return false
}

// Sit makes a seat known to adders, with nobody asleep there; -1 is a handle without one.
func (w *Words) Sit(seat int) {
	if seat < 0 {
		w.standing.Store(1)
		return
	}
	w.SetThreshold(seat, Idle)
	for {
		n := w.seats.Load()
		if uint64(seat) < n || w.seats.CompareAndSwap(n, uint64(seat)+1) {
			return
		}
	}
}

// Standing reports whether some handle ever found no seat.
func (w *Words) Standing() bool { return w.standing.Load() != 0 }

// Announce tells those who sleep that a handle came whose process they have to watch. It comes
// before the handle's first add.
func (w *Words) Announce() {
	w.joined.Add(1)
	w.Ring(Any)
}

// Joined returns a number that grows with every handle; it is loaded after Arm.
func (w *Words) Joined() uint64 { return w.joined.Load() }

// SetThreshold is W1 and W6: who sleeps has one below Idle. Only the handle that has the seat calls
// it, under a lock of its own.
func (w *Words) SetThreshold(seat int, v uint64) {
	if seat >= 0 {
		w.thresholds[seat].Store(v + 1)
	}
}

// Threshold returns what the handle on the seat sleeps for, or Idle.
func (w *Words) Threshold(seat int) uint64 { return w.thresholds[seat].Load() - 1 }

// Arm is W2 and W3: the caller looks at the value afterwards, and sleeps with what Arm returned.
func (w *Words) Arm() (epoch uint32) {
	epoch = w.epoch.Load()
	w.armed.Add(1)
	crash.At(crash.CountArmed)
	return epoch
}

// Sleep is W5: it returns after a wake since Arm, at the deadline (0: none), or for no reason.
func (w *Words) Sleep(epoch uint32, deadlineNs int64) { futex.Wait(&w.epoch, epoch, deadlineNs) }

// Kick wakes everyone, armed or not: for a death, and for a wait that ends for another reason.
func (w *Words) Kick() {
	w.epoch.Add(1)
	futex.WakeAll(&w.epoch)
}

// Wakes returns how often somebody woke those who sleep, wrapping.
func (w *Words) Wakes() uint32 { return w.epoch.Load() }

// View is what an inspector reads of a counter's bell, in an order in which what must hold
// between the numbers does.
type View struct{ Rung, Armed, Seats, Standing uint64 }

// Inspect reads the words without changing them.
func (w *Words) Inspect() View {
	v := View{Rung: w.rung.Load()} // before armed, which only grows
	v.Armed, v.Seats, v.Standing = w.armed.Load(), w.seats.Load(), w.standing.Load()
	return v
}
