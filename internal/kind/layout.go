package kind

import (
	"github.com/shmring/shmring/shm"
)

// Sections of a queue's objects. The reader object has all of them, with lane 0; a lane object has
// the lane's three.
const (
	SectQueue  shm.SectionKind = 0x100 + iota // reader-written words of the queue
	SectRows                                  // reader-written, a row a lane
	SectHints                                 // producer-written: see package doorbell
	SectLane                                  // writer-written words of a lane
	SectSlots                                 // entries
	SectErrors                                // detail records, parallel to the entries
)

// Attributes of a lane object.
const (
	AttrLaneRow = iota
	AttrLaneCapacity
	AttrLaneQueueHigh // uuid of the queue it belongs to
	AttrLaneQueueLow
)

// LaneAttributes describes them.
var LaneAttributes = Attributes{
	AttrLaneRow:       {"row", Bound{Least: 1, Most: MaxLanes}, "its row in the reader's object"},
	AttrLaneCapacity:  {"capacity", Bound{Least: 1, Most: MaxCapacity, PowerOf2: true}, "entries"},
	AttrLaneQueueHigh: {"queue, high half", Bound{Most: anyWord}, "uuid of the queue it belongs to"},
	AttrLaneQueueLow:  {"queue, low half", Bound{Most: anyWord}, "the rest of it"},
}

// The queue's page: reader-written, read-only for everybody else.
//
//	0    armed word (doorbell.Arm)
//	128  state: open, closed, overrun, being removed
//	256  face: number of the eventfd in the reader's process + 1, 0 if there is none
//	264  generation of the reader that wrote it
//	272  generation of the reader that the kernel refused a barrier, 0 if there was none
//	384  the reader's bell: uuid (two words), bit, descriptor + 1, generation; see BellWords
const (
	OffArm       = 0
	OffState     = 128
	OffFace      = 256
	OffBell      = 384
	QueueBytes   = 4096
	StateOpen    = 1
	StateClosed  = 2
	StateOverrun = 3
	// StateRemoving: somebody is removing the queue, and may not get to the end of it. Writers that
	// attach wait for that for a while, and get ErrBusy then; a reader that adopts it opens it again.
	StateRemoving = 4
)

// A row: reader-written, one a lane, two lines that different sides poll.
//
//	0    parked, with the queue's state in its upper bits; wake index (doorbell.Row)
//	128  head: released, and so how many were ever read; peeked: handed out; high-water mark;
//	     how many lanes of other users this row has had before, with CrossUser; which writers'
//	     deaths were reported: event queue, generation, generation that was being reported
const (
	RowBytes    = 256
	RowOffIndex = 128
)

// What stands beside doorbell.Parked in a row word, to send a writer down its slow path.
const (
	RowClosed   = 1 << 1
	RowOverrun  = 1 << 2
	RowPoisoned = 1 << 3
	RowLeft     = 1 << 4 // a reader of another user left the queue to a successor
)

// The lane's page: writer-written.
//
//	0    tail; sol: index after the last solicited entry; err: after the last error entry; both
//	     stored before the tail that publishes the entry
//	128  counters: publishes, wakes, refused posts
//	256  order of publishes; index + 1 at which the lane overran, 0 if it did not; again: index
//	     below which a former reader, of another user, may have handed entries out
//	384  who wrote what: the last four {generation, first index}
//	512  rung: with CrossUser the bell of this lane, which its reader sleeps on
const (
	LaneBytes  = 4096
	LaneEpochs = 4
	SlotBytes  = 64
	ErrorBytes = 64
	// A detail record begins with a header; what follows is data, this much in the smallest one.
	ErrorDataBytes    = 40
	DetailHeaderBytes = ErrorBytes - ErrorDataBytes
	OrderSeqCst       = 0
	OrderRelease      = 1
	LayoutVersion     = 1 // in every section's layout hash, but for
	SlotsVersion      = 2 // that of a completion queue's slots: a source is an address + 1
)

// UuidWords returns a uuid as two words of shared memory, UuidOf makes one of them.
func UuidWords(u shm.UUID) (high, low uint64) {
	for i := range 8 {
		high = high<<8 | uint64(u[i])
		low = low<<8 | uint64(u[8+i])
	}
	return high, low
}

// UuidOf returns the uuid that two words are.
func UuidOf(high, low uint64) (u shm.UUID) {
	for i := range 8 {
		u[i] = byte(high >> (56 - 8*i))
		u[8+i] = byte(low >> (56 - 8*i))
	}
	return u
}

// LaneSeals are those of all objects that are passed from process to process.
const LaneSeals = shm.SealShrink | shm.SealGrow | shm.SealSeal
