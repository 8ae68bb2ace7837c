package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// View is one queue, of either kind, mapped to look at: for reading only, so that no byte, lock or
// time of change is touched and no party notices. It is one goroutine's at a time.
type View struct {
	parent *shm.Dir
	name   string
	dir    *shm.Dir
	reader *shm.Object
	opt    kind.Queue
	lanes  map[int]*shm.Object
}

// Open maps a queue. The directory must stay open as long as the View is used. Errors are
// fs.ErrNotExist and those of opening shared memory.
func Open(d *shm.Dir, name string) (*View, error) {
	v := &View{parent: d, name: name, lanes: map[int]*shm.Object{}}
	if err := v.open(); err != nil {
		_ = v.Close()
		return nil, v.failed(err)
	}
	return v, nil
}

func (v *View) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: inspect %q: %w", kind.Pkg, v.name, err)
}

func (v *View) open() (err error) {
	if v.dir, err = v.parent.Sub(v.name, false); err != nil {
		return err
	}
	if v.reader, err = v.dir.Open(kind.ReaderFile, shm.Inspect); err != nil {
		return err
	}
	v.opt, err = kind.StoredQueue("inspect", v.name, v.reader.Header())
	return err
}

// Close unmaps everything. It may be called again, and Look maps it again.
func (v *View) Close() error {
	var err error
	for row, obj := range v.lanes {
		err = errors.Join(err, obj.Close())
		delete(v.lanes, row)
	}
	if v.reader != nil {
		err = errors.Join(err, v.reader.Close())
		v.reader = nil
	}
	if v.dir != nil {
		err = errors.Join(err, v.dir.Close())
		v.dir = nil
	}
	return err
}

// Queue is the memory of a queue for one look. Its peers may write to it all the time, and truncate
// the files: a word is loaded once, and what is loaded is bounded.
type Queue struct {
	Options kind.Queue
	Path    string // of its directory
	Reader  *shm.Object
	Words   *kind.QueueWords
	Hints   *wake.Hints
	Rows    []kind.RowWords
	Lanes   map[int]Lane // those that are there, by row
}

// Lane is the object of a lane, which for row 0 is the reader's, or why it cannot be mapped.
type Lane struct {
	obj *shm.Object
	err error
}

// Read calls f with the object. A fault in its memory is the error [shm.ErrTruncated] of this lane
// only.
func (l Lane) Read(f func(*shm.Object) error) error {
	if l.err != nil {
		return l.err
	}
	return guarded(func() error { return f(l.obj) })
}

// guarded calls f and makes an error of a fault in memory that it reads.
func guarded(f func() error) (err error) {
	fault := shm.Guard(func() { err = f() })
	return errors.Join(fault, err)
}

// Look calls f with the queue that has the name by now, and with the lanes that it has by now. f
// may use them until it returns. A queue that was destroyed is fs.ErrNotExist; a reader's object
// that is damaged or truncated is an error as for [Open], a lane's object that is costs that lane.
func (v *View) Look(f func(*Queue) error) error {
	if err := v.refresh(); err != nil {
		return v.failed(err)
	}
	lanes, err := v.findLanes()
	if err != nil {
		return v.failed(err)
	}
	q := &Queue{Options: v.opt, Path: v.dir.Path(), Reader: v.reader, Lanes: lanes}
	return v.failed(guarded(func() error {
		if err := q.lay(); err != nil {
			return err
		}
		return f(q)
	}))
}

// lay lays the words over the reader's object.
func (q *Queue) lay() (err error) {
	if q.Words, err = kind.WordsOf[kind.QueueWords](q.Reader, kind.SectQueue, 0); err != nil {
		return err
	}
	if q.Rows, err = kind.RowsOf(q.Reader, q.Options.Rows); err != nil {
		return err
	}
	mem, _, err := q.Reader.Section(kind.SectHints, 0)
	if err != nil {
		return err
	}
	q.Hints, err = wake.MapHints(mem, q.Options.Rows)
	return err
}

// refresh goes from a queue that was destroyed to the one that has its name now.
func (v *View) refresh() error {
	if v.reader != nil {
		if linked, err := v.reader.Linked(); err != nil || linked {
			return err
		}
	}
	if err := v.Close(); err != nil {
		return err
	}
	return v.open()
}

// findLanes maps the lanes that there are now and lets go of those that are not any more.
func (v *View) findLanes() (map[int]Lane, error) {
	names, err := v.dir.List()
	if err != nil {
		return nil, err
	}
	found := map[int]Lane{0: {obj: v.reader}}
	for _, n := range names {
		row, ok := kind.LaneRow(n.Name())
		if !ok || row >= v.opt.Rows {
			continue
		}
		obj, err := v.findLane(row, n.Name())
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kind.ErrOtherQueue) {
			continue
		}
		found[row] = Lane{obj: obj, err: err}
	}
	for row, obj := range v.lanes {
		if found[row].obj != obj {
			_ = obj.Close()
			delete(v.lanes, row)
		}
	}
	return found, nil
}

