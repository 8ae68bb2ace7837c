package shm

import (
	"slices"
	"testing"
)

// TestDeathCountedOnce: whoever notes a death may be killed over it at any store; the one who notes
// it again counts it once.
func TestDeathCountedOnce(t *testing.T) {
	for stops := range 4 {
		for _, slots := range []int{deathSlots, 1} { // an object's, and a seat's
			deathCountedOnce(t, stops, slots)
		}
	}
}

func deathCountedOnce(t *testing.T, stops, slots int) {
	t.Helper()
	generations := []uint64{1, 2, 5, 6, 7, 9, 10, 17, 65536, 65537, 65544, 131072}
	if stops != 1 { // then the tally left of 5, of all there are, is taken for this one's
		generations = slices.Insert(generations, 10, 65541)
	}
	page := make([]byte, headerBytes)
	log := deathLog{page, offDeaths, slots}
	for i, g := range generations {
		base := log.slot(g)
		before := append([]byte(nil), page[base:base+deathBytes]...)
		log.store(Owner{PID: 7, Generation: g})
		switch stops { // after how many of the first stores it was killed
		case 1:
			copy(page[base:], before)
			word(page, base+deadGen).Store(0)
		case 2:
			word(page, base+deadGen).Store(0)
		case 3: // before its own record, with this one whole
		}
		if stops > 0 {
			log.store(Owner{PID: 7, Generation: g})
		}
		d, ok := loadDeath(page, base)
		if !ok || d.Generation != g || d.PID != 7 || d.Count != uint64(i+1) {
			t.Errorf("killed after %d stores: %+v, %v, want number %d", stops, d, ok, i+1)
		}
	}
}

// TestDeathNeverTorn: whoever looks while deaths are recorded finds each with its own count.
func TestDeathNeverTorn(t *testing.T) {
	log := deathLog{make([]byte, headerBytes), offDeaths, 1}
	const total = 20_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		for g := uint64(1); g <= total; g++ {
			log.store(Owner{PID: 7, Generation: g})
		}
	}()
	for last := uint64(0); last < total; {
		for _, d := range log.load() {
			if d.Count != d.Generation || d.Generation < last {
				t.Fatalf("%d has count %d, after %d", d.Generation, d.Count, last)
			}
			last = d.Generation
		}
	}
	<-done
}
