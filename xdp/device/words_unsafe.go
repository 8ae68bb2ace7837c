package device

import (
	"sync/atomic"
	"unsafe"
)

// overlay lays 64-bit words over memory that is mapped, and so aligned to a page.
func overlay(mem []byte) []atomic.Uint64 {
	if len(mem) < 8 {
		return nil
	}
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/8)
}
