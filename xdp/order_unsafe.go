//go:build amd64 && !race

package xdp

import (
	"sync/atomic"
	"unsafe"
)

// storeRelease is a MOV, as in package ring, whose reasons hold here: everything before it in the
// program is visible to the kernel when it loads v with acquire order. sync/atomic would exchange,
// four times a packet where packets come one by one.
//
// It does not order later loads; the one that would need it is that of the flag by which the kernel
// asks to be woken, which [producer.wantsWakeup] takes care of.
func storeRelease(p *atomic.Uint32, v uint32) { *(*uint32)(unsafe.Pointer(p)) = v }
