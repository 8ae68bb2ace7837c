package hostile

import (
	"sync/atomic"
	"unsafe"
)

// memoryAt is a mapping of this process that /proc/self/maps told of.
func memoryAt(address, length uintptr) []byte {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return unsafe.Slice((*byte)(p), length)
}

// after returns the word behind another one.
func after(word *atomic.Uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(word), 8))
}
