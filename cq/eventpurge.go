package cq

import (
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
)

// purge is what a queue knows of objects that were closed. What is asked for comes from any
// goroutine; what is done, by whoever reads.
type purge struct {
	due    atomic.Bool
	mu     sync.Mutex
	asked  map[FID]struct{}
	count  int        // entries that are marked
	marked [][]uint64 // by lane: a bit a slot, nil until needed
}

// maxPurges bounds how many closed objects are remembered until the next read.
const maxPurges = 1 << 16

// Purge drops every event and error event about an object that is in the queue now: no later read
// returns one, not even an event that was peeked at. Queues and memory regions of this process
// purge theirs when they are closed; an address vector leaves what tells of its operations. It may
// be called from anywhere; what is written about the object between the call and the next read may
// be dropped too. It fails with ErrFull if 65536 objects were purged since the last read.
func (e *EventQueue) Purge(id FID) error {
	p := &e.purge
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.guard.isClosed() {
		return ErrClosed
	}
	if len(p.asked) >= maxPurges {
		return &Error{Pkg: kind.Pkg, Op: "purge", Name: e.name, Err: ErrFull,
			Hint: "read the event queue"}
	}
	if p.asked == nil {
		p.asked = map[FID]struct{}{}
	}
	p.asked[id] = struct{}{}
	p.due.Store(true)
	return nil
}

// purgeNow applies what was asked for, before a descriptor is armed.
func (e *EventQueue) purgeNow() error {
	if !e.enter() {
		return e.guard.refusal()
	}
	e.applyPurges()
	e.leave()
	return nil
}

// applyPurges marks what is queued about the objects that were asked for. The marks are private
// and bounded by the queue's size; an entry's mark goes when the reader comes to it. It runs under
// the bell's lock.
func (e *EventQueue) applyPurges() {
	p, q := &e.purge, &e.core
	p.mu.Lock()
	asked := p.asked
	p.asked = nil
	p.due.Store(false)
	p.mu.Unlock()
	if p.marked == nil {
		p.marked = make([][]uint64, len(q.lanes))
	}
	q.bell.Take()
	_ = q.findLanes(true) // a lane that cannot be opened now shows nothing to purge either
	for bit, l := range q.lanes {
		if l == nil || l.cons == nil || !q.bell.Knows(bit) {
			continue
		}
		a, b := l.cons.Peek(l.cons.Cap())
		at := l.cons.Head()
		for _, span := range [2][]Entry{a, b} {
			for i := range span {
				if s := span[i]; isAsked(asked, &s) {
					e.mark(l, at)
				}
				at++
			}
		}
		e.skip(l)
	}
}

func isAsked(asked map[FID]struct{}, s *Entry) bool {
	_, ok := asked[eventFID(s)]
	return ok
}

func (e *EventQueue) mark(l *lane, at uint64) {
	m := &e.purge.marked[l.bit]
	if *m == nil {
		*m = make([]uint64, (l.cons.Cap()+63)/64)
	}
	i := at & uint64(l.cons.Cap()-1)
	if (*m)[i/64]&(1<<(i%64)) == 0 {
		(*m)[i/64] |= 1 << (i % 64)
		e.purge.count++
	}
}

// skip releases the marked entries from a lane's head on, so that the head of a lane is never one.
func (e *EventQueue) skip(l *lane) {
	m := e.purge.marked[l.bit]
	if m == nil {
		return
	}
	for l.cons.Len() > 0 {
		i := l.cons.Head() & uint64(l.cons.Cap()-1)
		if m[i/64]&(1<<(i%64)) == 0 {
			return
		}
		m[i/64] &^= 1 << (i % 64)
		e.purge.count--
		if e.pinned == l {
			e.pinned = nil
		}
		if e.errLane == l {
			e.errLane = nil
		}
		l.release(1)
	}
}
