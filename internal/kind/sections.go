package kind

import (
	"fmt"

	"github.com/shmring/shmring/shm"
)

// WordsOf lays a T over a section, whose length a header may have wrong: everything in a header
// that was made by hand can pass its checksum.
func WordsOf[T any](obj *shm.Object, kind shm.SectionKind, id uint32) (*T, error) {
	mem, _, err := obj.Section(kind, id)
	if err != nil {
		return nil, err
	}
	t := Overlay[T](mem)
	if t == nil {
		return nil, Refuse("map", obj.Name(), "section length", len(mem), "room for its words",
			ErrCorrupt)
	}
	return t, nil
}

// RowsOf returns the rows of a reader object that has at least n of them.
func RowsOf(obj *shm.Object, n int) ([]RowWords, error) {
	mem, _, err := obj.Section(SectRows, 0)
	if err != nil {
		return nil, err
	}
	rows := Overlays[RowWords](mem)
	if len(rows) < n {
		return nil, Refuse("map", obj.Name(), "rows", len(rows), n, ErrCorrupt)
	}
	return rows, nil
}

// HasSections checks that an object has the sections that were asked for, of just that size: the
// structures laid over them are bounded here and nowhere else.
func HasSections(op, name string, h shm.Header, want shm.Spec) error {
	for _, w := range want.Sections {
		var got shm.Section
		for _, s := range h.Sections {
			if s.Kind == w.Kind && s.ID == w.ID {
				got = s
			}
		}
		got.Offset, got.Align = 0, 0
		if got != w {
			e := &shm.Error{Pkg: Pkg, Op: op, Name: name, Field: fmt.Sprintf("section %#x", uint32(w.Kind)),
				Got: got, Want: w, Err: ErrCorrupt}
			if got.LayoutHash = w.LayoutHash; got == w { // its words mean something else
				e.Err, e.Hint = shm.ErrVersion, "let all processes use one version of the library"
			}
			return e
		}
	}
	return nil
}
