//go:build !race

package cq

import (
	"sync/atomic"
	"unsafe"
)

func countLoad(p *atomic.Uint64) uint64     { return *(*uint64)(unsafe.Pointer(p)) }
func countStore(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
