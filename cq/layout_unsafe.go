package cq

import (
	"sync/atomic"
	"unsafe"

	"github.com/shmring/shmring/doorbell"
)

// rowWords is a row as it lies in the reader object.
type rowWords struct {
	bell      doorbell.Row
	head      atomic.Uint64 // first entry not released
	peeked    atomic.Uint64 // first entry not handed out
	highWater atomic.Uint64 // most entries that were ever waiting
	retired   atomic.Uint64 // lanes of other users that this row had before
	toldTo    atomic.Uint64 // event queue that deaths were reported to
	told      atomic.Uint64 // generation up to which they were
	telling   atomic.Uint64 // and the one that may have been when the reader died
	_         [72]byte
}

// queueWords is the queue's page.
type queueWords struct {
	arm     doorbell.Arm
	state   atomic.Uint64
	_       [120]byte
	face    atomic.Uint64
	faceGen atomic.Uint64
	_       [112]byte
	bell    bellWords
}

// laneWords is a lane's page.
type laneWords struct {
	tail      atomic.Uint64
	sol       atomic.Uint64
	err       atomic.Uint64
	_         [104]byte
	publishes atomic.Uint64
	wakes     atomic.Uint64
	refused   atomic.Uint64
	_         [104]byte
	order     atomic.Uint64
	overrun   atomic.Uint64
	again     atomic.Uint64
	_         [104]byte
	epochs    [laneEpochs]epochWords
	_         [64]byte
	rung      atomic.Uint32
}

type epochWords struct{ generation, start atomic.Uint64 }

// errorRecord is the detail of an error entry, at the same index in the parallel array.
type errorRecord struct {
	overrunBytes uint64
	err          int32
	provErrno    int32
	dataBytes    uint64
	data         [ErrDataMaxBytes]byte
}

// overlay lays a T over the start of mem, which shm has mapped page-aligned. It is nil if there is
// no room for it.
func overlay[T any](mem []byte) *T {
	var zero T
	if uintptr(len(mem)) < unsafe.Sizeof(zero) {
		return nil
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(mem)))
}

// overlays lays as many T over mem as it holds.
func overlays[T any](mem []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))),
		uintptr(len(mem))/unsafe.Sizeof(zero))
}

// plainCount adds to a counter that only this goroutine writes and inspectors read. No order is
// needed, so it costs no XCHG; a 64-bit aligned store does not tear.
func plainCount(p *atomic.Uint64, n uint64) { countStore(p, countLoad(p)+n) }
