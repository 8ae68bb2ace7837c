package cq

import (
	"runtime"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
)

// Read copies up to len(dst) completions and removes them from the queue (fi_cq_read). T is one of
// the formats, no larger than the queue's. It never blocks.
//
// With an empty dst it only drives progress, see [Queue.Bind], and returns 0, and ErrWouldBlock if
// the queue is empty. Otherwise it returns how many it copied, at least one, or 0 and:
// ErrWouldBlock if there is none; ErrAvail if an error entry is next, until ReadErr has taken it;
// ErrOverrun once an overrun queue is drained; a *LaneError, once, for a lane that was given up;
// ErrFormat, ErrClosed, or ErrBusy while entries handed out by Peek are not released. Entries ahead
// of an error are returned first.
//
// An entry that Read returned is gone: if the process dies before it acted on it, no successor
// sees it. Peek and Release keep it until it was acted on.
func Read[T Readable](q *Queue, dst []T) (int, error) { return readFrom(q, dst, nil) }

// ReadFrom is Read with the source of each entry, AddrNotAvail where it is not known
// (fi_cq_readfrom). Both slices must have the same length.
func ReadFrom[T Readable](q *Queue, dst []T, src []Addr) (int, error) {
	if len(dst) != len(src) {
		return 0, kind.Refuse("readfrom", q.name, "len(src)", len(src), len(dst), ErrInvalid)
	}
	return readFrom(q, dst, src)
}

// readFrom is what every read ends in. The two usual cases, nothing there and entries of one writer
// that the reader keeps up with, take no call beyond this one: whatever stands outside of drain and
// takeRest is inlined. (Methods of other packages are inlined in a generic function only if
// something that is not generic calls them too, hence the small methods of lane.)
func readFrom[T Readable](q *Queue, dst []T, src []Addr) (n int, err error) {
	shared := q.shared()
	if !shared {
		if !q.guard.enterAlone() {
			return 0, ErrClosed
		}
	} else if n, err = readOpen(q, dst, src); n > 0 || err != nil {
		return n, err
	} else if !q.enter() {
		return 0, q.guard.refusal()
	}
	bit, widest := q.only(), q.widest
	if bit == wake.Several {
		if bit = q.onlyOfMany(shared); bit == wake.Several {
			widest = 0 // no format fits the short cut, and the usual read compares once
		}
	}
	if len(dst) == 0 || bytesOf[T]() > widest {
		n, err = drain(q, dst, src)
	} else if bit == wake.Nobody {
		err = ErrWouldBlock
	} else if l := q.lanes[bit]; !l.waits() && !l.moved() && !l.overran() {
		err = ErrWouldBlock
	} else {
		if l.waiting() < uint64(len(dst)) {
			l.look()
		}
		span := l.span(len(dst))
		n = copyPlain(dst, span)
		if src != nil {
			copySources(src, span[:n])
		}
		if n > 0 {
			l.note()
			l.free(n)
		}
		if n < len(dst) && (n == 0 || n < len(span) || l.atStart()) {
			n, err = takeRest(q, l, dst, src, n)
		}
	}
	if shared {
		q.unlock()
		return n, err
	}
	q.guard.leaveAlone()
	return n, err
}

// readOpen drives feeders, and is a read of a shared queue without its lock, from the one lane that
// can have anything. Who leaves the queue's lock opens that lane's door, which is a lock of the
// lane: it holds up to where the lane is taken, or Shut while somebody is inside, who leaves by the
// store of what it is taken up to then. Who takes the queue's lock next shuts the door, or waits
// for who is inside. An empty queue is found so without going in. A result of nothing says nothing.
//
//	leaves the lock            reads                             takes the lock
//	taken = head               a = at, t = taken                 swap(taken, Shut), until it was not
//	at = changes of the bell   load tail, no marks, changes == a
//	                           tail == t, not closed: empty
//	                           else cas(taken, t, Shut), copy, store head, taken = head
//
// changes only grows, and taken is never ahead of the tail. So if changes is what it was at the
// note, no other lane can have had an entry without a mark since; the tail that equals taken, which
// was loaded before it, says that this lane was empty when the tail was loaded. All stores are
// releases; the loads stand in this order. internal/model explores it.
func readOpen[T Readable](q *Queue, dst []T, src []Addr) (n int, err error) {
	if q.feeders.driven() {
		q.feeders.progress()
	}
	l := q.open.Load()
	if l == nil || bytesOf[T]() > q.widest {
		return 0, nil
	}
	at, taken := l.at.Load(), l.taken.Load()
	if l.words.Tail.Load() == taken {
		if l.words.Overrun.Load() == 0 && q.quiet(at) &&
			!q.guard.isClosed() { // last: after a close the words are zeros
			err = ErrWouldBlock
		}
		runtime.KeepAlive(l) // and with it the memory of its words
		runtime.KeepAlive(q)
		return 0, err
	}
	if len(dst) == 0 || taken == wake.Shut || !q.quiet(at) ||
		!l.taken.CompareAndSwap(taken, wake.Shut) {
		return 0, nil
	}
	if l.waiting() < uint64(len(dst)) {
		l.look()
	}
	for {
		span := l.span(len(dst) - n)
		k := copyPlain(dst[n:], span)
		if src != nil {
			copySources(src[n:], span[:k])
		}
		if k > 0 {
			l.note()
			l.free(k)
			n += k
		}
		if n == len(dst) || k == 0 || k < len(span) || !l.atStart() {
			break
		}
	}
	ring.StoreRelease(&l.taken, l.cons.Head())
	return n, nil
}

