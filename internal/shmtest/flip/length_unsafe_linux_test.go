package flip

import "unsafe"

// length loads a word that a peer can change, in one access, also where races are looked for.
//
//go:noinline
func length(mem []byte) uint64 { return *(*uint64)(unsafe.Pointer(unsafe.SliceData(mem))) }
