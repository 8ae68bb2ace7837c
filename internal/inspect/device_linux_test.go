package inspect

import (
	"testing"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func checked(t *testing.T, spec shm.Spec, change func(*shm.Object)) []shm.Violation {
	t.Helper()
	obj := shmtest.Have(shm.CreateMemfd(spec, nil)).In(t)
	if change != nil {
		change(obj)
	}
	c := &checker{obj: obj}
	c.object("", nil)
	return c.found
}

// TestCheckUMEM: a UMEM is what it says, or a check says that it is not.
func TestCheckUMEM(t *testing.T) {
	good := kind.UMEM{Frames: 2, ChunkBytes: 2048, HeadroomBytes: 64}
	more := good.Spec("umem")
	more.Attrs[0] = 3 // frames
	odd := good.Spec("umem")
	odd.Attrs[2] = 65 // bytes of headroom
	for _, k := range []struct {
		spec  shm.Spec
		found string
		at    uint64
	}{
		{good.Spec("umem"), "", 0},
		{more, "umem.geometry", 0x100},
		{odd, "object.attributes", 0x110},
	} {
		got := checked(t, k.spec, nil)
		if k.found == "" && len(got) > 0 || k.found != "" && (len(got) != 1 ||
			got[0].Invariant != k.found || got[0].Offset != k.at) {
			t.Errorf("%+v, want %q at %#x", got, k.found, k.at)
		}
	}
}

// TestCheckPage: each invariant of a status page has a word that breaks it.
func TestCheckPage(t *testing.T) {
	for _, k := range []struct {
		begun, ended, received, returned uint64
		found                            string
		word                             uint64
	}{
		{begun: 3, ended: 3, received: 9, returned: 5},
		{begun: 3, ended: 4, received: 9, returned: 5, found: "device.update", word: kind.CountEnded},
		{begun: 3, ended: 3, received: 9, returned: 10, found: "device.returned",
			word: kind.CountReturned},
		{begun: 3, ended: 3, received: 9, returned: 4, found: "device.frames",
			word: kind.CountReceived},
		{begun: 4, ended: 3, received: 9, returned: 10}, // in an update
	} {
		var at uint64
		got := checked(t, kind.PageSpec(4, 2, 1), func(obj *shm.Object) {
			c, err := kind.PageCounts(obj)
			if err != nil || !kind.IsStatusPage(obj) {
				t.Fatal(err)
			}
			_, s, _ := obj.Section(kind.SectCounts, 0)
			at = s.Offset + 8*k.word
			c[kind.CountBegun].Store(k.begun)
			c[kind.CountEnded].Store(k.ended)
			c[kind.CountReceived].Store(k.received)
			c[kind.CountReturned].Store(k.returned)
		})
		if k.found == "" && len(got) > 0 || k.found != "" && (len(got) != 1 ||
			got[0].Invariant != k.found || got[0].Offset != at || got[0].Within != 8*k.word ||
			got[0].Section != "counts") {
			t.Errorf("%+v: %+v", k, got)
		}
	}
	short := shm.Spec{Kind: shm.KindRegion, Sections: []shm.Section{
		{Kind: kind.SectDone, Length: 64}, {Kind: kind.SectCounts, Length: 64}}}
	if got := checked(t, short, nil); len(got) != 1 || got[0].Invariant != "device.layout" {
		t.Errorf("%+v", got)
	}
}
