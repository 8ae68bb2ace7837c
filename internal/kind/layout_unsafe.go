package kind

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/internal/wake"
)

// RowWords is a row as it lies in the reader object.
type RowWords struct {
	Bell      wake.Row
	Head      atomic.Uint64 // first entry not released
	Peeked    atomic.Uint64 // first entry not handed out
	HighWater atomic.Uint64 // most entries that were ever waiting
	Retired   atomic.Uint64 // lanes of other users that this row had before
	ToldTo    atomic.Uint64 // event queue that deaths were reported to
	Told      atomic.Uint64 // generation up to which they were
	Telling   atomic.Uint64 // and the one that may have been when the reader died
	_         [72]byte
}

// QueueWords is the queue's page.
type QueueWords struct {
	Arm     wake.Arm
	State   atomic.Uint64
	_       [120]byte
	Face    atomic.Uint64
	FaceGen atomic.Uint64
	// NoBarrier is the generation of the reader that was refused membarrier(2) after it had opened
	// the queue; only tools read it.
	NoBarrier atomic.Uint64
	_         [104]byte
	Bell      BellWords
}

// LaneWords is a lane's page.
type LaneWords struct {
	Tail      atomic.Uint64
	Sol       atomic.Uint64
	Err       atomic.Uint64
	_         [104]byte
	Publishes atomic.Uint64
	Wakes     atomic.Uint64
	Refused   atomic.Uint64
	_         [104]byte
	Order     atomic.Uint64
	Overrun   atomic.Uint64
	Again     atomic.Uint64
	_         [104]byte
	Epochs    [LaneEpochs]EpochWords
	_         [64]byte
	Rung      atomic.Uint32
}

type EpochWords struct{ Generation, Start atomic.Uint64 }

// BellWords tell a producer which bit of which bell is a queue's, or a counter's. The reader writes
// them before the flag that makes producers ring it.
type BellWords struct {
	High, Low  atomic.Uint64 // uuid of the bell
	Bit        atomic.Uint64
	Fd         atomic.Uint64 // number of its descriptor in the reader's process + 1
	Generation atomic.Uint64 // of the reader, stored last; 0: no bell
}

// Record is the detail of an error entry, at the same index in the parallel array.
type Record struct {
	OverrunBytes uint64
	Err          int32
	ProvErrno    int32
	DataBytes    uint64
	Data         [ErrorDataBytes]byte
}

// Overlay lays a T over the start of mem, which shm has mapped page-aligned. It is nil if there is
// no room for it.
func Overlay[T any](mem []byte) *T {
	var zero T
	if uintptr(len(mem)) < unsafe.Sizeof(zero) {
		return nil
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// Overlays lays as many T over mem as it holds.
func Overlays[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))),
		uintptr(len(mem))/unsafe.Sizeof(zero))
}
