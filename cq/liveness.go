package cq

import (
	"math"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// owned is what one process at a time has: an object, or a seat at one.
type owned interface {
	Owner() shm.Owner
	Deaths() []shm.Death
	OwnerDied() (shm.Owner, bool, error)
}

// deathNotice is what the kernel is asked to tell of one owner.
type deathNotice struct {
	generation uint64 // of the owner who is followed; 0: nobody
	stop       func()
	blind      bool // there will be no notice: only looking helps
}

// follow asks for a notice of this owner's death, and no more of the last one's.
func (n *deathNotice) follow(o shm.Owner, notify func()) {
	n.rest()
	stop, err := shm.FollowOwner(o, notify)
	*n = deathNotice{o.Generation, stop, err != nil}
}

// rest ends it.
func (n *deathNotice) rest() {
	if n.stop != nil {
		n.stop()
	}
	*n = deathNotice{}
}

// ownerWatch follows the owners of an object, or of a seat, and says of each that died that it did,
// once. Whoever takes it over leaves a record of the owner that it found dead, so that also those
// are counted which came and went between two looks.
type ownerWatch struct {
	of      owned
	settled uint64      // up to this generation everything is said
	counted uint64      // deaths up to there, if all had been recorded by now
	notice  deathNotice // of the present owner
	ended   atomic.Bool // the process that is followed is gone
	trusted int         // looks for which the notice was relied on
}

// trustFor is for how many looks in a row a notice that has not come is taken for a process that
// lives: about a second, when nothing else wakes who looks. A notice that is lost would be silence
// for ever.
const trustFor = 10

// mostDeaths bounds what a record may claim.
const mostDeaths = 1 << 20

// begin starts with the present owner: its death is news, whenever it came.
func (w *ownerWatch) begin(of owned) (present shm.Owner) {
	w.of, present = of, of.Owner()
	switch {
	case present.Generation == 0:
	case present.State == shm.StateReleased:
		w.settle(present.Generation)
	default:
		w.settle(present.Generation - 1)
	}
	return present
}

// settle says that everything up to a generation is said, by somebody else perhaps. Of those that
// came later and that nobody remembers it makes rather none than one too many.
func (w *ownerWatch) settle(generation uint64) {
	w.settled, w.counted = generation, 0
	if generation == 0 {
		return
	}
	o := w.of.Owner() // before the records: what it has recorded is among them
	for _, d := range w.of.Deaths() {
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
func (w *ownerWatch) look(nudge func()) (dead []shm.Owner, more uint64) {
	owner, ask := w.of.Owner(), false
	switch {
	case owner.PID == 0, owner.Generation <= w.settled:
		return nil, 0 // damaged, or nothing new
	case owner.Generation == w.notice.generation && owner.State == shm.StateOwned &&
		!w.notice.blind && !w.ended.Load():
		if w.trusted++; w.trusted < trustFor {
			return nil, 0
		}
		w.trusted, ask = 0, true
	}
	if owner.State == shm.StateReleased {
		// Who comes just now may have recorded its predecessor, of this very generation, before it
		// has one of its own.
		dead, more = w.recorded(owner.Generation + 1)
		w.settled = owner.Generation
		w.rest()
		return dead, more
	}
	dead, more = w.recorded(owner.Generation)
	w.settled = max(w.settled, owner.Generation-1)
	if owner.Generation != w.notice.generation {
		w.follow(owner, nudge)
	}
	if !ask && !w.notice.blind && !w.ended.Load() {
		return dead, more
	}
	// If another one took over just now, its record says so at the next look.
	if o, died, err := w.of.OwnerDied(); err == nil && died && o.Generation == owner.Generation {
		dead = append(dead, o)
		w.settled = o.Generation
		w.counted++
		w.rest()
	}
	return dead, more
}

// recorded returns what is noted of owners before a generation that was not returned before.
func (w *ownerWatch) recorded(before uint64) (dead []shm.Owner, more uint64) {
	count := uint64(0)
	for _, d := range w.of.Deaths() {
		if d.Generation > w.settled && d.Generation < before {
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

// news is look as events. The oldest says how many nobody remembers.
func (w *ownerWatch) news(entry func(shm.Owner) PeerEntry) (out []peerNews) {
	dead, more := w.look(processWatch.nudge)
	for _, o := range dead {
		out = append(out, peerNews{EventPeerDeath, entry(o)})
	}
	if len(out) > 0 {
		out[0].More = more
	}
	return out
}

// follow asks for a notice of the owner's death.
func (w *ownerWatch) follow(owner shm.Owner, nudge func()) {
	w.rest()
	w.notice.follow(owner, func() {
		w.ended.Store(true)
		nudge()
	})
}

// rest ends the watch.
func (w *ownerWatch) rest() {
	w.notice.rest()
	w.ended.Store(false)
}

// succession tells also of those who come: of the owners of an object of this user, one after the
// other.
type succession struct {
	ownerWatch
	known uint64 // generation of the owner that this process knows of
}

func (s *succession) begin(obj *shm.Object) { s.known = s.ownerWatch.begin(obj).Generation }

func (s *succession) look(entry func(shm.Owner) PeerEntry) (out []peerNews) {
	out = s.news(entry)
	owner := s.of.Owner()
	if owner.Generation > s.known && owner.State == shm.StateOwned {
		s.known = owner.Generation
		out = append(out, peerNews{EventPeerNew, entry(owner)})
	}
	return out
}

// ownerEntry is what an event says of an owner of an object.
func ownerEntry(role PeerRole, obj *shm.Object, o shm.Owner) PeerEntry {
	return PeerEntry{Role: role, PID: o.PID, PIDNS: o.PIDNS, StartTicks: o.StartTicks,
		Object: obj.Header().UUID, Generation: o.Generation}
}

// sinkID names an event queue to a successor of this process. Who writes to it may close it while
// it is bound.
func sinkID(obj *shm.Object) uint64 { return max(1, objectID(obj)&math.MaxInt64) }
