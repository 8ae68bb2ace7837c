package cq

import (
	"errors"
	"io/fs"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// lane is the reader's view of one writer's ring.
type lane struct {
	bit    int
	obj    *shm.Object // mapped read-only; nil for the reader's own lane
	cons   *ring.Consumer[Entry]
	detail kind.Details
	row    *kind.RowWords
	words  *kind.LaneWords
	peeked uint64 // up to where entries are handed out, while any are
	// marked is the index below which a previous reader may have handed entries out.
	marked uint64
	notice place.Notice      // of its writer's death; changed under Queue.watches
	att    *place.Attachment // of a writer of another user
	// Of a shared queue: the door, see readOpen, and what the bell's changes were when it was opened.
	taken ring.Index
	at    atomic.Uint64
}

// Level implements wake.Source. A lane that was overrun or cannot be trusted has one entry
// more than it has, until the reader has found out.
func (l *lane) Level() (head, tail uint64) {
	head, tail = l.cons.Head(), l.cons.Tail()
	if l.cons.Err() != nil || l.words.Overrun.Load() != 0 {
		return head, max(tail, head+1)
	}
	return head, tail
}

// Solicited implements wake.Source. It needs no bound: it is only asked whether it lies beyond
// an index that the tail has passed, which says no more than a writer may say of any entry.
func (l *lane) Solicited() uint64 { return l.words.Sol.Load() }

// ownLane maps lane 0, which the reader's own library writes.
func (q *core) ownLane() error {
	l, err := q.mapLane(q.obj, 0)
	if err != nil {
		return err
	}
	// It has no writer yet. The one that comes may publish with release stores, and can come in
	// the middle of a read: the bell hears now that the reader pays.
	if !q.opt.WritersPay {
		l.words.Order.Store(kind.OrderRelease)
	}
	q.install(l)
	return nil
}

func (q *core) install(l *lane) {
	q.lanes[l.bit] = l
	q.bell.Add(l.bit, l.config(uint64(q.opt.Size)))
}

func (l *lane) config(capacity uint64) wake.LaneConfig {
	c := wake.LaneConfig{Row: &l.row.Bell, Source: l, Capacity: capacity}
	if l.att != nil {
		c.Rung = &l.words.Rung // its writer pays, whatever it says
	} else {
		c.ReaderPays = l.words.Order.Load() == kind.OrderRelease
	}
	return c
}

// mapLane lays the structures of a lane over the object that holds it. Nothing in it is trusted:
// geometry comes from the header that was checked when the object was opened.
func (q *core) mapLane(obj *shm.Object, bit int) (*lane, error) {
	m, err := kind.LaneOf[Entry](obj, bit, q.opt.attrs())
	if err != nil {
		return nil, err
	}
	l := &lane{bit: bit, row: &q.rows[bit], words: m.Words, detail: m.Detail}
	head, peeked := l.row.Head.Load(), l.row.Peeked.Load()
	if peeked-head > uint64(q.opt.Size) {
		peeked = head // nothing was handed out, or the row is broken: mark nothing
	}
	l.peeked, l.marked = head, peeked
	l.taken.Store(wake.Shut)
	l.cons = ring.NewConsumer(&m.Words.Tail, &l.row.Head, m.Slots, head)
	return l, nil
}

// openLane is the bell's question for a lane that was marked and is not mapped.
func (q *core) openLane(bit int) (wake.LaneConfig, bool) {
	if bit == 0 || bit >= len(q.lanes) || q.guard.isClosed() {
		return wake.LaneConfig{}, false
	}
	if l := q.lanes[bit]; l != nil { // given up before
		q.noteEnd(l)
		return wake.LaneConfig{}, false
	}
	l, err := q.openLaneFile(bit)
	if err != nil {
		q.refuseLane(bit, err)
		return wake.LaneConfig{}, false
	}
	q.lanes[bit] = l
	if l.att == nil {
		q.watch(l)
	} else {
		q.face.Listen(bit, l.att.Pipe)
		q.noteEnd(l)
	}
	return l.config(uint64(q.opt.Size)), true
}

// refuseLane notes why a lane that was marked cannot be mapped. One that never will be is reported
// once, however often it is marked.
func (q *core) refuseLane(bit int, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kind.ErrOtherQueue) {
		return
	}
	if kind.Damaged(err) {
		q.given.Add(1)
		_, a, _ := q.side.Open(bit)
		q.lanes[bit] = &lane{bit: bit, att: a}
		q.mute(q.lanes[bit].att)
		q.rows[bit].Bell.Parked.Store(kind.RowPoisoned | wake.Parked)
	}
	q.breaks.Lock()
	defer q.breaks.Unlock()
	if kind.Starved(err) && (!q.askAgain(bit) || slices.ContainsFunc(q.broken, kind.Starved)) {
		return // what is to be read says so already
	}
	if !kind.Damaged(err) && len(q.broken) >= len(q.lanes) {
		return // its writer marks it again and again
	}
	q.broken = append(q.broken, &LaneError{Lane: bit, Field: "object", Err: err})
}

