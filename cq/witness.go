package cq

import (
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// witness follows the owners of an object and says of each that died that it did, once. Whoever
// takes an object over leaves a record of the owner that it found dead, so that also those are
// counted which came and went between two looks.
type witness struct {
	obj     *shm.Object
	settled uint64      // up to this generation everything is said
	watched uint64      // generation of the owner whose process is watched
	stop    func()      // ends the watch
	ended   atomic.Bool // the watched process is gone
	blind   bool        // the watched process gives no notice: only looking helps
}

// look returns the owners that are proved dead and were not returned before, oldest first. It costs
// a few loads unless something has changed, or no notice can come. nudge is called, from anywhere,
// when another look is worth while.
func (w *witness) look(nudge func()) (dead []shm.Owner) {
	owner := w.obj.Owner()
	switch {
	case owner.PID == 0, owner.Generation <= w.settled:
		return nil // damaged, or nothing new
	case owner.Generation == w.watched && owner.State == shm.StateOwned && !w.blind &&
		!w.ended.Load():
		return nil
	}
	for _, d := range w.obj.Deaths() {
		if d.Generation > w.settled && d.Generation < owner.Generation {
			dead = append(dead, d)
		}
	}
	w.settled = max(w.settled, owner.Generation-1)
	if owner.State == shm.StateReleased {
		w.settled = owner.Generation
		w.rest()
		return dead
	}
	if owner.Generation != w.watched {
		w.watch(owner, nudge)
	}
	if !w.blind && !w.ended.Load() {
		return dead
	}
	// If another one took over just now, its record says so at the next look.
	if o, died, err := w.obj.OwnerDied(); err == nil && died && o.Generation == owner.Generation {
		dead = append(dead, o)
		w.settled = o.Generation
		w.rest()
	}
	return dead
}

// watch asks for a notice of the owner's death.
func (w *witness) watch(owner shm.Owner, nudge func()) {
	w.rest()
	w.watched = owner.Generation
	if owner.IsSelf() {
		return // it dies with us
	}
	stop, err := shm.WatchDeath(owner, func() {
		w.ended.Store(true)
		nudge()
	})
	w.blind = err != nil
	w.stop = stop
}

// rest ends the watch.
func (w *witness) rest() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	w.ended.Store(false)
	w.watched, w.blind = 0, false
}
