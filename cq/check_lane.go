package cq

import "fmt"

// indices checks the words of a lane against its row, and the entries in between. c is of the
// object that has the lane, which for lane 0 is the reader's.
//
// Each pair of words is loaded in the order in which what must hold between them does, for words
// that only grow: what may not be beyond the other one first.
func (k *queueCheck) indices(c *checker, row int) {
	m, err := laneMemory(c.obj, row, k.opt)
	if err != nil {
		return
	}
	r, w, size := &k.rows[row], m.words, uint64(k.opt.Size)
	if k.alone {
		epochs := k.epochs(w)
		k.own(c, w, epochs, w.tail.Load())
		return
	}
	peeked, sol, failed, overrun := r.peeked.Load(), w.sol.Load(), w.err.Load(), w.overrun.Load()
	epochs := k.epochs(w)
	head, tail, still := uint64(0), uint64(0), false
	for range levelTries {
		head, tail = r.head.Load(), w.tail.Load()
		if still = r.head.Load() == head; still {
			break
		}
	}
	inRow := uint64(row)*rowBytes + rowOffIndex
	switch {
	case !still:
		c.busy = true
		return
	case head > tail:
		k.hdr.bad("row.head", sectRows, inRow, head, fmt.Sprintf("at most the tail, %d", tail))
		return
	case tail-head > size:
		c.bad("lane.tail", sectLane, 0, tail, fmt.Sprintf("%d to %d", head, head+size))
		return
	case peeked > tail:
		k.hdr.bad("row.peeked", sectRows, inRow+8, peeked, fmt.Sprintf("at most %d", tail))
	}
	if sol > head+size {
		c.bad("lane.solicited", sectLane, 8, sol, fmt.Sprintf("at most %d", head+size))
	}
	if failed > head+size {
		c.bad("lane.error", sectLane, 16, failed, fmt.Sprintf("at most %d", head+size))
	}
	if overrun > tail+1 || overrun != 0 && k.opt.Overrun != OverrunQueue {
		c.bad("lane.overrun", sectLane, 264, overrun, "0, or where a queue that may overrun did")
	}
	k.own(c, w, epochs, tail)
	k.entries(c, &m, r, head, tail)
}

// own checks words of a lane that are held against others of it only. The tail was loaded last.
func (k *queueCheck) own(c *checker, w *laneWords, epochs [laneEpochs]epochView, tail uint64) {
	if o := w.order.Load(); o > orderRelease {
		c.bad("lane.order", sectLane, 256, o, "0 or 1")
	}
	now := c.obj.Generation()
	for i, e := range epochs {
		at := 384 + 16*uint64(i)
		if e.generation > now || e.generation != 0 && e.generation%laneEpochs != uint64(i) {
			c.bad("lane.epoch", sectLane, at, e.generation,
				fmt.Sprintf("at most %d, in its place", now))
		} else if e.generation != 0 && e.start > tail {
			c.bad("lane.epoch", sectLane, at+8, e.start, fmt.Sprintf("at most %d", tail))
		}
	}
}

type epochView struct{ generation, start uint64 }

// epochs are those that a writer is not just writing.
func (k *queueCheck) epochs(w *laneWords) (out [laneEpochs]epochView) {
	for i := range w.epochs {
		e := &w.epochs[i]
		g := e.generation.Load()
		s := e.start.Load()
		if e.generation.Load() == g {
			out[i] = epochView{g, s}
		}
	}
	return out
}

// entries checks those that are published and not given back. A writer uses a place again only when
// that happened: so what is wrong counts if the head is still not past it.
func (k *queueCheck) entries(c *checker, m *laneMem, r *rowWords, head, tail uint64) {
	for at := head; at < tail; at++ {
		i := at & uint64(k.opt.Size-1)
		before := len(c.found)
		k.entry(c, m, at, i)
		if r.head.Load() > at {
			c.found = c.found[:before]
		}
	}
}

func (k *queueCheck) entry(c *checker, m *laneMem, at, i uint64) {
	e := loadLine(&m.slots[i])
	off := i*slotBytes + 56
	if e.Meta.Seq() != uint32(at) {
		c.bad("slot.sequence", sectSlots, off, e.Meta.Seq(), uint32(at))
		return
	}
	kind := e.Meta & kindMask
	if kind != kindEntry && kind != kindError {
		c.bad("slot.kind", sectSlots, off, uint64(kind), "1 or 2")
		return
	}
	if marks := e.Meta &^ (kindMask | metaMarks | 0xffffffff<<32); marks != 0 {
		c.bad("slot.marks", sectSlots, off, fmt.Sprintf("%#x", uint64(marks)), 0)
	}
	room := m.detail.stride - detailHeaderBytes
	if kind == kindError {
		d := loadLine(m.detail.record(at))
		if d.dataBytes > room {
			c.bad("detail.data", sectErrors, i*m.detail.stride+16, d.dataBytes,
				fmt.Sprintf("at most %d", room))
		}
	} else if k.opt.events && e.Len > room {
		c.bad("slot.payload", sectSlots, i*slotBytes+16, e.Len, fmt.Sprintf("at most %d", room))
	}
}