func (v *View) findLane(row int, file string) (*shm.Object, error) {
	if obj := v.lanes[row]; obj != nil {
		if linked, err := obj.Linked(); err == nil && linked {
			return obj, nil
		}
		_ = obj.Close()
		delete(v.lanes, row)
	}
	obj, err := v.dir.Open(file, shm.Inspect)
	if err != nil {
		return nil, err
	}
	if err := v.opt.LaneBelongs(obj, row, v.reader.Header().UUID); err != nil {
		_ = obj.Close()
		return nil, err
	}
	v.lanes[row] = obj
	return obj, nil
}

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
	if a := w.Arm.Word.Load(); a&^wake.ArmKnown != 0 {
		wrong(c, &w.Arm.Word, "queue.armed", fmt.Sprintf("%#x", a), "known bits")
	}
	if s := w.State.Load(); s < kind.StateOpen || s > kind.StateRemoving {
		wrong(c, &w.State, "queue.state", s, "1 to 4")
	}
	if f := w.Face.Load(); f >= 1<<31 {
		wrong(c, &w.Face, "queue.face", f, "a descriptor's number")
	}
	// Generations that the words name are loaded before the one that only grows.
	face, g := w.FaceGen.Load(), w.Bell.Generation.Load()
	refused := w.NoBarrier.Load()
	bit, uuid := w.Bell.Bit.Load(), kind.UuidOf(w.Bell.High.Load(), w.Bell.Low.Load())
	same := w.Bell.Generation.Load() == g
	now := c.obj.Generation()
	if face > now {
		wrong(c, &w.FaceGen, "queue.face_generation", face, fmt.Sprintf("at most %d", now))
	}
	if refused > now {
		wrong(c, &w.NoBarrier, "queue.no_barrier", refused, fmt.Sprintf("at most %d", now))
	}
	if g > now {
		wrong(c, &w.Bell.Generation, "queue.bell_generation", g, fmt.Sprintf("at most %d", now))
	} else if g != 0 && same {
		if bit >= kind.DomainBits {
			wrong(c, &w.Bell.Bit, "queue.bell", bit, fmt.Sprintf("below %d", kind.DomainBits))
		}
		if uuid == (shm.UUID{}) {
			wrong(c, &w.Bell.High, "queue.bell", 0, "the uuid of a bell")
		}
	}
}

func (k *queueCheck) hints(c *checker) {
	mem, _, err := c.obj.Section(kind.SectHints, 0)
	if err != nil {
		return
	}
	hints, err := wake.MapHints(mem, k.opt.Rows)
	if err != nil {
		return
	}
	bell := wake.Inspect(0, hints)
	if bell.Latch > 1 {
		wrong(c, &mem[wake.HintsLatchOffset], "hints.latch", bell.Latch, "0 or 1")
	}
	if bell.Stray != 0 {
		wrong(c, &mem[wake.HintsFixedBytes+k.opt.Rows/64*8], "hints.ready",
			fmt.Sprintf("%#x", bell.Stray), fmt.Sprintf("bits below %d", k.opt.Rows))
	}
}

// rowKnown are the flags that a row can have.
const rowKnown = wake.Parked | kind.RowClosed | kind.RowOverrun | kind.RowPoisoned |
	kind.RowLeft