func (q *core) openLaneFile(bit int) (*lane, error) {
	obj, a, err := q.side.Open(bit)
	if err != nil {
		return nil, err
	}
	if q.vacant != nil {
		obj.Outlast()
	}
	l, err := q.mapLane(obj, bit)
	if err != nil {
		return nil, err
	}
	if l.obj, l.att = obj, a; a != nil {
		l.inherit()
	}
	return l, nil
}

// laneMarked is called for each known lane whose ready bit was taken: another writer may have
// taken the lane over since, or it overran.
func (q *core) laneMarked(bit int) {
	l := q.lanes[bit]
	if l != nil && l.words != nil && q.opt.Overrun == OverrunQueue && l.overran() {
		q.overran()
	}
	if l != nil && l.att != nil {
		q.noteEnd(l)
		return
	}
	if l == nil || l.obj == nil || l.notice.Follows(l.obj.Generation()) {
		return
	}
	q.watch(l)
	if q.bell.Knows(bit) {
		q.bell.Add(bit, l.config(uint64(q.opt.Size)))
	}
}

// watch arranges that the death of a lane's writer makes the reader look at the lane: whoever
// died between publishing and ringing cannot do so itself. While the kernel gives no notice the
// reader wakes up now and then, and asks again.
func (q *core) watch(l *lane) {
	q.watches.Lock()
	defer q.watches.Unlock()
	l.notice.Follow(l.obj.Owner(), func() { q.bell.Mark(l.bit) })
	if l.notice.Blind || q.noBarrier.Load() {
		q.unwatch(l.bit)
		return
	}
	q.unwatched = slices.DeleteFunc(q.unwatched, func(bit int) bool { return bit == l.bit })
	if len(q.unwatched) == 0 {
		q.sliced.Store(false)
		processWatch.remove(unwatchedLanes{q})
	}
}

// unwatch has a lane looked at now and then by whoever waits. The lock of watches is held.
func (q *core) unwatch(bit int) {
	q.sliced.Store(true)
	if !slices.Contains(q.unwatched, bit) {
		q.unwatched = append(q.unwatched, bit)
	}
	if q.face != nil || q.seated.Load() {
		processWatch.add(unwatchedLanes{q})
	}
}

// unwatchedLanes are marked now and then, for whoever waits on a descriptor, a set or a channel.
type unwatchedLanes struct{ q *core }

func (u unwatchedLanes) report() {
	u.q.watches.Lock()
	defer u.q.watches.Unlock()
	for _, bit := range u.q.unwatched {
		u.q.bell.Mark(bit)
	}
}

// barrierRefused is for a filter of system calls that came after the queue was opened. Without the
// barrier a lane may be parked while its writer, which saw it hot, has published and not marked it.
func (q *core) barrierRefused() {
	q.watches.Lock()
	defer q.watches.Unlock()
	q.noBarrier.Store(true)
	q.words.NoBarrier.Store(q.obj.Generation())
	for bit, l := range q.lanes {
		if l != nil && q.bell.Knows(bit) {
			q.unwatch(bit)
		}
	}
}

// findLanes makes every lane that exists a candidate: ready bits are hints.
func (q *core) findLanes(always bool) error {
	changes, err := q.side.Changes()
	if err != nil {
		return err
	}
	if always || changes != q.changes {
		q.changes = changes
		for bit := 1; bit < len(q.lanes); bit++ {
			if q.lanes[bit] == nil {
				q.bell.Consider(bit)
			}
		}
	}
	for bit, l := range q.lanes {
		switch {
		case l == nil:
		case q.bell.Knows(bit):
			q.bell.Consider(bit)
		case l.att != nil: // it was given up, and nobody hears when its writer leaves
			q.noteEnd(l)
		}
	}
	return nil
}

