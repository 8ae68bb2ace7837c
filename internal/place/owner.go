package place

import (
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Owned is what one process at a time has: an object, or a seat at one.
type Owned interface {
	Owner() shm.Owner
	Deaths() []shm.Death
	OwnerDied() (shm.Owner, bool, error)
}

// Notice is what the kernel is asked to tell of the death of one owner.
type Notice struct {
	Generation uint64 // of the owner who is followed; 0: nobody
	Blind      bool   // there will be no notice: only looking helps, and asking again
	stop       func()
}

// Follows reports whether it is of the owner of that generation, and will come.
func (n *Notice) Follows(generation uint64) bool { return n.Generation == generation && !n.Blind }

// Follow asks for a notice of this owner's death, and no more of the last one's.
func (n *Notice) Follow(o shm.Owner, notify func()) {
	n.Rest()
	stop, err := shm.FollowOwner(o, notify)
	*n = Notice{Generation: o.Generation, Blind: err != nil, stop: stop}
}

// Rest ends it.
func (n *Notice) Rest() {
	if n.stop != nil {
		n.stop()
	}
	*n = Notice{}
}

// OwnerWatch follows the owners of an object, or of a seat, and says of each that died that it did,
// once. Whoever takes it over leaves a record of the owner that it found dead, so that also those
// are counted which came and went between two looks.
type OwnerWatch struct {
	Of      Owned
	Settled uint64      // up to this generation everything is said
	Notice  Notice      // of the present owner
	counted uint64      // deaths up to there, if all had been recorded by now
	ended   atomic.Bool // the process that is followed is gone
	trusted int         // looks for which the notice was relied on
}

// trustFor is for how many looks in a row a notice that has not come is taken for a process that
// lives: about a second, when nothing else wakes who looks. A notice that is lost would be silence
// for ever.
const trustFor = 10

// mostDeaths bounds what a record may claim.
const mostDeaths = 1 << 20

// Begin starts with the present owner: its death is news, whenever it came.
func (w *OwnerWatch) Begin(of Owned) (present shm.Owner) {
	w.Of, present = of, of.Owner()
	switch {
	case present.Generation == 0:
	case present.State == shm.StateReleased:
		w.Settle(present.Generation)
	default:
		w.Settle(present.Generation - 1)
	}
	return present
}

// Settle says that everything up to a generation is said, by somebody else perhaps. Of those that
// came later and that nobody remembers it makes rather none than one too many.
func (w *OwnerWatch) Settle(generation uint64) {
	w.Settled, w.counted = generation, 0
	if generation == 0 {
		return
	}
	o := w.Of.Owner() // before the records: what it has recorded is among them
	for _, d := range w.Of.Deaths() {
		if d.Generation > generation {
			w.counted = max(d.Count, 1) - 1
			return
		}
		if w.counted = d.Count; d.Generation == generation {
			return
		}
	}
	if o.Generation == generation && o.State == shm.StateOwned {
		w.counted++ // its successor will record it
	}
}

// Look returns the owners that are proved dead and were not returned before, oldest first, and how
// many more there were whom nobody remembers. It costs a few loads unless something has changed, or
// no notice can come, or has not come for a while. nudge is called, from anywhere, when another
// Look is worth while.
func (w *OwnerWatch) Look(nudge func()) (dead []shm.Owner, more uint64) {
	owner, ask := w.Of.Owner(), false
	switch {
	case owner.PID == 0, owner.Generation <= w.Settled:
		return nil, 0 // damaged, or nothing new
	case w.Notice.Follows(owner.Generation) && owner.State == shm.StateOwned && !w.ended.Load():
		if w.trusted++; w.trusted < trustFor {
			return nil, 0
		}
		w.trusted, ask = 0, true
	}
	if owner.State == shm.StateReleased {
		// Who comes just now may have recorded its predecessor, of this very generation, before it
		// has one of its own.
		dead, more = w.recorded(owner.Generation + 1)
		w.Settled = owner.Generation
		w.Rest()
		return dead, more
	}
	dead, more = w.recorded(owner.Generation)
	w.Settled = max(w.Settled, owner.Generation-1)
	if !w.Notice.Follows(owner.Generation) {
		w.follow(owner, nudge)
	}
	if !ask && !w.Notice.Blind && !w.ended.Load() {
		return dead, more
	}
	// If another one took over just now, its record says so at the next look.
	if o, died, err := w.Of.OwnerDied(); err == nil && died && o.Generation == owner.Generation {
		dead = append(dead, o)
		w.Settled = o.Generation
		w.counted++
		w.Rest()
	}
	return dead, more
}

// recorded returns what is noted of owners before a generation that was not returned before.
func (w *OwnerWatch) recorded(before uint64) (dead []shm.Owner, more uint64) {
	count := uint64(0)
	for _, d := range w.Of.Deaths() {
		if d.Generation > w.Settled && d.Generation < before {
			dead, count = append(dead, d.Owner), d.Count
		}
	}
	if len(dead) == 0 {
		return nil, 0
	}
	if since := count - w.counted; int64(since) > 0 { // anything else is a count that cannot be
		more = min(since-min(since, uint64(len(dead))), mostDeaths)
	}
	w.counted = max(w.counted+uint64(len(dead)), count)
	return dead, more
}

// follow asks for a notice of the owner's death.
func (w *OwnerWatch) follow(owner shm.Owner, nudge func()) {
	w.Rest()
	w.Notice.Follow(owner, func() {
		w.ended.Store(true)
		nudge()
	})
}

// Rest ends the watch.
func (w *OwnerWatch) Rest() {
	w.Notice.Rest()
	w.ended.Store(false)
}