// row checks what can be said of a row without its lane.
func (k *queueCheck) row(i int) {
	r := &k.rows[i]
	if f := r.Bell.Parked.Load(); f&^rowKnown != 0 {
		wrong(k.hdr, &r.Bell.Parked, "row.parked", fmt.Sprintf("%#x", f), "known bits")
	}
	if n := r.HighWater.Load(); n > uint64(k.opt.Capacity) {
		wrong(k.hdr, &r.HighWater, "row.high_water", n, fmt.Sprintf("at most %d", k.opt.Capacity))
	}
	if n := r.Retired.Load(); n != 0 && !k.opt.Others() {
		wrong(k.hdr, &r.Retired, "row.retired", n, 0)
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

// indices checks the words of a lane against its row, and the entries in between. c is of the
// object that has the lane, which for lane 0 is the reader's.
//
// Each pair of words is loaded in the order in which what must hold between them does, for words
// that only grow: what may not be beyond the other one first.
func (k *queueCheck) indices(c *checker, row int) {
	m, err := kind.LaneOf[kind.Slot](c.obj, row, k.opt)
	if err != nil {
		return
	}
	r, w, size := &k.rows[row], m.Words, uint64(k.opt.Capacity)
	if k.alone {
		epochs := k.epochs(w)
		k.own(c, w, epochs, w.Tail.Load())
		return
	}
	peeked, sol, failed, overrun := r.Peeked.Load(), w.Sol.Load(), w.Err.Load(), w.Overrun.Load()
	epochs := k.epochs(w)
	head, tail, still := uint64(0), uint64(0), false
	for range kind.LevelTries {
		head, tail = r.Head.Load(), w.Tail.Load()
		if still = r.Head.Load() == head; still {
			break
		}
	}
	switch {
	case !still:
		c.busy = true
		return
	case head > tail:
		wrong(k.hdr, &r.Head, "row.head", head, fmt.Sprintf("at most the tail, %d", tail))
		return
	case tail-head > size:
		wrong(c, &w.Tail, "lane.tail", tail, fmt.Sprintf("%d to %d", head, head+size))
		return
	case peeked > tail:
		wrong(k.hdr, &r.Peeked, "row.peeked", peeked, fmt.Sprintf("at most %d", tail))
	}
	if sol > head+size {
		wrong(c, &w.Sol, "lane.solicited", sol, fmt.Sprintf("at most %d", head+size))
	}
	if failed > head+size {
		wrong(c, &w.Err, "lane.error", failed, fmt.Sprintf("at most %d", head+size))
	}
	if overrun > tail+1 || overrun != 0 && k.opt.Overrun != kind.MayOverrun {
		wrong(c, &w.Overrun, "lane.overrun", overrun, "0, or where a queue that may overrun did")
	}
	k.own(c, w, epochs, tail)
	k.entries(c, &m, r, head, tail)
}

// own checks words of a lane that are held against others of it only. The tail was loaded last.
func (k *queueCheck) own(c *checker, w *kind.LaneWords, epochs [kind.LaneEpochs]epochView,
	tail uint64) {
	if o := w.Order.Load(); o > kind.OrderRelease {
		wrong(c, &w.Order, "lane.order", o, "0 or 1")
	}
	now := c.obj.Generation()
	for i, e := range epochs {
		if e.generation > now || e.generation != 0 && e.generation%kind.LaneEpochs != uint64(i) {
			wrong(c, &w.Epochs[i].Generation, "lane.epoch", e.generation,
				fmt.Sprintf("at most %d, in its place", now))
		} else if e.generation != 0 && e.start > tail {
			wrong(c, &w.Epochs[i].Start, "lane.epoch", e.start, fmt.Sprintf("at most %d", tail))
		}
	}
}

type epochView struct{ generation, start uint64 }

// epochs are those that a writer is not just writing.
func (k *queueCheck) epochs(w *kind.LaneWords) (out [kind.LaneEpochs]epochView) {
	for i := range w.Epochs {
		e := &w.Epochs[i]
		g := e.Generation.Load()
		s := e.Start.Load()
		if e.Generation.Load() == g {
			out[i] = epochView{g, s}
		}
	}
	return out
}

// entries checks those that are published and not given back. A writer uses a place again only when
// that happened: so what is wrong counts if the head is still not past it.
func (k *queueCheck) entries(c *checker, m *kind.Lane[kind.Slot], r *kind.RowWords, head,
	tail uint64) {
	for at := head; at < tail; at++ {
		before := len(c.found)
		k.entry(c, m, at)
		if r.Head.Load() > at {
			c.found = c.found[:before]
		}
	}
}

func (k *queueCheck) entry(c *checker, m *kind.Lane[kind.Slot], at uint64) {
	slot := &m.Slots[at&uint64(k.opt.Capacity-1)]
	e := kind.LoadLine(slot)
	if e.Seq() != uint32(at) {
		wrong(c, &slot.Meta, "slot.sequence", e.Seq(), uint32(at))
		return
	}
	what := e.Meta & kind.SlotKindMask
	if what != kind.SlotEntry && what != kind.SlotError {
		wrong(c, &slot.Meta, "slot.kind", what, "1 or 2")
		return
	}
	if marks := e.Meta &^ (kind.SlotKindMask | kind.SlotMarks | 0xffffffff<<32); marks != 0 {
		wrong(c, &slot.Meta, "slot.marks", fmt.Sprintf("%#x", marks), 0)
	}
	room := m.Detail.Stride - kind.DetailHeaderBytes
	if what == kind.SlotError {
		record := m.Detail.Record(at)
		if d := kind.LoadLine(record); d.DataBytes > room {
			wrong(c, &record.DataBytes, "detail.data", d.DataBytes, fmt.Sprintf("at most %d", room))
		}
	} else if k.opt.Events && e.Len > room {
		wrong(c, &slot.Len, "slot.payload", e.Len, fmt.Sprintf("at most %d", room))
	}
}
