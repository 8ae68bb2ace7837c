package torture

import (
	"sync/atomic"
	"unsafe"
)

// wordsOver lays atomic words over memory, which is page-aligned.
func wordsOver(mem []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), len(mem)/8)
}
