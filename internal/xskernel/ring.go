package xskernel

import "sync/atomic"

// Ring is the memory of one ring, with the kernel's end of it.
type Ring[E uint64 | Desc] struct {
	Prod, Cons, Flags atomic.Uint32
	Slots             []E
}

// NewRing makes an empty ring of a power of two of entries, whose indices begin at start.
func NewRing[E uint64 | Desc](entries, start uint32) *Ring[E] {
	r := &Ring[E]{Slots: make([]E, entries)}
	r.Prod.Store(start)
	r.Cons.Store(start)
	return r
}

// Mask is what an index is taken modulo by.
func (r *Ring[E]) Mask() uint32 { return uint32(len(r.Slots)) - 1 }

// Used counts the entries between the indices.
func (r *Ring[E]) Used() uint32 { return r.Prod.Load() - r.Cons.Load() }

func (r *Ring[E]) room() int { return len(r.Slots) - int(r.Used()) }

func (r *Ring[E]) peek() (e E, ok bool) {
	if r.Used() == 0 {
		return e, false
	}
	return r.Slots[r.Cons.Load()&r.Mask()], true
}

// Pop takes the oldest entry.
func (r *Ring[E]) Pop() (e E, ok bool) {
	if e, ok = r.peek(); ok {
		r.Cons.Add(1)
	}
	return e, ok
}

// Push makes an entry visible, if there is room.
func (r *Ring[E]) Push(e E) bool {
	prod := r.Prod.Load()
	if prod-r.Cons.Load() > r.Mask() {
		return false
	}
	r.Slots[prod&r.Mask()] = e
	r.Prod.Store(prod + 1)
	return true
}

func (r *Ring[E]) wakeup(on bool) {
	if on {
		r.Flags.Or(NeedWakeup)
		return
	}
	r.Flags.And(^uint32(NeedWakeup))
}
