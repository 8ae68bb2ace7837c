package status

import (
	"fmt"

	"github.com/shmring/shmring/shm"
)

// Invariants returns what holds of an endpoint's object, beyond what holds of every object.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "endpoint.layout", Exact: true, What: "the sections are those of an endpoint"},
		{Name: "endpoint.info", Exact: true, What: "what it says of itself is possible"},
	}
}

// Check returns what of that does not hold. It is called while the object is mapped for reading,
// inside [shm.Guard]; the endpoint may count meanwhile.
func Check(obj *shm.Object) []shm.Violation {
	bad := func(name, section string, base, within uint64, err error) []shm.Violation {
		return []shm.Violation{{Invariant: name, Section: section, Offset: base + within,
			Within: within, Got: fmt.Sprint(err), Want: "what an endpoint writes"}}
	}
	for i, want := range spec(obj.Header().UUID).Sections {
		_, got, err := obj.Section(want.Kind, want.ID)
		if err == nil && (got.Length != want.Length || got.LayoutHash != want.LayoutHash) {
			err = corrupt(obj, "section", got.LayoutHash)
		}
		if err != nil {
			return bad("endpoint.layout", "header", 0, 0x180+64*uint64(i), err)
		}
	}
	w, err := infoOf(obj)
	if err != nil {
		return bad("endpoint.layout", "header", 0, 0x180, err)
	}
	private := *w
	if _, err := private.info(); err != nil {
		_, s, _ := obj.Section(sectInfo, 0)
		return bad("endpoint.info", "info", s.Offset, 0, err)
	}
	return nil
}
