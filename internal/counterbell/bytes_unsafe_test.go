package counterbell

import "unsafe"

func bytesOf(w *Words) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(w)), unsafe.Sizeof(*w))
}