// giveUp drops a lane whose writer cannot be trusted, tells the writer, and keeps the reason for
// the next read to return.
func (q *core) giveUp(l *lane, field string, err error) {
	q.bell.Drop(l.bit)
	q.mute(l.att)
	l.row.Bell.Parked.Store(kind.RowPoisoned | wake.Parked)
	q.given.Add(1)
	e := &LaneError{Lane: l.bit, Field: field, Err: err}
	if l.att != nil {
		e.PID = l.att.Peer.PID
	} else if l.obj != nil {
		e.PID = l.obj.Owner().PID
	}
	q.breaks.Lock()
	defer q.breaks.Unlock()
	q.broken = append(q.broken, e)
}

// nextBroken takes the oldest reason, or nil.
func (q *core) nextBroken() error {
	q.breaks.Lock()
	defer q.breaks.Unlock()
	if len(q.broken) == 0 {
		return nil
	}
	err := q.broken[0]
	q.broken = q.broken[1:]
	return err
}

// askAgain has a lane marked again that could not be opened for want of descriptors or memory. The
// mark of its writer is taken, and there may never be another one. It reports whether this is news:
// no other lane waits for that. It runs under breaks, in a call of the queue's user.
func (q *core) askAgain(bit int) (news bool) {
	if slices.Contains(q.starved, bit) {
		return false
	}
	q.starved = append(q.starved, bit)
	q.later.Want()
	return len(q.starved) == 1
}

// starves reports whether there are such lanes.
func (q *core) starves() bool {
	q.breaks.Lock()
	defer q.breaks.Unlock()
	return len(q.starved) > 0
}

// markAgain marks them.
func (q *core) markAgain(time.Duration) {
	q.breaks.Lock()
	bits := q.starved
	q.starved = nil
	q.breaks.Unlock()
	for _, bit := range bits {
		q.bell.Mark(bit)
	}
}

// mute ends listening to a writer of another user that was given up. The bell is locked.
func (q *core) mute(a *place.Attachment) {
	if a != nil {
		q.face.Listen(a.Row, -1)
		q.side.Mute(a)
	}
}

// leavers are rows whose writers have ended, and which may not be read to the end yet.
type leavers [(kind.OthersLanes + 64) / 64]uint64

func (s *leavers) add(bit int)    { s[bit/64] |= 1 << (bit % 64) }
func (s *leavers) remove(bit int) { s[bit/64] &^= 1 << (bit % 64) }
func (s *leavers) any() bool      { return s[0]|s[1] != 0 }

// noteEnd is called for a lane that was marked.
func (q *core) noteEnd(l *lane) {
	if l.att != nil && l.att.Ended() {
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
	q.face.Listen(l.bit, -1)
	row := &q.rows[l.bit]
	row.Peeked.Store(row.Head.Load()) // nothing of the next lane was handed out
	row.Retired.Add(1)
	row.Bell.Index.Store(0)
	row.Bell.Parked.Store(wake.Parked | q.rowFlags())
	q.lanes[l.bit] = nil
	q.side.Retire(l.bit)
}

// rowFlags are what a row says beside parked because of the queue's state.
func (q *core) rowFlags() uint64 {
	if q.words.State.Load() == kind.StateOverrun {
		return kind.RowOverrun
	}
	return 0
}

// The words of a lane that readFrom looks at.
func (l *lane) waiting() uint64    { return l.cons.Waiting() }
func (l *lane) waits() bool        { return l.cons.Waiting() > 0 }
func (l *lane) moved() bool        { return l.cons.Moved() }
func (l *lane) overran() bool      { return l.words.Overrun.Load() != 0 }
func (l *lane) look()              { l.cons.Len() }
func (l *lane) span(n int) []Entry { return l.cons.Span(n) }
func (l *lane) atStart() bool      { return l.cons.Head()&uint64(l.cons.Cap()-1) == 0 }

// news reports whether a lane has entries, or an end to tell of.
func (l *lane) news() bool {
	return l.waits() || l.moved() || l.overran() || l.cons.Err() != nil
}
