package endpoint

import (
	"errors"
	"math"

	"github.com/shmring/shmring/cq"
)

// staged are completions of posted buffers that are published together.
type staged struct {
	entries  [64]cq.Entry
	n        int
	credited int    // of them hold a credit
	room     int    // for others
	count    int    // messages that are not counted yet, with or without a completion
	bytes    uint64 // of these
}

// freeRoom is how many completions the queue takes that hold no credit. One that may be overrun
// takes them all, and loses them as it says.
func (e *Endpoint) freeRoom() int {
	if e.overruns {
		return math.MaxInt32
	}
	return e.cfg.Receive.Free()
}

// stage ends a message that went well. With a credit there is always room.
func (e *Endpoint) stage(c *cq.Entry, op cq.Flags, credited bool) {
	s := &e.staged
	s.count++
	s.bytes += c.Len
	if e.rx.Wants(op) || c.Flags&cq.FlagMultiRecv != 0 {
		e.stageEntry(c, credited)
	}
}

// stageEntry adds an entry that ends no message, or whose message is counted.
func (e *Endpoint) stageEntry(c *cq.Entry, credited bool) {
	s := &e.staged
	if s.n == len(s.entries) {
		_ = e.commitStaged() // an error is found again by what is posted next
	}
	s.entries[s.n] = *c
	s.n++
	if credited {
		s.credited++
	} else {
		s.room--
	}
}

// stageUnknown ends a message whose source is not known with an error entry, in its order.
func (e *Endpoint) stageUnknown(c *cq.Entry, op cq.Flags) {
	_ = e.commitStaged()
	e.stats.UnknownSource++
	e.stats.Received++
	if e.rx.CompleteUnknown(c, op, e.sender()) != nil {
		e.stats.Abandoned++
	}
}

// commitStaged publishes what was staged, with one store.
func (e *Endpoint) commitStaged() error {
	s := &e.staged
	err := e.rx.Count(cq.FlagRecv, s.count, s.bytes)
	e.stats.Received += uint64(s.count)
	s.count, s.bytes = 0, 0
	for at := 0; at < s.n; {
		a, b, e2 := e.rx.Slots(s.n-at, s.credited)
		s.credited = 0
		if e2 == nil {
			n := copy(a, s.entries[at:s.n])
			n += copy(b, s.entries[at+n:s.n])
			at += n
			e2 = e.cfg.Receive.Commit(n)
		}
		if e2 != nil {
			e.stats.Abandoned += uint64(s.n - at)
			if !errors.Is(e2, cq.ErrOverrun) { // the queue tells its reader
				err = e2
			}
			break
		}
	}
	s.n, s.credited = 0, 0
	return err
}
