package xdp

import "sync/atomic"

// simRing is the memory of one ring, with the kernel's end of it.
type simRing[E uint64 | Desc] struct {
	prodWord, consWord, flagsWord atomic.Uint32
	slots                         []E
}

func newSimRing[E uint64 | Desc](entries, start uint32) *simRing[E] {
	r := &simRing[E]{slots: make([]E, entries)}
	r.prodWord.Store(start)
	r.consWord.Store(start)
	return r
}

func (r *simRing[E]) words() ringWords {
	return ringWords{prod: &r.prodWord, cons: &r.consWord, flags: &r.flagsWord}
}

func (r *simRing[E]) mask() uint32 { return uint32(len(r.slots)) - 1 }

// used counts the entries between the indices.
func (r *simRing[E]) used() uint32 { return r.prodWord.Load() - r.consWord.Load() }

func (r *simRing[E]) room() int { return len(r.slots) - int(r.used()) }

func (r *simRing[E]) peek() (e E, ok bool) {
	if r.used() == 0 {
		return e, false
	}
	return r.slots[r.consWord.Load()&r.mask()], true
}

func (r *simRing[E]) pop() (e E, ok bool) {
	if e, ok = r.peek(); ok {
		r.consWord.Add(1)
	}
	return e, ok
}

// push makes an entry visible, if there is room.
func (r *simRing[E]) push(e E) bool {
	prod := r.prodWord.Load()
	if prod-r.consWord.Load() > r.mask() {
		return false
	}
	r.slots[prod&r.mask()] = e
	r.prodWord.Store(prod + 1)
	return true
}

func (r *simRing[E]) wakeup(on bool) {
	if on {
		r.flagsWord.Or(needWakeup)
		return
	}
	r.flagsWord.And(^uint32(needWakeup))
}
