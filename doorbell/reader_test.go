package doorbell

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// reader is what a completion queue does with a bell, without the queue: it drains lanes and
// checks that each entry comes once and in order.
type reader struct {
	*Bell
	q      *queue
	cons   []*ring.Consumer[uint64]
	level  func(bit int) // a test's hook into Source.Level
	count  atomic.Uint64 // entries read
	cooled uint64        // how often lanes that were hot were parked
	broken error
}

type readerOptions struct {
	order  ring.Order
	shared bool
	face   *Face
	gen    uint16
	lazy   bool // lanes become known by their first mark
	// fake is a capacity that the bell is told instead of the true one.
	fake uint64
}

// source is one lane as the bell sees it.
type source struct {
	r   *reader
	bit int
}

func (s source) Level() (head, tail uint64) {
	if s.r.level != nil {
		s.r.level(s.bit)
	}
	head, tail = s.r.cons[s.bit].Head(), s.r.cons[s.bit].Tail()
	if s.r.cons[s.bit].Err() != nil {
		tail = max(tail, head+1)
	}
	return head, tail
}

func (s source) Solicited() uint64 { return s.r.q.sol(s.bit).Load() }

func newReader(q *queue, o readerOptions) *reader {
	r := &reader{q: q}
	for bit := range q.lanes {
		r.cons = append(r.cons, ring.NewConsumer(q.tail(bit), q.head(bit), q.slots(bit),
			q.head(bit).Load()))
	}
	config := func(bit int) LaneConfig {
		c := LaneConfig{Row: q.row(bit), Source: source{r, bit}, Capacity: laneSlots,
			ReaderPays: o.order == ring.Release}
		if o.fake != 0 {
			c.Capacity = o.fake
		}
		return c
	}
	r.Bell = NewBell(Config{Arm: q.arm, Hints: q.hints, Lanes: q.lanes, Generation: o.gen,
		Face: o.face, Shared: o.shared,
		Open: func(bit int) (LaneConfig, bool) { return config(bit), bit < q.lanes }})
	for bit := range q.lanes {
		if !o.lazy {
			r.Add(bit, config(bit))
		}
	}
	return r
}

// read is R1 to R3 of a read that takes up to limit entries.
func (r *reader) read(limit int) (n int) {
	r.Take()
	r.Heat()
	for bit := r.Next(0); bit >= 0 && n < limit; bit = r.Next(bit + 1) {
		n += r.drain(bit, limit-n)
	}
	r.count.Add(uint64(n))
	return n
}

func (r *reader) drain(bit, limit int) (n int) {
	c := r.cons[bit]
	a, b := c.Peek(limit)
	at := c.Head()
	for _, span := range [][]uint64{a, b} {
		for _, v := range span {
			if v != at && r.broken == nil {
				r.broken = fmt.Errorf("lane %d: entry %d holds %d", bit, at, v)
			}
			at++
		}
	}
	if n = len(a) + len(b); n > 0 {
		c.Release(n)
	}
	if c.Err() != nil && r.broken == nil {
		r.broken = c.Err()
	}
	if n < limit {
		r.Drained(bit)
	}
	return n
}

// outcome is why a blocking read came back.
type outcome int

const (
	gotEntries outcome = iota
	gotSignal
	gotNothing // the deadline, or Stop
)

// sread is a blocking read: R1 to R9 until there is something.
func (r *reader) sread(limit int, w Wait) (int, outcome) {
	for {
		r.Lock()
		n := r.read(limit)
		if n > 0 || r.broken != nil {
			r.Unlock()
			return n, gotEntries
		}
		if slices.ContainsFunc(r.hot, func(w uint64) bool { return w != 0 }) {
			r.cooled++
		}
		more, err := r.Park()
		if err != nil {
			r.broken = err
		}
		over := w.DeadlineNs > 0 && spin.Now() >= w.DeadlineNs || w.Stop != nil && w.Stop()
		signaled := !more && !over && r.TakeSignal()
		r.Unlock()
		switch {
		case signaled:
			return 0, gotSignal
		case over:
			return 0, gotNothing
		case !more:
			r.Sleep(w)
		}
	}
}

// waiting is a wait for a number of entries in all lanes together; nothing is read.
func (r *reader) waiting(want uint64, w Wait) uint64 {
	for {
		r.Lock()
		r.Take()
		w.Takes = r.Takes()
		if _, err := r.Park(); err != nil {
			r.broken = err
		}
		sum, full := uint64(0), false
		for bit := r.Next(0); bit >= 0; bit = r.Next(bit + 1) {
			n := uint64(r.cons[bit].Len())
			sum += n
			full = full || n == laneSlots
		}
		r.Unlock()
		if sum >= want || full || r.broken != nil || w.DeadlineNs > 0 && spin.Now() >= w.DeadlineNs {
			return sum
		}
		w.Missing = want - sum
		r.Sleep(w)
	}
}
