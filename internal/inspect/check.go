package inspect

import (
	"errors"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// Invariants returns those of queues and of what stands beside them, beyond [shm.Invariants].
//
// What is not among them, because a process that dies may leave it undone and nobody needs it: that
// a summary bit stands for every ready bit of a bell, that an index entry stands for every address
// while the owner of the vector lives or died, that the last solicited entry is marked so.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "object.name", Exact: true, What: "the header has the name of the object"},
		{Name: "object.attributes", Exact: true, What: "every attribute is possible for the kind"},
		{Name: "object.sections", Exact: true, What: "the sections are those that the kind has"},
		{Name: "object.seals", What: "nobody can truncate an object that has no name"},

		{Name: "queue.entry", Exact: true, What: "only a queue's own files are in its directory"},
		{Name: "queue.kind", Exact: true, What: "the reader's object is a queue's, a lane's a lane"},
		{Name: "queue.armed", Exact: true, What: "only known bits of the armed word are set"},
		{Name: "queue.state", Exact: true, What: "the state is one of those that there are"},
		{Name: "queue.face", Exact: true, What: "the reader's descriptor number is possible"},
		{Name: "queue.face_generation", Exact: true, What: "it is of no reader yet to come"},
		{Name: "queue.no_barrier", Exact: true, What: "it is of no reader yet to come"},
		{Name: "queue.bell", Exact: true, What: "a bit in a bell is possible, and the bell has a uuid"},
		{Name: "queue.bell_generation", Exact: true, What: "it is of no reader yet to come"},
		{Name: "hints.latch", Exact: true, What: "a signal is pending or not"},
		{Name: "hints.ready", Exact: true, What: "no lane is ready that there cannot be"},
		{Name: "row.parked", Exact: true, What: "only known bits of a row's flags are set"},
		{Name: "row.head", Exact: true, What: "nothing was released that was not published"},
		{Name: "row.peeked", Exact: true, What: "nothing was handed out that was not published"},
		{Name: "row.high_water", Exact: true, What: "no more ever waited than a lane holds"},
		{Name: "row.retired", Exact: true, What: "a queue of one user retires no lanes"},
		{Name: "lane.tail", Exact: true, What: "no more is published than the lane holds"},
		{Name: "lane.solicited", Exact: true, What: "the last solicited entry has a place"},
		{Name: "lane.error", Exact: true, What: "the last error entry has a place"},
		{Name: "lane.order", Exact: true, What: "the order of publishes is one of the two"},
		{Name: "lane.overrun", Exact: true, What: "a lane overran at its tail, where it may overrun"},
		{Name: "lane.epoch", Exact: true, What: "who wrote what is told of writers that were"},
		{Name: "slot.sequence", Exact: true, What: "an unread entry has the number of its place"},
		{Name: "slot.kind", Exact: true, What: "it is a completion or an error"},
		{Name: "slot.marks", Exact: true, What: "only known marks of it are set"},
		{Name: "slot.payload", Exact: true, What: "an event's payload fits its record"},
		{Name: "detail.data", Exact: true, What: "an error's detail fits its record"},

		{Name: "bell.armed", Exact: true, What: "only known bits of the armed word are set"},
		{Name: "counter.standing", Exact: true, What: "some handle found no seat or none did"},
		{Name: "counter.seats", Exact: true, What: "no more seats were taken than there are"},
		{Name: "counter.rung", Exact: true, What: "no arming was answered that did not happen"},
		{Name: "counter.handle", Exact: true, What: "a handle's process number is possible"},

		{Name: "umem.geometry", Exact: true, What: "the frames are as many and as large as it says"},
		{Name: "device.layout", Exact: true, What: "the sections are those of a status page"},
		{Name: "device.update", Exact: true, What: "no update of counts ended that did not begin"},
		{Name: "device.returned", Exact: true, What: "no frame came back that was not handed out"},
		{Name: "device.frames", Exact: true, What: "no more frames are out than there are"},

		{Name: "addresses.state", Exact: true, What: "the vector is open or closed"},
		{Name: "addresses.row", Exact: true, What: "a row that is used has an address of the format"},
		{Name: "addresses.cell", What: "an index cell leads to a row with an address of its hash"},
		{Name: "addresses.found", What: "a row that is used is found by the index"},
		{Name: "addresses.twice", What: "no address has two rows"},
		{Name: "addresses.used", What: "as many rows are used as is said"},
	}
}

