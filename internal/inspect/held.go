package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// Held is an object that some process has open or mapped, whatever name it has or had, behind a
// descriptor of the process that checks it.
type Held struct {
	Name string // for reports, which add the name in the header to it
	Path string // the same
	// FD is for reading. It stays the caller's.
	FD    int
	Inode uint64
	Memfd bool
	// Owned says that the process holds the lock of the object.
	Owned bool
	// Born is when the file was made, as the kernel says: what the object says of itself is up to who
	// may write it. The zero time is long ago.
	Born time.Time
}

// youngWithin is how long an object may take from its file to its first name or seal. Memory of
// many gigabytes is allocated meanwhile.
const youngWithin = time.Minute

// young says that the object may be unfinished. The time of day may be set back.
func (h *Held) young() bool { return time.Since(h.Born).Abs() < youngWithin }

// CheckHeld checks the objects that one process has, of every kind, by read-only mappings: no lock
// is taken and nobody notices. Lanes are checked against the queue that they are of, if that is
// there and the process reads it: only its reader knows which lane is the row's, for one that was
// never accepted, or was retired since, looks the same. Elsewhere they are checked by themselves.
// Names in headers are not checked, since what a process has need not have its name any more. more
// is for kinds that this package does not know, as for [CheckObject].
//
// What it finds in an object that is used may be of a moment in between: only what is found again
// and again holds, of the objects that the process has each time. An error says what could not be
// looked at, beside what could.
func CheckHeld(all []Held, more func(*shm.Object) []shm.Violation) ([]Checked, error) {
	k := &heldCheck{more: more, out: make([]Checked, len(all))}
	for i := range all {
		k.first(&all[i], &k.out[i])
	}
	for i := range k.whole {
		if p := &k.whole[i]; p.header.Kind == shm.KindQueue || p.header.Kind == shm.KindEvents {
			k.queue(p)
		}
	}
	for i := range k.whole {
		if p := &k.whole[i]; !p.done {
			k.check(p, func(c *checker) { k.alone(c) })
		}
	}
	return slices.DeleteFunc(k.out, func(c Checked) bool { return c.Path == "" }), k.err
}

// heldCheck is one look at what a process has.
type heldCheck struct {
	more  func(*shm.Object) []shm.Violation
	whole []heldPage // those that have a page 0 in which nothing is wrong
	out   []Checked  // for each, with an empty path if it could not be looked at
	err   error
}

type heldPage struct {
	held   *Held
	out    *Checked
	page   []byte
	size   uint64
	header shm.Header
	queue  string // name of the one that a lane is of, and a slash
	done   bool
}

// first looks at page 0.
func (k *heldCheck) first(h *Held, out *Checked) {
	p := heldPage{held: h, out: out}
	var err error
	if p.page, p.size, err = ReadPage(h.FD, h.Name); err != nil {
		k.err = errors.Join(k.err, err)
		return
	}
	*out = Checked{Name: h.Name, Path: h.Path, Inode: h.Inode}
	if h.young() && unborn(p.page) {
		out.Undecided = true
		return
	}
	if out.Violations = shm.CheckHeader(p.page, p.size); len(out.Violations) > 0 {
		return
	}
	if p.header, err = shm.DecodeHeader(p.page, p.size); err != nil {
		k.err, out.Path = errors.Join(k.err, err), ""
		return
	}
	k.whole = append(k.whole, p)
}

// unborn reports an object that its maker has not finished. Nobody else sees one by its name, but a
// process has it open meanwhile.
func unborn(page []byte) bool {
	const state = 0xa00
	if len(page) < state+8 {
		return len(bytes.Trim(page, "\x00")) == 0
	}
	return binary.LittleEndian.Uint64(page[state:]) == 0
}

