//go:build amd64 && !race

package ring

import "unsafe"

// storeRelease is a MOV. The processor does not reorder stores with earlier loads and stores on
// amd64, so what is left is the compiler: gc threads every load, store, call and atomic operation
// of a function on one state of memory, so a store stays behind all that came before it. It may
// only drop one that is overwritten before anything was loaded. Assembly would say the same with
// two calls around it, since it is not inlined, and that is half the price of an empty read.
//
// A word that is stored in this way is loaded by sync/atomic; 64 aligned bits do not tear.
func storeRelease(p *Index, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }
