package kind

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/shmring/shmring/shm"
)

// Bound says which values an attribute may have.
type Bound struct {
	Least    uint64
	Most     uint64
	PowerOf2 bool
	Step     uint64 // what it is a multiple of; 0: of anything
}

// Holds reports whether a value is within the bound.
func (b Bound) Holds(v uint64) bool {
	return v >= b.Least && v <= b.Most && (!b.PowerOf2 || v&(v-1) == 0) &&
		(b.Step == 0 || v%b.Step == 0)
}

func (b Bound) String() string {
	s := fmt.Sprintf("%d to %d", b.Least, b.Most)
	switch {
	case b.Least == b.Most:
		s = fmt.Sprint(b.Least)
	case b.Most == anyWord:
		s = "any"
	}
	if b.PowerOf2 {
		s += ", a power of two"
	}
	if b.Step > 0 {
		s += fmt.Sprintf(", a multiple of %d", b.Step)
	}
	return s
}

const anyWord = ^uint64(0)

// Exactly is the bound of a value that is known.
func Exactly(n uint64) Bound { return Bound{Least: n, Most: n} }

// Attribute describes one word of the attributes in an object's header, which are fixed when it is
// created, under the header's checksum. Words that no attribute describes are 0.
type Attribute struct {
	Name string
	Bound
	What string // in docs/layout.md
}

// Attributes are those of a kind, in the order of their words.
type Attributes []Attribute

// Of returns the bound of a word.
func (a Attributes) Of(word int) Attribute {
	if word < len(a) {
		return a[word]
	}
	return Attribute{Name: fmt.Sprint("word ", word)}
}

// Wrong calls f for each attribute of an object that is not possible.
func (a Attributes) Wrong(h shm.Header, f func(word int, a Attribute, got uint64)) {
	for i, v := range h.Attrs {
		if at := a.Of(i); !at.Holds(v) {
			f(i, at, v)
		}
	}
}

// With returns the attributes with other bounds, in the order of their words.
func (a Attributes) With(bounds ...Bound) Attributes {
	out := append(Attributes(nil), a...)
	for i, b := range bounds {
		out[i].Bound = b
	}
	return out
}

// codec joins the attributes of a kind to the fields of what is made of them.
type codec[T any] []field[T]

type field[T any] struct {
	Attribute
	at func(*T) any // a *uint64, *uint32, *int or *bool
}

// attributes describes them.
func (c codec[T]) attributes() (all Attributes) {
	for _, f := range c {
		all = append(all, f.Attribute)
	}
	return all
}

// put writes the attributes of t.
func (c codec[T]) put(s *shm.Spec, t T) {
	for i, f := range c {
		switch p := f.at(&t).(type) {
		case *uint64:
			s.Attrs[i] = *p
		case *uint32:
			s.Attrs[i] = uint64(*p)
		case *int:
			s.Attrs[i] = uint64(*p)
		case *bool:
			if *p {
				s.Attrs[i] = 1
			}
		}
	}
}

// take reads the attributes of a header, if each is possible. The error says which are not.
func (c codec[T]) take(h shm.Header) (t T, err error) {
	var wrong []string
	c.attributes().Wrong(h, func(_ int, a Attribute, got uint64) {
		wrong = append(wrong, fmt.Sprintf("%s %d, possible is %v", a.Name, got, a.Bound))
	})
	if len(wrong) > 0 {
		return t, errors.New(strings.Join(wrong, "; "))
	}
	for i, f := range c {
		v := h.Attrs[i]
		switch p := f.at(&t).(type) {
		case *uint64:
			*p = v
		case *uint32:
			*p = uint32(v)
		case *int:
			*p = int(v)
		case *bool:
			*p = v == 1
		}
	}
	return t, nil
}

// Objects describes all that have attributes, in the order of their kinds.
var Objects = []struct {
	Name string
	Kind shm.Kind
	Attributes
}{
	{"queue", shm.KindQueue, QueueAttributes(false)},
	{"event queue", shm.KindEvents, QueueAttributes(true)},
	{"lane", shm.KindLane, LaneAttributes},
	{"bell", shm.KindBell, BellAttributes},
	{"counter", shm.KindCounter, CounterAttributes},
	{"address vector", shm.KindAddresses, AddressAttributes},
	{"UMEM", shm.KindUMEM, UMEMAttributes},
	{"capture", shm.KindCapture, captureCodec.attributes()},
	{"fabric endpoint", shm.KindFabric, FabricAttributes},
	{"outbox of a fabric endpoint", shm.KindOutbox, OutboxAttributes},
	{"group of fabric endpoints", shm.KindGroup, GroupAttributes},
	{"status page of a device", shm.KindRegion, PageAttributes},
}

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
		got.Offset, got.Align, w.Offset, w.Align = 0, 0, 0, 0 // old objects have other places
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

// Files in the directory of a queue, beside its lanes.
const (
	ReaderFile = "reader"
	FifoFile   = "wake"
)

const (
	lanePrefix = "lane-"
	laneFormat = lanePrefix + "%04d"
)

// LaneFile is the name of the lane that a row has.
func LaneFile(row int) string { return fmt.Sprintf(laneFormat, row) }

// IsLane reports whether a file counts as a lane, though no row may have one of that name.
func IsLane(file string) bool { return strings.HasPrefix(file, lanePrefix) }

// IsQueueObject reports whether a file counts as an object of a queue.
func IsQueueObject(file string) bool { return file == ReaderFile || IsLane(file) }

// LaneRow returns the row of a lane by the name of its file.
func LaneRow(file string) (row int, ok bool) {
	if _, err := fmt.Sscanf(file, laneFormat, &row); err != nil || row < 1 {
		return 0, false
	}
	return row, LaneFile(row) == file
}

// BellName is the name of a bell beside the queues.
func BellName(u shm.UUID) string { return shm.BellPrefix + u.String() }

// section is a section of n elements whose words mean what this version says.
func section[N int | uint64](k shm.SectionKind, n, elem N) shm.Section {
	return shm.Section{Kind: k, Length: uint64(n) * uint64(elem), ElemSize: uint64(elem),
		Capacity: uint64(n), LayoutHash: LayoutVersion}
}

// LayoutHash condenses a description of an element's layout ("ctx u64, flags u64, …") into the
// number that is stored and compared: peers that compute different numbers must not share memory.
func LayoutHash(layout string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(layout)) // a hash never fails
	return h.Sum64()
}
