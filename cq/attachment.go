package cq

import (
	"math/bits"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// attachment is what the reader's process holds of one writer of another user, from the rendezvous
// on until its lane is retired.
type attachment struct {
	obj     *shm.Object
	bit     int // its row
	words   *kind.LaneWords
	peer    *place.Peer
	pipe    int             // reading end of the one that raises the queue's descriptor, or -1
	relay   *doorbell.Relay // under memfdHome.mu
	mourned bool            // its death was noted; under memfdHome.mu
	muted   bool            // it was given up: nobody listens any more; under memfdHome.mu
}

// ended reports that the writer does not post any more: it has left the lane, or is proved dead.
// One that says so and goes on writes to memory that nobody looks at.
func (a *attachment) ended() bool {
	return a.peer.Gone() || a.obj.Owner().State == shm.StateReleased
}

// listen passes the lane's rings on to those who cannot sleep on its word.
func (a *attachment) listen(bell *doorbell.Bell, bit int) {
	if a.relay == nil && !a.muted {
		a.relay = doorbell.NewRelay(&a.words.Rung, a.words.Tail.Load,
			func() { bell.Forward(bit) })
	}
}

// mute ends listening to a writer of another user that was given up, for good: its words say
// nothing any more, so nothing in them could tell false alarms from others. Its end is still
// noticed by its peer's connection. The bell is locked.
func (q *core) mute(a *attachment) {
	h, ok := q.home.(*memfdHome)
	if a == nil || !ok {
		return
	}
	q.face.Forget(a.bit)
	h.mu.Lock()
	defer h.mu.Unlock()
	a.muted = true
	a.relay.Close()
	a.relay = nil
}

// close gives everything back but the object. It waits for the peer's notices to be handled.
func (a *attachment) close() {
	a.relay.Close()
	a.peer.Close()
	if a.pipe >= 0 {
		shm.CloseFDs([]int{a.pipe})
		a.pipe = -1
	}
}

// leavers are rows whose writers have ended, and which may not be read to the end yet.
type leavers [(kind.OthersLanes + 64) / 64]uint64

func (s *leavers) add(bit int)    { s[bit/64] |= 1 << (bit % 64) }
func (s *leavers) remove(bit int) { s[bit/64] &^= 1 << (bit % 64) }
func (s *leavers) any() bool      { return s[0]|s[1] != 0 }

// noteEnd is called for a lane that was marked.
func (q *core) noteEnd(l *lane) {
	if l.att != nil && l.att.ended() {
		q.leavers.add(l.bit)
	}
}

// reap retires the lanes that have ended and are read to the end. The bell is locked, and nobody is
// in the middle of a lane. One that was overrun stays: it says why the queue ends.
func (q *core) reap() {
	for i := range q.leavers {
		for x := q.leavers[i]; x != 0; x &= x - 1 {
			l := q.lanes[i*64+bits.TrailingZeros64(x)]
			if l == q.out || l == q.errLane || l == q.overrun {
				continue
			}
			if q.bell.Knows(l.bit) {
				if head, tail := l.Level(); head != tail {
					continue
				}
			}
			q.retire(l)
		}
	}
}

// retire gives a row to the next writer, which begins where this one's reader stopped, in memory of
// its own.
func (q *core) retire(l *lane) {
	q.leavers.remove(l.bit)
	q.bell.Drop(l.bit)
	q.face.Forget(l.bit)
	row := &q.rows[l.bit]
	row.Peeked.Store(row.Head.Load()) // nothing of the next lane was handed out
	row.Retired.Add(1)
	row.Bell.Index.Store(0)
	row.Bell.Parked.Store(doorbell.Parked | q.rowFlags())
	q.lanes[l.bit] = nil
	q.home.retire(l.bit)
}

// rowFlags are what a row says beside parked because of the queue's state.
func (q *core) rowFlags() uint64 {
	if q.words.State.Load() == kind.StateOverrun {
		return kind.RowOverrun
	}
	return 0
}
