package cq

import (
	"iter"
	"slices"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
)

// Peek returns up to n completions in place, without copying and without removing them. They all
// come from one lane and are followed by those that the next Peek returns, until Release. The
// slice is valid until then; the writer may be hostile and change what it points to, so read each
// field once. Errors are those of [Read]; ErrWouldBlock also means that this lane has no more while
// others may.
//
// What an earlier reader may have seen comes apart from the rest, as copies marked FlagRedelivered:
// a reader cannot write to the memory of every writer.
//
// What is handed out is one sequence of the queue, also of a shared one, and Release takes from its
// beginning whoever peeked: goroutines that peek side by side must release in the same order.
func (q *Queue) Peek(n int) ([]Entry, error) {
	es, _, err := q.peekOnce(n)
	return es, err
}

// peekOnce says also whether any entries are handed out now.
func (q *Queue) peekOnce(n int) (es []Entry, out bool, err error) {
	if q.feeders.driven() {
		q.feeders.progress()
	}
	if !q.enter() {
		return nil, false, q.guard.refusal()
	}
	es, err = q.peek(n)
	out = q.out != nil
	q.leave()
	return es, out, err
}

func (q *Queue) peek(n int) ([]Entry, error) {
	if n <= 0 {
		return nil, kind.Refuse("peek", q.name, "n", n, "1 or more", ErrInvalid)
	}
	if q.final {
		return nil, ErrOverrun
	}
	if q.errLane != nil {
		return nil, ErrAvail
	}
	if l := q.out; l != nil {
		if es, _ := q.peekLane(l, n); len(es) > 0 {
			return es, nil
		}
		return nil, ErrWouldBlock
	}
	q.takeMarks()
	r := q.newRound()
	for bit := r.next(); bit >= 0; bit = r.next() {
		es, stop := q.peekLane(q.lanes[bit], n)
		if len(es) > 0 {
			q.gave(bit, laneBudget)
			return es, nil
		}
		if stop {
			_, err := q.result(0)
			return nil, err
		}
		q.empty(bit)
	}
	_, err := q.result(0)
	return nil, err
}

// peekLane hands out entries of one lane, from the first that was not handed out yet. What is
// handed out is written to the row before it leaves, so that a successor can mark it.
func (q *Queue) peekLane(l *lane, n int) (es []Entry, stop bool) {
	if q.out == nil {
		l.peeked = l.cons.Head() // Read does not keep it up
	}
	left := l.marked - l.peeked
	again := left != 0 && left <= uint64(l.cons.Cap())
	if again {
		n = int(min(uint64(n), left))
	}
	es, _ = l.cons.PeekFrom(l.peeked, n)
	if again {
		es = markedCopy(es)
	}
	for i := range es {
		if m := loadMeta(&es[i]); m&kindMask != kindEntry {
			if i == 0 && q.out == nil {
				q.notEntry(l, m)
			}
			es, stop = es[:i:i], true
			break
		}
	}
	if len(es) == 0 {
		return nil, stop
	}
	q.redelivered = again
	crash.At(crash.PeekChosen)
	l.peeked += uint64(len(es))
	if !again {
		ring.StoreRelease(&l.row.Peeked, l.peeked)
		crash.At(crash.PeekStored)
	}
	q.out = l
	ring.StoreRelease(&q.guard.loans, l.peeked-l.cons.Head())
	return es, stop
}

// markedCopy returns what an earlier reader may have seen, in memory that can be written to.
func markedCopy(es []Entry) []Entry {
	es = slices.Clone(es)
	for i := range es {
		es[i].Flags |= FlagRedelivered
	}
	return es
}

// Release removes the first n entries that Peek handed out. More than those is ErrInvalid, and
// nothing is removed; after Close it is ErrClosed.
func (q *Queue) Release(n int) error {
	if !q.enter() {
		return q.guard.refusal()
	}
	err := q.release(n)
	q.leave()
	return err
}

func (q *Queue) release(n int) error {
	if n == 0 {
		return nil
	}
	l := q.out
	if l == nil || n < 0 {
		return kind.Refuse("release", q.name, "n", n, "what Peek handed out", ErrInvalid)
	}
	head := l.cons.Head()
	if l.peeked-head > uint64(l.cons.Cap()) { // another goroutine took them
		return q.lostHandOut()
	}
	if uint64(n) <= l.peeked-head {
		crash.At(crash.Releasing)
		l.release(n)
		crash.At(crash.Released)
		left := l.peeked - l.cons.Head()
		if left != l.peeked-head-uint64(n) { // the ring knows less than was handed out: the same
			return q.lostHandOut()
		}
		if left == 0 {
			q.out = nil
		}
		ring.StoreRelease(&q.guard.loans, left)
		return nil
	}
	return kind.Refuse("release", q.name, "n", n, "what Peek handed out", ErrInvalid)
}

// lostHandOut gives up what is handed out, after another goroutine was inside where there must be
// one: nothing of it could ever be released, and the queue never be closed.
func (q *Queue) lostHandOut() error {
	q.out = nil
	ring.StoreRelease(&q.guard.loans, 0)
	return errInUse
}

