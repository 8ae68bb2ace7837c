package wake

import "unsafe"

// words8 returns n zeroed bytes of the heap that are aligned to 8.
func words8(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}