// check maps an object and checks it.
func (k *heldCheck) check(p *heldPage, f func(*checker)) {
	p.done = true
	h := p.held
	p.out.Name += " " + p.queue + p.header.Name
	out, err := checkFile(*p.out, h.FD, p.page, p.size, func(c *checker) { c.held = h; f(c) })
	if err != nil {
		k.err, out.Path = errors.Join(k.err, fmt.Errorf("%s: %w", out.Name, err)), ""
	}
	*p.out = out
}

// alone checks what is not part of a queue that is there.
func (k *heldCheck) alone(c *checker) {
	c.object("", k.more)
	switch c.obj.Header().Kind {
	case shm.KindLane:
		c.seals(kind.LaneSeals, shm.SealOthers)
	case shm.KindBell, shm.KindCounter, shm.KindAddresses:
		c.seals(kind.LaneSeals)
	case shm.KindUMEM:
		c.seals(shm.SealOthers)
	}
}

// queue checks a reader's object and, as long as it is mapped, the lanes of it that are there.
func (k *heldCheck) queue(reader *heldPage) {
	q := &queueCheck{}
	k.check(reader, func(c *checker) {
		if !q.reader(c) {
			return
		}
		want := kind.LaneSeals
		if q.opt.Others() {
			want = shm.SealOthers
		}
		c.seals(want)
		lanes := k.lanes(q.uuid)
		rivals := map[uint64]int{} // lanes that say that they are the row's
		for _, p := range lanes {
			rivals[p.header.Attrs[kind.AttrLaneRow]]++
		}
		for _, p := range lanes {
			p.queue = reader.header.Name + "/"
			alone := !reader.held.Owned || rivals[p.header.Attrs[kind.AttrLaneRow]] > 1
			k.check(p, func(c *checker) {
				c.seals(want)
				k.lane(q, c, alone)
			})
		}
	})
}

// lanes returns those of a queue.
func (k *heldCheck) lanes(queue shm.UUID) (out []*heldPage) {
	high, low := kind.UuidWords(queue)
	for i := range k.whole {
		h := &k.whole[i].header
		if h.Kind == shm.KindLane && !k.whole[i].done && h.Attrs[kind.AttrLaneQueueHigh] == high &&
			h.Attrs[kind.AttrLaneQueueLow] == low {
			out = append(out, &k.whole[i])
		}
	}
	return out
}

// lane checks one against its row, if it is the row's.
func (k *heldCheck) lane(q *queueCheck, c *checker, alone bool) {
	row := c.obj.Header().Attrs[kind.AttrLaneRow]
	if row < 1 || row >= uint64(q.opt.Rows) {
		c.badHeader("object.attributes", headerAttrs+8*kind.AttrLaneRow, row,
			fmt.Sprintf("1 to %d", q.opt.Rows-1))
		return
	}
	q.alone = alone || !c.stands()
	before := len(q.hdr.found)
	q.laneOf(c, "", int(row))
	if !q.alone && !c.stands() { // it lost its name meanwhile, and another one may be the row's
		q.hdr.found, c.found = q.hdr.found[:before], nil
	}
}

// stands reports that an object has its name still, or never had one.
func (c *checker) stands() bool {
	linked, err := c.obj.Linked()
	return c.held.Memfd || err == nil && linked
}

// sealWithin is how long the maker of an object that has no name may take to seal it.
const sealWithin = time.Second

// seals checks that a memfd has some of the sets of seals, which its maker gives it after all else.
func (c *checker) seals(want ...shm.Seals) {
	if !c.held.Memfd {
		return
	}
	var err error
	for _, w := range want {
		if err = c.obj.CheckSealed(w); err == nil {
			return
		}
	}
	age := time.Duration(spin.Now() - c.obj.Header().CreatedMonoNs)
	if c.held.young() && age >= 0 && age < sealWithin {
		c.busy = true
		return
	}
	v := shm.Violation{Invariant: "object.seals", Section: "file", Got: err.Error()}
	var e *shm.Error
	if errors.As(err, &e) {
		v.Got, v.Want = fmt.Sprint(e.Got), fmt.Sprint(e.Want)
	}
	c.found = append(c.found, v)
}