// enter and leave stand around every other call that takes from the queue.
func (q *core) enter() bool {
	q.bell.Lock()
	if q.guard.enterSeen() {
		return true
	}
	q.bell.Unlock()
	return false
}

func (q *core) leave() {
	q.settle()
	q.unlock()
}

// unlock is leave for who settled, or had nothing to settle.
func (q *core) unlock() {
	if q.vacant != nil {
		q.show()
	}
	q.guard.leaveAlone()
	q.bell.Unlock()
}

// only is asked first by every read. It answers with a lane if a read has nothing to think of but
// the entries of that one.
func (q *core) only() int { return q.bell.Only() }

// onlyOfMany is only of a queue of more lanes than that looks at, or with feeders, which it drives;
// those of a shared queue were driven before its lock was taken.
func (q *core) onlyOfMany(driven bool) int {
	if !q.bell.Wide() {
		return wake.Several
	}
	if !driven {
		q.feeders.progress()
	}
	return q.bell.OnlyOfMany()
}

func (q *core) shared() bool         { return q.bell.Shared() }
func (q *core) quiet(at uint64) bool { return q.bell.Quiet(at) }

// settle keeps only from answering while there is something else to think of. With a writer whose
// death would not be noticed there is: only full rounds lead to a full look. It runs after whatever
// may change that; a lane that turns up makes the bell look closer by itself.
func (q *core) settle() {
	// Those the next read drives before it looks; of a shared queue each read does so.
	q.bell.Widen(!q.shared() && q.feeders.driven())
	if q.leavers.any() {
		q.reap()
	}
	if q.errLane != nil || q.out != nil || q.overrun != nil || len(q.broken) > 0 ||
		q.redelivered || q.leavers.any() || q.sliced.Load() || q.opt.NotifyFlagsOnly {
		q.bell.LookCloser()
		return
	}
	bit := q.only()
	if q.bell.Wide() {
		bit = q.bell.OnlyOfMany()
	}
	if bit >= 0 && q.lanes[bit].again() > 0 {
		q.bell.LookCloser()
	}
}

// takeRest goes on where n entries were taken from the one lane that can have anything: around the
// end of the ring, or at an entry that needs a closer look.
func takeRest[T Readable](q *Queue, l *lane, dst []T, src []Addr, n int) (int, error) {
	a, b := l.cons.Peek(len(dst) - n)
	rest, stop := copyEntries(q, l, dst[n:], tail(src, n), a, false)
	n += rest
	if !stop && len(b) > 0 {
		k, _ := copyEntries(q, l, dst[n:], tail(src, n), b, false)
		n, rest = n+k, rest+k
	}
	if rest > 0 {
		l.release(rest)
	}
	if n == 0 {
		return drain(q, dst, src)
	}
	q.settle()
	return n, nil
}

// drain takes from whatever lanes have something, or finds out what else there is.
func drain[T Readable](q *Queue, dst []T, src []Addr) (n int, err error) {
	if len(dst) == 0 {
		err = q.anything()
	} else {
		n, err = drainLanes(q, dst, src)
	}
	if q.opt.NotifyFlagsOnly {
		notifyFlagsOnly(dst[:n])
	}
	q.settle()
	return n, err
}

// anything looks for what a read would return, and is ErrWouldBlock if it finds nothing.
func (q *core) anything() error {
	if q.final || q.errLane != nil || q.out != nil || len(q.broken) > 0 || q.overrun != nil {
		return nil
	}
	q.bell.Take()
	for bit := q.bell.Next(0); bit >= 0; bit = q.bell.Next(bit + 1) {
		if head, tail := q.lanes[bit].Level(); head != tail {
			return nil
		}
	}
	return ErrWouldBlock
}

