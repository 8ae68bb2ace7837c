package cq

import (
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// witness follows the owners of an object and says of each that died that it did, once. Whoever
// takes an object over leaves a record of the owner that it found dead, so that also those are
// counted which came and went between two looks.
type witness struct {
	obj     *shm.Object
	settled uint64      // up to this generation everything is said
	counted uint64      // deaths up to there, if all had been recorded by now
	watched uint64      // generation of the owner whose process is watched
	stop    func()      // ends the watch
	ended   atomic.Bool // the watched process is gone
	blind   bool        // the watched process gives no notice: only looking helps
	trusted int         // looks for which the notice was relied on
}

// trustFor is for how many looks in a row a notice that has not come is taken for a process that
// lives: about a second, when nothing else wakes who looks. A notice that is lost would be silence
// for ever.
const trustFor = 10

// settle says that everything up to a generation is said, by somebody else perhaps. Of those that
// came later and that nobody remembers it makes rather none than one too many.
func (w *witness) settle(generation uint64) {
	w.settled, w.counted = generation, 0
	if generation == 0 {
		return
	}
	o := w.obj.Owner() // before the records: what it has recorded is among them
	for _, d := range w.obj.Deaths() {
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

// look returns the owners that are proved dead and were not returned before, oldest first, and how
// many more there were whom nobody remembers. It costs a few loads unless something has changed, or
// no notice can come, or has not come for a while. nudge is called, from anywhere, when another
// look is worth while.
func (w *witness) look(nudge func()) (dead []shm.Owner, more uint64) {
	owner, ask := w.obj.Owner(), false
	switch {
	case owner.PID == 0, owner.Generation <= w.settled:
		return nil, 0 // damaged, or nothing new
	case owner.Generation == w.watched && owner.State == shm.StateOwned && !w.blind &&
		!w.ended.Load():
		if w.trusted++; w.trusted < trustFor {
			return nil, 0
		}
		w.trusted, ask = 0, true
	}
	dead, more = w.recorded(owner.Generation)
	w.settled = max(w.settled, owner.Generation-1)
	if owner.State == shm.StateReleased {
		w.settled = owner.Generation
		w.rest()
		return dead, more
	}
	if owner.Generation != w.watched {
		w.watch(owner, nudge)
	}
	if !ask && !w.blind && !w.ended.Load() {
		return dead, more
	}
	// If another one took over just now, its record says so at the next look.
	if o, died, err := w.obj.OwnerDied(); err == nil && died && o.Generation == owner.Generation {
		dead = append(dead, o)
		w.settled = o.Generation
		w.counted++
		w.rest()
	}
	return dead, more
}

// recorded returns what is noted of owners before a generation that was not returned before.
func (w *witness) recorded(before uint64) (dead []shm.Owner, more uint64) {
	count := uint64(0)
	for _, d := range w.obj.Deaths() {
		if d.Generation > w.settled && d.Generation < before {
			dead, count = append(dead, d.Owner), d.Count
		}
	}
	if len(dead) == 0 {
		return nil, 0
	}
	if since := count - w.counted; int64(since) > 0 { // anything else is a count that cannot be
		more = min(since-min(since, uint64(len(dead))), kind.MostFallen)
	}
	w.counted = max(w.counted+uint64(len(dead)), count)
	return dead, more
}

// news is look as events. The oldest says how many nobody remembers.
func (w *witness) news(entry func(shm.Owner) PeerEntry) (out []peerNews) {
	dead, more := w.look(processWatch.nudge)
	for _, o := range dead {
		out = append(out, peerNews{EventPeerDeath, entry(o)})
	}
	if len(out) > 0 {
		out[0].More = more
	}
	return out
}

// watch asks for a notice of the owner's death.
func (w *witness) watch(owner shm.Owner, nudge func()) {
	w.rest()
	w.watched = owner.Generation
	stop, err := shm.FollowOwner(owner, func() {
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