// Checked is what was found in one file.
type Checked struct {
	Name       string // of an object that a process holds
	Path       string
	Inode      uint64   // the same
	Kind       shm.Kind // 0: not known
	Violations []shm.Violation
	// Undecided: the object changed all the time, so that only what is exact was checked.
	Undecided bool
}

// checker collects what is wrong with one object.
type checker struct {
	obj   *shm.Object
	held  *Held // nil: the object stands in a directory
	found []shm.Violation
	busy  bool
}

// bad notes a violation at an offset within a section.
func (c *checker) bad(name string, k shm.SectionKind, within uint64, got, want any) {
	var at uint64
	for _, s := range c.obj.Header().Sections {
		if s.Kind == k {
			at = s.Offset
		}
	}
	c.found = append(c.found, shm.Violation{Invariant: name, Section: kind.SectionNames[k],
		Offset: at + within, Within: within, Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
}

// badHeader notes one in page 0.
func (c *checker) badHeader(name string, off uint64, got, want any) {
	c.found = append(c.found, shm.Violation{Invariant: name, Section: "header", Offset: off,
		Within: off, Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
}

// Where the header has what the kinds fix, as package shm draws it.
const (
	headerTotal    = 0x18
	headerUUID     = 0x38
	headerCount    = 0x8c
	headerName     = 0x90
	headerAttrs    = 0x100
	headerSections = 0x180
)

// attributes checks each attribute of the object.
func (c *checker) attributes(all kind.Attributes) bool {
	before := len(c.found)
	all.Wrong(c.obj.Header(), func(word int, a kind.Attribute, got uint64) {
		c.badHeader("object.attributes", headerAttrs+8*uint64(word), got, a.Bound.String())
	})
	return len(c.found) == before
}

// sections checks that the object has those of its kind.
func (c *checker) sections(want shm.Spec) bool {
	before := len(c.found)
	have := c.obj.Header().Sections
	if len(have) != len(want.Sections) {
		c.badHeader("object.sections", headerCount, len(have), len(want.Sections))
		return false
	}
	for i, w := range want.Sections {
		got := have[i]
		for _, f := range []struct {
			off       uint64
			got, want uint64
		}{{0, uint64(got.Kind), uint64(w.Kind)}, {4, uint64(got.ID), uint64(w.ID)},
			{16, got.Length, w.Length}, {24, got.ElemSize, w.ElemSize},
			{32, got.Capacity, w.Capacity}, {40, got.LayoutHash, w.LayoutHash}} {
			if f.got != f.want {
				c.badHeader("object.sections", headerSections+64*uint64(i)+f.off, f.got, f.want)
			}
		}
	}
	return len(c.found) == before
}

// named checks the name in the header. A queue that is made aside has its own name there already,
// and what a process holds need not have a name any more.
func (c *checker) named(want string) {
	if c.held != nil {
		return
	}
	if got := c.obj.Header().Name; got != want && !shm.IsAside(want) {
		c.badHeader("object.name", headerName, fmt.Sprintf("%q", got), fmt.Sprintf("%q", want))
	}
}

// checkPath checks page 0 of a file, and hands it on if nothing is wrong there. A file that is gone
// is fs.ErrNotExist.
func checkPath(path string, f func(*checker)) (out Checked, err error) {
	page, size, err := shm.ReadPage(path)
	if err != nil {
		return Checked{Path: path}, err
	}
	return checkFile(Checked{Path: path}, page, size,
		func() (*shm.Object, error) { return shm.OpenPath(path) }, f)
}

// checkFile checks a copy of page 0, and what open maps.
func checkFile(out Checked, page []byte, size uint64, open func() (*shm.Object, error),
	f func(*checker)) (Checked, error) {
	if out.Violations = shm.CheckHeader(page, size); len(out.Violations) > 0 {
		return out, nil
	}
	obj, err := open()
	var e *shm.Error
	if errors.As(err, &e) && e.Field == "allocated bytes" {
		out.Violations = []shm.Violation{{Invariant: "file.memory", Section: "header",
			Offset: headerTotal, Within: headerTotal, Got: fmt.Sprint(e.Got), Want: fmt.Sprint(e.Want)}}
		return out, nil
	}
	if err != nil {
		return out, err
	}
	defer obj.Close()
	c := &checker{obj: obj}
	out.Kind = obj.Header().Kind
	// Whoever owns the file may truncate it at any moment.
	if err := shm.Guard(func() { f(c) }); err != nil {
		return out, err
	}
	out.Violations, out.Undecided = append(c.found, obj.CheckOwner()...), c.busy
	return out, nil
}
