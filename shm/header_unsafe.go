package shm

import (
	"sync/atomic"
	"unsafe"
)

// word overlays an atomic word on eight bytes of a mapped page. off must be a multiple of eight
// below len(page); mappings begin at a page, so the word is aligned.
func word(page []byte, off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&page[off : off+8 : off+8][0]))
}