// drainLanes is R1 to R3: one round over the lanes that may have something, and more while a lane
// had more than its budget.
func drainLanes[T Readable](q *Queue, dst []T, src []Addr) (n int, err error) {
	switch {
	case bytesOf[T]() > q.widest:
		return 0, kind.Refuse("read", q.name, "format", formatOf[T](), q.opt.Format, ErrFormat)
	case q.final:
		return 0, ErrOverrun
	case q.errLane != nil:
		return 0, ErrAvail
	case q.out != nil:
		return 0, ErrBusy
	}
	q.takeMarks()
	q.redelivered = false
	var r round
	for again := true; again && n < len(dst); {
		again = false
		r = q.newRound()
		for bit := r.next(); bit >= 0; bit = r.next() {
			if !q.lanes[bit].news() {
				q.bell.Drained(bit)
				continue
			}
			if n > 0 && q.lanes[bit].again() > 0 {
				return q.result(n) // these do not mix
			}
			into := dst[n:]
			if q.from != nil { // one writer's only
				into = into[:q.ofOne(bit, len(into))]
			}
			got, more, stop := takeLane(q, q.lanes[bit], into, tail(src, n))
			n += got
			q.gave(bit, got)
			if stop || n == len(dst) {
				return q.result(n)
			}
			if n > 0 && q.from != nil {
				return q.result(n)
			}
			again = again || more
			if got == 0 {
				q.empty(bit)
			}
		}
	}
	if n > 0 {
		q.bell.Warm()
	} else if err := q.cool(r.looks); err != nil {
		return 0, err
	}
	return q.result(n)
}

func tail(src []Addr, n int) []Addr {
	if src == nil {
		return nil
	}
	return src[n:]
}

// result says what a read that copied n entries returns.
func (q *core) result(n int) (int, error) {
	switch {
	case n > 0:
		return n, nil
	case q.errLane != nil:
		return 0, ErrAvail
	case len(q.broken) > 0:
		if err := q.nextBroken(); err != nil {
			return 0, err
		}
	case q.overrun != nil:
		// Whoever had reserved room before it was told may still commit: too late.
		q.final = true
		return 0, ErrOverrun
	}
	return 0, ErrWouldBlock
}

// takeLane copies entries of one lane. more says that it stopped at the budget, stop that the read
// must end here: at an error entry, or where redelivered entries end.
func takeLane[T Readable](q *Queue, l *lane, dst []T, src []Addr) (n int, more, stop bool) {
	want := min(len(dst), q.budget(l.bit))
	again := l.again()
	if again > 0 {
		want = int(min(uint64(want), again))
	}
	a, b := l.cons.Peek(want)
	n, stop = copyEntries(q, l, dst, src, a, again > 0)
	if !stop && len(b) > 0 {
		var k int
		k, stop = copyEntries(q, l, dst[n:], tail(src, n), b, again > 0)
		n += k
	}
	if n > 0 {
		crash.At(crash.ReadCopied)
		l.release(n)
		crash.At(crash.ReadReleased)
		q.redelivered = again > 0
		stop = stop || again > 0
		more = n == want
	}
	return n, more, stop
}

// again returns how many entries from the head on an earlier reader may have seen.
func (l *lane) again() uint64 {
	if left := l.marked - l.cons.Head(); left <= uint64(l.cons.Cap()) {
		return left
	}
	return 0
}

// release gives n entries back to the writer and keeps the row's statistics.
func (l *lane) release(n int) {
	l.note()
	l.free(n)
}

// note and free are the halves of release, which are inlined where it would not be.
func (l *lane) note() {
	if waiting := l.cons.Waiting(); waiting > countLoad(&l.row.HighWater) {
		countStore(&l.row.HighWater, waiting)
	}
}

func (l *lane) free(n int) { l.cons.Release(n) }

// notEntry notes why a read stopped at a slot that holds no completion.
func (q *core) notEntry(l *lane, m Meta) {
	if m&kindMask == kindError {
		q.errLane = l
		return
	}
	q.giveUp(l, "entry kind", kind.Refuse("read", q.name, "kind", uint64(m&kindMask),
		"completion or error", ErrCorrupt))
}

// empty is called for a lane that had nothing: it leaves the candidates if it is parked, and is
// looked at more closely if it overran or broke.
func (q *core) empty(bit int) {
	l := q.lanes[bit]
	if err := l.cons.Err(); err != nil {
		q.giveUp(l, "index", err)
		return
	}
	if at := l.words.Overrun.Load(); at != 0 {
		switch {
		case q.opt.Overrun != OverrunQueue:
			q.giveUp(l, "overrun", kind.Refuse("read", q.name, "overrun", at, 0, ErrCorrupt))
			return
		case q.overrun == nil && l.cons.Len() == 0:
			q.promote(l)
		}
	}
	q.bell.Drained(bit)
}

