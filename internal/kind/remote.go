package kind

import (
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Memory of an endpoint that its senders reach by themselves.
const (
	FabricMostRemote  = 1 << 30 // bytes
	FabricMostRegions = 1 << 8  // keys that mean something at once
	FabricRegionBytes = 64
	FabricUseBytes    = 64
)

// What senders may do with a region, and what they did, in a slot with FabricReached.
const (
	FabricRead   = 1 << iota
	FabricWrite  // with or without data
	FabricAtomic // in a slot beside FabricRead, if it fetched, or FabricWrite
	FabricEvents // each of these is told in a slot, by who did it
	FabricLasts  // the owner writes it to a file if it is asked to
)

// FabricReachedBy reports whether a slot with FabricReached can say that. A write alone has data.
func FabricReachedBy(what, data uint64) bool {
	switch what {
	case FabricWrite:
		return true
	case FabricRead, FabricAtomic | FabricRead, FabricAtomic | FabricWrite:
		return data == 0
	}
	return false
}

// FabricKey makes the key of a region: generations grow from 1, so no key comes again.
func FabricKey(generation uint64, place int) uint64 {
	return generation*FabricMostRegions + uint64(place)
}

// FabricKeyPlace returns the place in the table of regions that a key can be in. It is false if
// there is no such key.
func FabricKeyPlace(key uint64) (place int, ok bool) {
	return int(key % FabricMostRegions), key >= FabricMostRegions
}

func (f Fabric) remoteSections() []shm.Section {
	return []shm.Section{section(SectFabricRegions, FabricMostRegions, FabricRegionBytes),
		section(SectFabricUses, f.Rows, FabricUseBytes), section(SectFabricRemote, 1, f.Remote)}
}

// Reach is the memory of an endpoint for regions, as its owner and its senders see it. Its parts
// are empty if the endpoint has none.
type Reach struct {
	Table []FabricRegion
	Uses  []FabricUse // by row
	Mem   FabricPool
}

// FabricReach lays them over an endpoint.
func FabricReach(obj *shm.Object, f Fabric) (r Reach, err error) {
	if f.Remote == 0 {
		return r, nil
	}
	mem, _, err := obj.Section(SectFabricRegions, 0)
	if err != nil {
		return r, err
	}
	r.Table = Overlays[FabricRegion](mem)[:FabricMostRegions]
	if mem, err = obj.MapWritable(SectFabricUses, 0); err != nil {
		return r, err
	}
	r.Uses = Overlays[FabricUse](mem)[:f.Rows]
	r.Mem, err = obj.MapWritable(SectFabricRemote, 0)
	return r, err
}

// Update changes an element of 1, 2, 4 or 8 bytes that lies there and is aligned, at once for all
// who do so, and returns what it was. f returns what fits the element. The memory begins with a
// page, and has whole words.
func (p FabricPool) Update(at, size int, f func(was uint64) uint64) (was uint64) {
	if size == 8 {
		w := &Overlays[Word](p[at : at+8])[0]
		for {
			if was = w.Load(); w.CompareAndSwap(was, f(was)) {
				return was
			}
		}
	}
	base := at &^ 3 // the word that it is in
	w := &Overlays[atomic.Uint32](p[base : base+4])[0]
	shift, mask := 8*(at-base), uint32(1<<(8*size)-1)
	for {
		whole := w.Load()
		was = uint64(whole >> shift & mask)
		part := uint32(f(was)) & mask << shift
		if w.CompareAndSwap(whole, whole&^(mask<<shift)|part) {
			return was
		}
	}
}
