package device

import (
	"testing"

	"github.com/shmring/shmring/shm"
)

// TestCheckPage: each invariant of a status page has a word that breaks it.
func TestCheckPage(t *testing.T) {
	p, err := newPage(4, 2, 1)
	must(t, err)
	defer func() { must(t, p.close()) }()
	c := p.counts
	set := func(begun, ended, received, returned uint64) {
		c[countBegun].Store(begun)
		c[countEnded].Store(ended)
		c[countReceived].Store(received)
		c[countReturned].Store(returned)
	}
	_, s, err := p.obj.Section(sectionCounts, 0)
	must(t, err)
	for _, k := range []struct {
		begun, ended, received, returned uint64
		found                            string
		word                             uint64
	}{
		{begun: 3, ended: 3, received: 9, returned: 5},
		{begun: 3, ended: 4, received: 9, returned: 5, found: "device.update", word: countEnded},
		{begun: 3, ended: 3, received: 9, returned: 10, found: "device.returned", word: countReturned},
		{begun: 3, ended: 3, received: 9, returned: 4, found: "device.frames", word: countReceived},
		{begun: 4, ended: 3, received: 9, returned: 10}, // in an update
	} {
		set(k.begun, k.ended, k.received, k.returned)
		got := Check(p.obj)
		if k.found == "" {
			if len(got) > 0 {
				t.Errorf("%+v: %+v", k, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Invariant != k.found || got[0].Offset != s.Offset+8*k.word ||
			got[0].Within != 8*k.word || got[0].Section != "counts" {
			t.Errorf("%+v: %+v", k, got)
		}
	}
	if !IsStatusPage(p.obj) {
		t.Error("it is no status page")
	}
	other, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion, Sections: []shm.Section{
		{Kind: sectionDone, Length: 64}, {Kind: sectionCounts, Length: 64}}}, nil)
	must(t, err)
	defer func() { must(t, other.Close()) }()
	if got := Check(other); len(got) != 1 || got[0].Invariant != "device.layout" {
		t.Errorf("%+v", got)
	}
}
