package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// CheckQueue checks all objects of a queue, of either kind, by read-only mappings: no lock is taken
// and nobody notices. path is its directory. What it finds in a queue that is used may be of a
// moment in between: only what is found again and again holds. A queue that is not there, or goes
// meanwhile, is fs.ErrNotExist; other errors are those of opening shared memory, with what could
// be checked.
func CheckQueue(path string) (all []Checked, err error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	k := &queueCheck{path: path}
	reader := filepath.Join(path, kind.ReaderFile)
	first, err := checkPath(reader, func(c *checker) {
		if k.reader(c) {
			k.rest(entries)
		}
		if linked, err := c.obj.Linked(); err != nil || !linked {
			k.gone = true // what its lanes hold is another queue's by now
		}
	})
	switch {
	case k.gone:
		return nil, fs.ErrNotExist
	case err == nil:
		k.all = append(k.all, first)
	case errors.Is(err, fs.ErrNotExist): // writers of a queue that was destroyed may still be there
		k.orphans(entries)
	default:
		k.err = errors.Join(k.err, err)
	}
	k.strangers(entries)
	sort.Slice(k.all, func(i, j int) bool { return k.all[i].Path < k.all[j].Path })
	return k.all, k.err
}

// queueCheck is one look at a queue.
type queueCheck struct {
	path string
	all  []Checked
	err  error
	gone bool

	opt  kind.Queue
	uuid shm.UUID
	rows []kind.RowWords
	hdr  *checker // of the reader's object

	alone bool // lanes are not held against their rows
}

// strangers are names that no queue gives.
func (k *queueCheck) strangers(entries []os.DirEntry) {
	for _, e := range entries {
		_, lane := kind.LaneRow(e.Name())
		fifo := e.Name() == kind.FifoFile && e.Type() == fs.ModeNamedPipe
		if e.Name() == kind.ReaderFile || lane || fifo {
			continue
		}
		k.all = append(k.all, Checked{Path: filepath.Join(k.path, e.Name()),
			Violations: []shm.Violation{{Invariant: "queue.entry", Section: "directory",
				Got: fmt.Sprintf("%q (%v)", e.Name(), e.Type()), Want: "reader, lane-0001 on, a FIFO wake"}}})
	}
}

// orphans checks lanes by themselves.
func (k *queueCheck) orphans(entries []os.DirEntry) {
	for _, e := range entries {
		if _, ok := kind.LaneRow(e.Name()); ok {
			k.lane(e.Name(), func(c *checker) { c.named(e.Name()) })
		}
	}
}

func (k *queueCheck) lane(name string, f func(*checker)) {
	out, err := checkPath(filepath.Join(k.path, name), f)
	switch {
	case err == nil:
		k.all = append(k.all, out)
	case !errors.Is(err, fs.ErrNotExist):
		k.err = errors.Join(k.err, err)
	}
}

// rest checks the lanes.
func (k *queueCheck) rest(entries []os.DirEntry) {
	for _, e := range entries {
		if row, ok := kind.LaneRow(e.Name()); ok {
			k.lane(e.Name(), func(c *checker) { k.laneOf(c, e.Name(), row) })
		}
	}
}

// reader checks the reader's object, with lane 0, and says whether lanes can be.
func (k *queueCheck) reader(c *checker) bool {
	h := c.obj.Header()
	c.named(filepath.Base(k.path))
	if h.Kind != shm.KindQueue && h.Kind != shm.KindEvents {
		c.badHeader("queue.kind", 0x14, h.Kind, "queue or events")
		return false
	}
	if !c.attributes(kind.QueueAttributes(h.Kind == shm.KindEvents)) {
		return false
	}
	opt, err := kind.StoredQueue("check", c.obj.Name(), h)
	if err != nil {
		if c.sections(opt.ReaderSpec("")) {
			c.badHeader("object.attributes", headerAttrs, fmt.Sprint(h.Attrs), "what goes together")
		}
		return false
	}
	words, err := kind.WordsOf[kind.QueueWords](c.obj, kind.SectQueue, 0)
	if err != nil {
		return false
	}
	if k.rows, err = kind.RowsOf(c.obj, opt.Rows); err != nil {
		return false
	}
	k.opt, k.uuid, k.hdr = opt, h.UUID, c
	k.words(c, words)
	k.hints(c)
	for i := range opt.Rows {
		k.row(i)
	}
	k.indices(c, 0)
	return true
}

