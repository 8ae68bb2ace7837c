package cq

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/shmring/shmring/doorbell"
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
	reader := filepath.Join(path, readerFile)
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

	opt  shape
	uuid shm.UUID
	rows []rowWords
	hdr  *checker // of the reader's object

	alone bool // lanes are not held against their rows
}

// strangers are names that no queue gives.
func (k *queueCheck) strangers(entries []os.DirEntry) {
	for _, e := range entries {
		_, lane := laneRow(e.Name())
		fifo := e.Name() == fifoFile && e.Type() == fs.ModeNamedPipe
		if e.Name() == readerFile || lane || fifo {
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
		if _, ok := laneRow(e.Name()); ok {
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
		if row, ok := laneRow(e.Name()); ok {
			k.lane(e.Name(), func(c *checker) { k.laneOf(c, e.Name(), row) })
		}
	}
}

// queueAttributes are those of a reader's object.
var queueAttributes = map[int]possible{
	attrFormat:     {least: uint64(FormatContext), most: uint64(FormatTagged)},
	attrCapacity:   {least: 1, most: maxCapacity, powerOf2: true},
	attrLanes:      {least: 2, most: maxLanes + 1},
	attrOverrun:    {most: uint64(OverrunQueue)},
	attrLifetime:   {most: uint64(Persistent)},
	attrWait:       {most: uint64(WaitPollFD)},
	attrReaderPays: {most: 1},
	attrTrust:      {most: uint64(TrustOthers)},
}

// reader checks the reader's object, with lane 0, and says whether lanes can be.
func (k *queueCheck) reader(c *checker) bool {
	h := c.obj.Header()
	c.named(filepath.Base(k.path))
	if h.Kind != shm.KindQueue && h.Kind != shm.KindEvents {
		c.badHeader("queue.kind", 0x14, h.Kind, "queue or events")
		return false
	}
	attrs := map[int]possible{}
	for i, p := range queueAttributes {
		attrs[i] = p
	}
	attrs[attrDetailBytes] = possible{least: minDetailBytes, most: minDetailBytes}
	if h.Kind == shm.KindEvents {
		attrs[attrDetailBytes] = possible{least: minDetailBytes, most: maxDetailBytes}
	}
	if !c.attributes(attrs) {
		return false
	}
	opt, err := stored("check", c.obj.Name(), h)
	if err != nil {
		if c.sections(opt.readerSpec("")) {
			c.badHeader("object.attributes", headerAttrs, fmt.Sprint(h.Attrs), "what goes together")
		}
		return false
	}
	words, err := wordsOf[queueWords](c.obj, sectQueue, 0)
	if err != nil {
		return false
	}
	if k.rows, err = rowsOf(c.obj, opt.rows()); err != nil {
		return false
	}
	k.opt, k.uuid, k.hdr = opt, h.UUID, c
	k.words(c, words)
	k.hints(c)
	for i := range opt.rows() {
		k.row(i)
	}
	k.indices(c, 0)
	return true
}

func (k *queueCheck) words(c *checker, w *queueWords) {
	if a := w.arm.Word.Load(); a&^doorbell.ArmKnown != 0 {
		c.bad("queue.armed", sectQueue, offArm, fmt.Sprintf("%#x", a), "known bits")
	}
	if s := w.state.Load(); s < stateOpen || s > stateRemoving {
		c.bad("queue.state", sectQueue, offState, s, "1 to 4")
	}
	if f := w.face.Load(); f >= 1<<31 {
		c.bad("queue.face", sectQueue, offFace, f, "a descriptor's number")
	}
	// Generations that the words name are loaded before the one that only grows.
	face, g := w.faceGen.Load(), w.bell.generation.Load()
	bit, uuid := w.bell.bit.Load(), uuidOf(w.bell.high.Load(), w.bell.low.Load())
	same := w.bell.generation.Load() == g
	now := c.obj.Generation()
	if face > now {
		c.bad("queue.face_generation", sectQueue, offFace+8, face, fmt.Sprintf("at most %d", now))
	}
	if g > now {
		c.bad("queue.bell_generation", sectQueue, offBell+32, g, fmt.Sprintf("at most %d", now))
	} else if g != 0 && same {
		if bit >= domainBits {
			c.bad("queue.bell", sectQueue, offBell+16, bit, fmt.Sprintf("below %d", domainBits))
		}
		if uuid.IsZero() {
			c.bad("queue.bell", sectQueue, offBell, 0, "the uuid of a bell")
		}
	}
}

func (k *queueCheck) hints(c *checker) {
	mem, _, err := c.obj.Section(sectHints, 0)
	if err != nil {
		return
	}
	hints, err := doorbell.MapHints(mem, k.opt.rows())
	if err != nil {
		return
	}
	latch, beyond := hints.Beyond(k.opt.rows())
	if latch > 1 {
		c.bad("hints.latch", sectHints, doorbell.HintsLatchOffset, latch, "0 or 1")
	}
	if beyond != 0 {
		c.bad("hints.ready", sectHints, doorbell.HintsFixedBytes+uint64(k.opt.rows()/64)*8,
			fmt.Sprintf("%#x", beyond), fmt.Sprintf("bits below %d", k.opt.rows()))
	}
}

// rowKnown are the flags that a row can have.
const rowKnown = doorbell.Parked | rowClosed | rowOverrun | rowPoisoned | rowLeft

// row checks what can be said of a row without its lane.
func (k *queueCheck) row(i int) {
	r, base := &k.rows[i], uint64(i)*rowBytes
	if f := r.bell.Parked.Load(); f&^rowKnown != 0 {
		k.hdr.bad("row.parked", sectRows, base, fmt.Sprintf("%#x", f), "known bits")
	}
	if n := r.highWater.Load(); n > uint64(k.opt.Size) {
		k.hdr.bad("row.high_water", sectRows, base+rowOffIndex+16, n,
			fmt.Sprintf("at most %d", k.opt.Size))
	}
	if n := r.retired.Load(); n != 0 && k.opt.Trust == TrustUser {
		k.hdr.bad("row.retired", sectRows, base+rowOffIndex+24, n, 0)
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
	high, low := uuidWords(k.uuid)
	if h.Attrs[attrLaneQueueHigh] != high || h.Attrs[attrLaneQueueLow] != low {
		return
	}
	if row >= k.opt.rows() {
		c.badHeader("object.attributes", headerAttrs, row, fmt.Sprintf("a row below %d", k.opt.rows()))
		return
	}
	one := func(n uint64) possible { return possible{least: n, most: n} }
	if c.attributes(map[int]possible{attrLaneRow: one(uint64(row)), attrLaneQueueHigh: anyValue,
		attrLaneCapacity: one(uint64(k.opt.Size)), attrLaneQueueLow: anyValue}) &&
		c.sections(laneSpec("", row, k.opt, k.uuid)) {
		k.indices(c, row)
	}
}
