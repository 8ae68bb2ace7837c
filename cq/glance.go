package cq

import (
	"runtime"
	"sync/atomic"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
)

// glance is what a read of a shared queue needs to find it empty without the queue's lock. Whoever
// leaves the lock, with one lane at most that can have anything, notes up to where that lane is
// taken. Who glances compares that with the lane's tail and sees that nothing was noted, marked or
// taken meanwhile:
//
//	leaves the lock                glances
//	taken = head                   a = at
//	at = changes of the bell       t = taken
//	                               tail == t, no marks, changes == a, not closed
//
// changes only grows, and taken is never ahead of the tail. So if changes is what it was at the
// note, no other lane can have had an entry without a mark since; the tail that equals taken, which
// was loaded before it, says that this lane was empty when the tail was loaded. All stores are
// releases; the loads stand in this order. internal/model explores it.
type glance struct {
	taken ring.Index
	at    atomic.Uint64
	words *kind.LaneWords // in memory that outlasts the queue
}

// isEmpty reports whether a glance found the queue empty. false says nothing. It is for queues that
// are Options.Shared.
func (q *core) isEmpty() bool {
	g := q.glance.Load()
	if g == nil {
		return false
	}
	at, taken := g.at.Load(), g.taken.Load()
	empty := g.words.Tail.Load() == taken && g.words.Overrun.Load() == 0 && q.bell.Quiet(at) &&
		!q.guard.isClosed() // last: after a close the words are zeros
	runtime.KeepAlive(g) // and with it the lane, whose memory this was
	runtime.KeepAlive(q)
	return empty
}

// show is for who leaves the lock of a shared queue.
func (q *core) show() {
	g := q.vacant
	switch bit := q.bell.Only(); {
	case bit >= 0:
		l := q.lanes[bit]
		g = &l.glance
		ring.StoreRelease(&g.taken, l.cons.Head())
	case bit != doorbell.Nobody:
		return // the last note is of the past, which changes says
	}
	if at := q.bell.Changes(); g.at.Load() != at {
		g.at.Store(at)
	}
	if q.glance.Load() != g {
		q.glance.Store(g)
	}
}
