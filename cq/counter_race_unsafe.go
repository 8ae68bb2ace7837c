//go:build race

package cq

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// counterEdge gives the race detector the happens-before edges that atomics on memory outside the
// Go heap do not give: what was stored before an add is visible to whoever reads the sum. All
// handles of one counter in this process meet on one heap address.
type counterEdge struct{ at *uint64 }

var counterEdges sync.Map // id -> *uint64

// init also says whether each read has to acquire.
func (e *counterEdge) init(id uint64) (careful uint32) {
	v, _ := counterEdges.LoadOrStore(id, new(uint64))
	e.at = v.(*uint64)
	return 1
}

func (e *counterEdge) release() { runtime.RaceReleaseMerge(unsafe.Pointer(e.at)) }
func (e *counterEdge) acquire() { runtime.RaceAcquire(unsafe.Pointer(e.at)) }

func countLoad(p *atomic.Uint64) uint64     { return p.Load() }
func countStore(p *atomic.Uint64, v uint64) { p.Store(v) }
