package kind

import (
	"sync/atomic"
	"unsafe"
)

// LoadLine copies a cache line that its writer may be changing, word by word: atomic loads stay in
// order with those around them on every processor, and none is done twice.
func LoadLine[T any](p *T) (line T) {
	from, to := (*[8]uint64)(unsafe.Pointer(p)), (*[8]uint64)(unsafe.Pointer(&line))
	for i := range from {
		to[i] = atomic.LoadUint64(&from[i])
	}
	return line
}
