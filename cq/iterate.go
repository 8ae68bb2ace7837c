package cq

import (
	"iter"

	"github.com/shmring/shmring/ring"
)

// Entries goes through the completions that are there, in place, and removes each when the loop's
// body has ended, also by break (start_poll, next_poll and end_poll of ibv_cq_ex). It ends when
// there are none left, or after most of them (0: no limit). What else stops it is the last pair,
// with a nil entry: ErrAvail for a failed operation, which [Queue.ReadErr] takes, or another error
// of [Queue.Peek]; ErrBusy while entries are handed out by Peek. An entry is valid until the body
// ends; a successor gets the one at which this process died again, marked FlagRedelivered.
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
			if err == ErrAgain {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			seen := 0
			for seen < len(es) {
				seen++
				if !yield(&es[seen-1], nil) {
					most = -1 // no more
					break
				}
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

func (q *Queue) nothingOut() error {
	if !q.guard.enter() {
		return ErrClosed
	}
	defer q.guard.leave()
	q.bell.Lock()
	defer q.bell.Unlock()
	if q.out != nil {
		return &Error{Pkg: pkg, Op: "iterate", Name: q.name, Err: ErrBusy,
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
		ring.StoreRelease(&l.row.peeked, l.peeked)
	}
	q.out = nil
	ring.StoreRelease(&q.guard.loans, 0)
}