// promote makes a lane's overrun the queue's: what the lane had published before is drained, every
// writer learns of it at its next post.
func (q *core) promote(l *lane) {
	q.overrun = l
	q.overran()
	q.words.State.Store(kind.StateOverrun)
	q.bell.SetFlags(kind.RowOverrun)
	for bit := range q.rows {
		if !q.bell.Knows(bit) {
			q.rows[bit].Bell.Parked.Store(kind.RowOverrun | 1)
		}
	}
}

// Redelivered reports whether what the last Read or Peek returned may have been seen by an
// earlier reader. Such entries never mix with others in one call, so that formats without flags
// can be told apart too. Only the goroutine that read may ask. In a shared queue another one may
// have read since: look at FlagRedelivered there, which Peek, Entries and reads with flags set.
func (q *Queue) Redelivered() bool {
	q.bell.Lock()
	defer q.bell.Unlock()
	return q.redelivered
}

// copyEntries copies one span, with marks, up to what is not a completion.
func copyEntries[T Readable](q *Queue, l *lane, dst []T, src []Addr, span []Entry,
	redelivered bool) (n int, stop bool) {
	if !redelivered {
		n = copyPlain(dst[:len(span)], span)
	}
	for i := n; i < len(span); i++ {
		e := &span[i]
		m := loadMeta(e)
		if m&kindMask != kindEntry {
			q.notEntry(l, m)
			stop = true
			break
		}
		copyAs(&dst[i], e)
		if redelivered || m&MetaNoContext != 0 {
			markEntry(&dst[i], m, redelivered)
		}
		n++
	}
	if src != nil {
		copySources(src[:n], span)
	}
	return n, stop
}

// laneBudget is how many entries one lane gives before the next one, in one read or in many small
// ones, so that a busy writer starves nobody. Order is kept per lane.
const laneBudget = 64

// coolLeast is what a read counts at least that found several lanes empty, in looks of
// [wake.Bell.Cool]: after 1024 such reads in a row all lanes are parked.
const coolLeast = 16

// cursor is the lane that the next read begins with, and what it gave of its budget.
type cursor struct{ bit, given int }

// round goes once over the lanes that may have something: from the cursor to the last, then from
// the first to the cursor.
type round struct {
	q     *core
	bit   int // the lane after the last one returned
	start int // -1 when the first half is over
	end   int
	looks int // lanes returned
}

// takeMarks makes candidates of the lanes whose writers marked them.
func (q *core) takeMarks() {
	q.bell.Take()
	crash.At(crash.TakeMarks)
	q.bell.Heat()
}

func (q *core) newRound() round {
	return round{q: q, bit: q.cursor.bit, start: q.cursor.bit, end: len(q.lanes)}
}

// next returns the next lane, or -1 at the end.
func (r *round) next() int {
	bit := r.q.bell.Next(r.bit)
	if (bit < 0 || bit >= r.end) && r.start >= 0 {
		r.end, r.start = r.start, -1
		bit = r.q.bell.Next(0)
	}
	if bit < 0 || bit >= r.end {
		r.bit = r.end
		return -1
	}
	r.bit = bit + 1
	r.looks++
	return bit
}

// budget returns how much a lane may give now, which is not nothing.
func (q *core) budget(bit int) int {
	if bit != q.cursor.bit {
		return laneBudget
	}
	return max(1, laneBudget-q.cursor.given)
}

// gave moves the cursor after a lane gave n entries.
func (q *core) gave(bit, n int) {
	if bit != q.cursor.bit {
		q.cursor = cursor{bit: bit}
	}
	if q.cursor.given += n; q.cursor.given >= laneBudget {
		q.cursor = cursor{bit: (bit + 1) % len(q.lanes)}
	}
}

// cool has lanes parked now and then. The read under way looked at so many.
func (q *core) cool(looks int) error {
	parked, err := q.bell.Cool(max(looks, coolLeast))
	if parked && err == nil && q.sliced.Load() {
		return q.findLanes(false) // nobody tells of a writer that died before it could mark its lane
	}
	return err
}

// show is for who leaves the lock of a shared queue.
func (q *core) show() {
	l := q.vacant
	if bit := q.bell.Only(); bit >= 0 {
		l = q.lanes[bit]
	} else if bit != wake.Nobody {
		return
	}
	if l != q.vacant {
		q.bell.OpenDoor(&l.taken, l.cons.Head())
	}
	if at := q.bell.Changes(); l.at.Load() != at {
		l.at.Store(at)
	}
	if q.open.Load() != l {
		q.open.Store(l)
	}
}
