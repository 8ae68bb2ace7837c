//go:build !race

package cq

import (
	"sync/atomic"
	"unsafe"
)

func countLoad(p *atomic.Uint64) uint64     { return *(*uint64)(unsafe.Pointer(p)) }
func countStore(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// counterEdge costs nothing without the race detector; see counter_race_unsafe.go.
type counterEdge struct{}

func (counterEdge) init(uint64) (careful uint32) { return 0 }
func (counterEdge) release()                     {}
func (counterEdge) acquire()                     {}