// Entries goes through the completions that are there, in place, and removes them when the loop's
// body has ended, also by break (start_poll, next_poll and end_poll of ibv_cq_ex). It ends when
// there are none left, or after most of them (0: no limit). What else stops it is the last pair,
// with a nil entry: ErrAvail for a failed operation, which [Queue.ReadErr] takes, or another error
// of [Queue.Peek]; ErrBusy while entries are handed out by Peek. An entry is valid until the body
// ends; one whose body panics stays in the queue.
//
// Entries are given back to their writer up to 32 at a time. If this process dies in between, a
// successor gets those of the last 32 again that were seen, and perhaps some that were not, marked
// FlagRedelivered.
func (q *Queue) Entries(most int) iter.Seq2[*Entry, error] {
	const batch = 32
	return func(yield func(*Entry, error) bool) {
		if err := q.nothingOut(); err != nil {
			yield(nil, err)
			return
		}
		for n := 0; most == 0 || n < most; {
			want := batch
			if most > 0 {
				want = min(batch, most-n)
			}
			es, err := q.Peek(want)
			if err == ErrWouldBlock {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			seen, more := q.visit(es, yield)
			if !more {
				most = -1
			}
			n += seen
			if err := q.Release(seen); err != nil {
				if most >= 0 {
					yield(nil, err)
				}
				return
			}
			if most < 0 {
				q.putBack()
				return
			}
		}
	}
}

// visit goes through entries that Peek handed out until the body ends the loop, and returns how
// many it saw. A body that leaves by a panic was not done with its entry: that one stays.
func (q *Queue) visit(es []Entry, yield func(*Entry, error) bool) (seen int, more bool) {
	done := false
	defer func() {
		if !done {
			_ = q.Release(seen - 1)
			q.putBack()
		}
	}()
	more = true
	for more && seen < len(es) {
		seen++
		more = yield(&es[seen-1], nil)
	}
	done = true
	return seen, more
}

func (q *Queue) nothingOut() error {
	if !q.enter() {
		return q.guard.refusal()
	}
	defer q.leave()
	if q.out != nil {
		return &Error{Pkg: kind.Pkg, Op: "iterate", Name: q.name, Err: ErrBusy,
			Hint: "release what Peek handed out"}
	}
	return nil
}

// putBack takes back what Peek handed out and nobody looked at.
func (q *Queue) putBack() {
	if !q.enter() {
		return
	}
	defer q.leave()
	l := q.out
	if l == nil {
		return
	}
	l.peeked = l.cons.Head()
	if l.again() == 0 {
		ring.StoreRelease(&l.row.Peeked, l.peeked)
	}
	q.out = nil
	ring.StoreRelease(&q.guard.loans, 0)
}

// ReadErr takes the error entry that is next (fi_cq_readerr) and fills e. ErrWouldBlock says that
// the next entry is not an error; ErrBusy that entries handed out by Peek are not released. As much
// of the error data as the capacity of e.ErrData allows is copied there; the memory is the
// caller's.
func (q *Queue) ReadErr(e *ErrorEntry) error {
	if !q.enter() {
		return q.guard.refusal()
	}
	err := q.readErr(e)
	q.leave()
	return err
}

func (q *Queue) readErr(e *ErrorEntry) error {
	if q.out != nil {
		return ErrBusy
	}
	l, s, detail := q.nextError()
	if l == nil {
		return ErrWouldBlock
	}
	l.fill(e, &s, &detail)
	if e.From != nil {
		*e.From, _ = q.origin(l)
	}
	q.errLane = nil
	l.release(1)
	return nil
}

func (l *lane) fill(e *ErrorEntry, s *Entry, d *kind.Record) {
	e.fill(s, d)
	if l.again() > 0 {
		e.Flags |= FlagRedelivered
		e.Redelivered = true
	}
}

// fill bounds what the writer says and copies it.
func (e *ErrorEntry) fill(s *Entry, d *kind.Record) {
	buf, n := d.CopyData(e.ErrData, d.Data[:])
	*e = ErrorEntry{Context: s.Context, Flags: s.Flags, Len: s.Len, Buf: s.Buf, Data: s.Data,
		Tag: s.Tag, Src: s.Src, OverrunBytes: d.OverrunBytes, Err: Errno(d.Err),
		ProvErrno: d.ProvErrno, ErrData: buf, ErrDataBytes: n, From: e.From}
	if s.Meta&MetaNoContext != 0 {
		e.Flags |= FlagNoContext
	}
}

// nextError returns the lane whose next entry is an error, or nil, with private copies of the entry
// and its record: everything that follows looks at these.
func (q *core) nextError() (l *lane, s Entry, d kind.Record) {
	if q.errLane == nil {
		q.findError()
	}
	if l = q.errLane; l == nil {
		return nil, s, d
	}
	a, _ := l.cons.Peek(1)
	if len(a) == 0 { // another goroutine took it, which may not be here
		q.errLane = nil
		return nil, s, d
	}
	return l, a[0], *l.detail.Record(l.cons.Head())
}

func (q *core) findError() {
	q.takeMarks()
	r := q.newRound()
	for bit := r.next(); bit >= 0; bit = r.next() {
		l := q.lanes[bit]
		if a, _ := l.cons.Peek(1); len(a) > 0 && loadMeta(&a[0])&kindMask == kindError {
			q.errLane = l
			return
		}
	}
}
