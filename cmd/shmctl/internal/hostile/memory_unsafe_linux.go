package hostile

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wordsAt lays atomic words over a mapping of this process that /proc/self/maps told of.
func wordsAt(address, length uintptr) []atomic.Uint64 {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return unsafe.Slice((*atomic.Uint64)(p), length/8)
}

// overlay lays as many T over words as these hold.
func overlay[T any](words []atomic.Uint64) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(words))),
		8*uintptr(len(words))/unsafe.Sizeof(zero))
}

// after returns the word behind another one.
func after(word *atomic.Uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Add(unsafe.Pointer(word), 8))
}

// wake wakes whoever sleeps on the lower half of a word.
func wake(word *atomic.Uint64) {
	const futexWake, everybody = 1, 1 << 30
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, everybody,
		0, 0, 0)
}