func (k *queueCheck) words(c *checker, w *kind.QueueWords) {
	if a := w.Arm.Word.Load(); a&^doorbell.ArmKnown != 0 {
		c.bad("queue.armed", kind.SectQueue, kind.OffArm, fmt.Sprintf("%#x", a), "known bits")
	}
	if s := w.State.Load(); s < kind.StateOpen || s > kind.StateRemoving {
		c.bad("queue.state", kind.SectQueue, kind.OffState, s, "1 to 4")
	}
	if f := w.Face.Load(); f >= 1<<31 {
		c.bad("queue.face", kind.SectQueue, kind.OffFace, f, "a descriptor's number")
	}
	// Generations that the words name are loaded before the one that only grows.
	face, g := w.FaceGen.Load(), w.Bell.Generation.Load()
	refused := w.NoBarrier.Load()
	bit, uuid := w.Bell.Bit.Load(), kind.UuidOf(w.Bell.High.Load(), w.Bell.Low.Load())
	same := w.Bell.Generation.Load() == g
	now := c.obj.Generation()
	if face > now {
		c.bad("queue.face_generation", kind.SectQueue, kind.OffFace+8, face,
			fmt.Sprintf("at most %d", now))
	}
	if refused > now {
		c.bad("queue.no_barrier", kind.SectQueue, kind.OffFace+16, refused,
			fmt.Sprintf("at most %d", now))
	}
	if g > now {
		c.bad("queue.bell_generation", kind.SectQueue, kind.OffBell+32, g, fmt.Sprintf("at most %d", now))
	} else if g != 0 && same {
		if bit >= kind.DomainBits {
			c.bad("queue.bell", kind.SectQueue, kind.OffBell+16, bit, fmt.Sprintf("below %d",
				kind.DomainBits))
		}
		if uuid.IsZero() {
			c.bad("queue.bell", kind.SectQueue, kind.OffBell, 0, "the uuid of a bell")
		}
	}
}

func (k *queueCheck) hints(c *checker) {
	mem, _, err := c.obj.Section(kind.SectHints, 0)
	if err != nil {
		return
	}
	hints, err := doorbell.MapHints(mem, k.opt.Rows)
	if err != nil {
		return
	}
	bell := doorbell.Inspect(0, hints)
	if bell.Latch > 1 {
		c.bad("hints.latch", kind.SectHints, doorbell.HintsLatchOffset, bell.Latch, "0 or 1")
	}
	if bell.Stray != 0 {
		c.bad("hints.ready", kind.SectHints, doorbell.HintsFixedBytes+uint64(k.opt.Rows/64)*8,
			fmt.Sprintf("%#x", bell.Stray), fmt.Sprintf("bits below %d", k.opt.Rows))
	}
}

// rowKnown are the flags that a row can have.
const rowKnown = doorbell.Parked | kind.RowClosed | kind.RowOverrun | kind.RowPoisoned |
	kind.RowLeft

// row checks what can be said of a row without its lane.
func (k *queueCheck) row(i int) {
	r, base := &k.rows[i], uint64(i)*kind.RowBytes
	if f := r.Bell.Parked.Load(); f&^rowKnown != 0 {
		k.hdr.bad("row.parked", kind.SectRows, base, fmt.Sprintf("%#x", f), "known bits")
	}
	if n := r.HighWater.Load(); n > uint64(k.opt.Capacity) {
		k.hdr.bad("row.high_water", kind.SectRows, base+kind.RowOffIndex+16, n,
			fmt.Sprintf("at most %d", k.opt.Capacity))
	}
	if n := r.Retired.Load(); n != 0 && !k.opt.Others() {
		k.hdr.bad("row.retired", kind.SectRows, base+kind.RowOffIndex+24, n, 0)
	}
}

// laneOf checks a lane's object. One of a former queue of the name is only in the way.
func (k *queueCheck) laneOf(c *checker, file string, row int) {
	h := c.obj.Header()
	c.named(file)
	if h.Kind != shm.KindLane {
		c.badHeader("queue.kind", 0x14, h.Kind, shm.KindLane)
		return
	}
	high, low := kind.UuidWords(k.uuid)
	if h.Attrs[kind.AttrLaneQueueHigh] != high || h.Attrs[kind.AttrLaneQueueLow] != low {
		return
	}
	if row >= k.opt.Rows {
		c.badHeader("object.attributes", headerAttrs, row, fmt.Sprintf("a row below %d", k.opt.Rows))
		return
	}
	if c.attributes(kind.LaneAttributes.With(kind.Exactly(uint64(row)),
		kind.Exactly(uint64(k.opt.Capacity)))) &&
		c.sections(k.opt.LaneSpec("", row, k.uuid)) {
		k.indices(c, row)
	}
}
