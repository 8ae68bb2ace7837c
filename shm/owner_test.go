package shm

import (
	"slices"
	"sync"
	"testing"
)

// A record that is replaced all the time is read whole or not at all.
func TestOwnerNeverTorn(t *testing.T) {
	page := make([]byte, headerBytes)
	record := func(n uint64) Owner {
		o := Owner{PID: int(n%1000) + 1, PIDNS: n, StartTicks: n, State: StateOwned,
			ClaimedNs: int64(n), Generation: n, Program: n}
		le.PutUint64(o.BootID[:8], n)
		le.PutUint64(o.BootID[8:], n)
		return o
	}
	storeOwner(page, record(1))
	const rounds = 300_000 // long enough for the writer to lose its CPU inside of a store
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(2); n < rounds; n++ {
			storeOwner(page, record(n))
		}
	})
	whole := 0
	for range rounds {
		if o, ok := loadOwner(page); ok {
			whole++
			if o != record(o.Generation) {
				t.Fatalf("torn: %+v", o)
			}
		}
	}
	wg.Wait()
	if o, ok := loadOwner(page); !ok || o != record(rounds-1) {
		t.Fatalf("at the end: %+v, %v", o, ok)
	}
	if whole == 0 {
		t.Error("never read a whole record")
	}
}

// A writer that stops after any store leaves the record of before, or the new one.
func TestOwnerHalfWritten(t *testing.T) {
	page := make([]byte, headerBytes)
	old := Owner{PID: 1, State: StateReleased, Generation: 5}
	storeOwner(page, old)
	next := ownerSlot(word(page, offTurn).Load() + 1)
	for off := 0; off < ownEnd; off += 8 {
		word(page, next+off).Store(^uint64(0))
		if got, ok := loadOwner(page); !ok || got != old {
			t.Fatalf("after the store at %#x: %+v, %v", off, got, ok)
		}
	}
}

// A version that does not know of programs leaves that of the owner before the last in its slot.
func TestOwnerWithoutProgram(t *testing.T) {
	page := make([]byte, headerBytes)
	for n := range uint64(3) {
		storeOwner(page, Owner{PID: 1, State: StateOwned, Generation: n + 1, Program: n + 7})
	}
	if o, ok := loadOwner(page); !ok || o.Program != 9 {
		t.Errorf("%+v", o)
	}
	slot := ownerSlot(word(page, offTurn).Load())
	word(page, slot+ownGen).Store(4)
	if o, ok := loadOwner(page); !ok || o.Program != 0 {
		t.Errorf("taken for that of another owner: %+v", o)
	}
}

func TestOwnerDamaged(t *testing.T) {
	for name, o := range map[string]Owner{
		"pid 0":   {State: StateOwned},
		"pid big": {PID: 1 << 30, State: StateOwned},
		"state":   {PID: 1, State: 3},
	} {
		page := make([]byte, headerBytes)
		storeOwner(page, o)
		if got, ok := loadOwner(page); ok || got != (Owner{}) {
			t.Errorf("%s: accepted %+v", name, got)
		}
	}
}

func TestParseStat(t *testing.T) {
	const tail = " S 1 2 3 4 5 4194308 7 8 9 10 11 12 13 14 15 16 17 18 4711 0"
	for text, want := range map[string]bool{
		"12 (sh)" + tail:         true,
		"12 (a) R (b) 7)" + tail: true,
		"12 (sh) S 1":            false,
		"":                       false,
		"12 (sh" + tail:          false,
	} {
		p, ok := parseStat([]byte(text))
		if ok != want || ok && (p.startTicks != 4711 || !p.exiting()) {
			t.Errorf("%q: %+v, %v", text, p, ok)
		}
	}
}

func TestUUIDText(t *testing.T) {
	u := NewUUID()
	got, ok := parseUUID(u.String())
	if !ok || got != u || u == (UUID{}) || u == NewUUID() {
		t.Fatal(u, got, ok)
	}
	for _, bad := range []string{"", "x", u.String() + "0", "0011223344556677-8899-aabb-ccddeeff00",
		"zz112233-4455-6677-8899-aabbccddeeff"} {
		if _, ok := parseUUID(bad); ok {
			t.Errorf("%q parses", bad)
		}
	}
}

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
