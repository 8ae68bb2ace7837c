package cq

import (
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
	if q.driven() {
		q.progress()
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
