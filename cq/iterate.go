package cq

import (
	"iter"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
)

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
	if !q.guard.enter() {
		return q.guard.refusal()
	}
	defer q.guard.leave()
	q.bell.Lock()
	defer q.bell.Unlock()
	if q.out != nil {
		return &Error{Pkg: kind.Pkg, Op: "iterate", Name: q.name, Err: ErrBusy,
			Hint: "release what Peek handed out"}
	}
	return nil
}

// putBack takes back what Peek handed out and nobody looked at.
func (q *Queue) putBack() {
	if !q.guard.enter() {
		return
	}
	defer q.guard.leave()
	q.bell.Lock()
	defer q.bell.Unlock()
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
