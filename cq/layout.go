package cq

import "github.com/shmring/shmring/shm"

// Sections of a queue's objects. The reader object has all of them, with lane 0; a lane object has
// the lane's three.
const (
	sectQueue  shm.SectionKind = 0x100 + iota // reader-written words of the queue
	sectRows                                  // reader-written, a row a lane
	sectHints                                 // producer-written: see package doorbell
	sectLane                                  // writer-written words of a lane
	sectSlots                                 // entries
	sectErrors                                // detail records, parallel to the entries
)

// Attributes of a reader object: fixed at creation, under the header's checksum.
const (
	attrFormat = iota
	attrCapacity
	attrLanes
	attrOverrun
	attrLifetime
	attrWait
	attrReaderPays
	attrTrust
	attrDetailBytes
)

// Attributes of a lane object.
const (
	attrLaneRow = iota
	attrLaneCapacity
	attrLaneQueueHigh // uuid of the queue it belongs to
	attrLaneQueueLow
)

// The queue's page: reader-written, read-only for everybody else.
//
//	0    armed word (doorbell.Arm)
//	128  state: open, closed, overrun, being removed
//	256  face: number of the eventfd in the reader's process + 1, 0 if there is none
//	264  generation of the reader that wrote it
//	384  the reader's bell: uuid (two words), bit, descriptor + 1, generation; see bellWords
const (
	offArm       = 0
	offState     = 128
	offFace      = 256
	offBell      = 384
	queueBytes   = 4096
	stateOpen    = 1
	stateClosed  = 2
	stateOverrun = 3
	// stateRemoving: somebody is removing the queue, and may not get to the end of it. Writers that
	// attach wait for that for a while, and get ErrBusy then; a reader that adopts it opens it again.
	stateRemoving = 4
)

// A row: reader-written, one a lane, two lines that different sides poll.
//
//	0    parked, with the queue's state in its upper bits; wake index (doorbell.Row)
//	128  head: released, and so how many were ever read; peeked: handed out; high-water mark;
//	     how many lanes of other users this row has had before, with TrustOthers; which writers'
//	     deaths were reported: event queue, generation, generation that was being reported
const (
	rowBytes    = 256
	rowOffIndex = 128
)

// What stands beside doorbell.Parked in a row word, to send a writer down its slow path.
const (
	rowClosed   = 1 << 1
	rowOverrun  = 1 << 2
	rowPoisoned = 1 << 3
	rowLeft     = 1 << 4 // a reader of another user left the queue to a successor
)

// The lane's page: writer-written.
//
//	0    tail; sol: index after the last solicited entry; err: after the last error entry; both
//	     stored before the tail that publishes the entry
//	128  counters: publishes, wakes, refused posts
//	256  order of publishes; index + 1 at which the lane overran, 0 if it did not; again: index
//	     below which a former reader, of another user, may have handed entries out
//	384  who wrote what: the last four {generation, first index}
//	512  rung: with TrustOthers the bell of this lane, which its reader sleeps on
const (
	laneBytes     = 4096
	laneEpochs    = 4
	slotBytes     = 64
	errorBytes    = 64
	orderSeqCst   = 0
	orderRelease  = 1
	readerFile    = "reader"
	laneFile      = "lane-%04d"
	fifoFile      = "wake"
	maxLanes      = 1024
	maxCapacity   = 1 << 24
	layoutVersion = 1 // in every section's layout hash, but for
	slotsVersion  = 2 // that of a completion queue's slots: a source is an address + 1
)

// takesWriters is nil if writers may attach to a queue in a state.
func takesWriters(state uint64, name string) error {
	switch state {
	case stateClosed:
		return ErrClosed
	case stateRemoving:
		return &Error{Pkg: pkg, Op: "attach", Name: name, Err: errContested, Hint: hintContested}
	}
	return nil
}

// wordsOf lays a T over a section, whose length a header may have wrong: everything in a header
// that was made by hand can pass its checksum.
func wordsOf[T any](obj *shm.Object, kind shm.SectionKind, id uint32) (*T, error) {
	mem, _, err := obj.Section(kind, id)
	if err != nil {
		return nil, err
	}
	t := overlay[T](mem)
	if t == nil {
		return nil, refuse("map", obj.Name(), "section length", len(mem), "room for its words",
			ErrCorrupt)
	}
	return t, nil
}

// rowsOf returns the rows of a reader object that has at least n of them.
func rowsOf(obj *shm.Object, n int) ([]rowWords, error) {
	mem, _, err := obj.Section(sectRows, 0)
	if err != nil {
		return nil, err
	}
	rows := overlays[rowWords](mem)
	if len(rows) < n {
		return nil, refuse("map", obj.Name(), "rows", len(rows), n, ErrCorrupt)
	}
	return rows, nil
}
