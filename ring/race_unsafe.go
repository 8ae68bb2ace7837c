//go:build race

package ring

import (
	"runtime"
	"sync"
	"unsafe"
)

// raceEdge gives the race detector the happens-before edges that atomics on memory outside the Go
// heap do not give. Producer and consumer of one ring in one process must meet on one heap address,
// so the addresses are kept by the ring's tail word.
type raceEdge struct{ full, free *uint64 }

var raceEdges sync.Map // *Index -> *[2]uint64

func (e *raceEdge) init(tail *Index) {
	v, _ := raceEdges.LoadOrStore(tail, new([2]uint64))
	pair := v.(*[2]uint64)
	e.full, e.free = &pair[0], &pair[1]
}

func (e *raceEdge) releaseFull() { runtime.RaceReleaseMerge(unsafe.Pointer(e.full)) }
func (e *raceEdge) acquireFull() { runtime.RaceAcquire(unsafe.Pointer(e.full)) }
func (e *raceEdge) releaseFree() { runtime.RaceReleaseMerge(unsafe.Pointer(e.free)) }
func (e *raceEdge) acquireFree() { runtime.RaceAcquire(unsafe.Pointer(e.free)) }
