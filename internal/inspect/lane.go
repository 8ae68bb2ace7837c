package inspect

import (
	"fmt"

	"github.com/shmring/shmring/internal/kind"
)

// indices checks the words of a lane against its row, and the entries in between. c is of the
// object that has the lane, which for lane 0 is the reader's.
//
// Each pair of words is loaded in the order in which what must hold between them does, for words
// that only grow: what may not be beyond the other one first.
func (k *queueCheck) indices(c *checker, row int) {
	m, err := kind.LaneOf[kind.Slot](c.obj, row, k.opt)
	if err != nil {
		return
	}
	r, w, size := &k.rows[row], m.Words, uint64(k.opt.Capacity)
	if k.alone {
		epochs := k.epochs(w)
		k.own(c, w, epochs, w.Tail.Load())
		return
	}
	peeked, sol, failed, overrun := r.Peeked.Load(), w.Sol.Load(), w.Err.Load(), w.Overrun.Load()
	epochs := k.epochs(w)
	head, tail, still := uint64(0), uint64(0), false
	for range kind.LevelTries {
		head, tail = r.Head.Load(), w.Tail.Load()
		if still = r.Head.Load() == head; still {
			break
		}
	}
	inRow := uint64(row)*kind.RowBytes + kind.RowOffIndex
	switch {
	case !still:
		c.busy = true
		return
	case head > tail:
		k.hdr.bad("row.head", kind.SectRows, inRow, head, fmt.Sprintf("at most the tail, %d", tail))
		return
	case tail-head > size:
		c.bad("lane.tail", kind.SectLane, 0, tail, fmt.Sprintf("%d to %d", head, head+size))
		return
	case peeked > tail:
		k.hdr.bad("row.peeked", kind.SectRows, inRow+8, peeked, fmt.Sprintf("at most %d", tail))
	}
	if sol > head+size {
		c.bad("lane.solicited", kind.SectLane, 8, sol, fmt.Sprintf("at most %d", head+size))
	}
	if failed > head+size {
		c.bad("lane.error", kind.SectLane, 16, failed, fmt.Sprintf("at most %d", head+size))
	}
	if overrun > tail+1 || overrun != 0 && k.opt.Overrun != kind.MayOverrun {
		c.bad("lane.overrun", kind.SectLane, 264, overrun, "0, or where a queue that may overrun did")
	}
	k.own(c, w, epochs, tail)
	k.entries(c, &m, r, head, tail)
}

// own checks words of a lane that are held against others of it only. The tail was loaded last.
func (k *queueCheck) own(c *checker, w *kind.LaneWords, epochs [kind.LaneEpochs]epochView,
	tail uint64) {
	if o := w.Order.Load(); o > kind.OrderRelease {
		c.bad("lane.order", kind.SectLane, 256, o, "0 or 1")
	}
	now := c.obj.Generation()
	for i, e := range epochs {
		at := 384 + 16*uint64(i)
		if e.generation > now || e.generation != 0 && e.generation%kind.LaneEpochs != uint64(i) {
			c.bad("lane.epoch", kind.SectLane, at, e.generation,
				fmt.Sprintf("at most %d, in its place", now))
		} else if e.generation != 0 && e.start > tail {
			c.bad("lane.epoch", kind.SectLane, at+8, e.start, fmt.Sprintf("at most %d", tail))
		}
	}
}

type epochView struct{ generation, start uint64 }

// epochs are those that a writer is not just writing.
func (k *queueCheck) epochs(w *kind.LaneWords) (out [kind.LaneEpochs]epochView) {
	for i := range w.Epochs {
		e := &w.Epochs[i]
		g := e.Generation.Load()
		s := e.Start.Load()
		if e.Generation.Load() == g {
			out[i] = epochView{g, s}
		}
	}
	return out
}

// entries checks those that are published and not given back. A writer uses a place again only when
// that happened: so what is wrong counts if the head is still not past it.
func (k *queueCheck) entries(c *checker, m *kind.Lane[kind.Slot], r *kind.RowWords, head,
	tail uint64) {
	for at := head; at < tail; at++ {
		i := at & uint64(k.opt.Capacity-1)
		before := len(c.found)
		k.entry(c, m, at, i)
		if r.Head.Load() > at {
			c.found = c.found[:before]
		}
	}
}

func (k *queueCheck) entry(c *checker, m *kind.Lane[kind.Slot], at, i uint64) {
	e := kind.LoadLine(&m.Slots[i])
	off := i*kind.SlotBytes + 56
	if e.Seq() != uint32(at) {
		c.bad("slot.sequence", kind.SectSlots, off, e.Seq(), uint32(at))
		return
	}
	what := e.Meta & kind.SlotKindMask
	if what != kind.SlotEntry && what != kind.SlotError {
		c.bad("slot.kind", kind.SectSlots, off, what, "1 or 2")
		return
	}
	if marks := e.Meta &^ (kind.SlotKindMask | kind.SlotMarks | 0xffffffff<<32); marks != 0 {
		c.bad("slot.marks", kind.SectSlots, off, fmt.Sprintf("%#x", marks), 0)
	}
	room := m.Detail.Stride - kind.DetailHeaderBytes
	if what == kind.SlotError {
		d := kind.LoadLine(m.Detail.Record(at))
		if d.DataBytes > room {
			c.bad("detail.data", kind.SectErrors, i*m.Detail.Stride+16, d.DataBytes,
				fmt.Sprintf("at most %d", room))
		}
	} else if k.opt.Events && e.Len > room {
		c.bad("slot.payload", kind.SectSlots, i*kind.SlotBytes+16, e.Len, fmt.Sprintf("at most %d", room))
	}
}
