package doorbell

import (
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWaitBitset = 9
	futexWake       = 1
	futexMatchAny   = 0xffffffff
)

// wakeAll wakes every sleeper on the word, in any process. FUTEX_PRIVATE_FLAG must not be set: a
// private futex is keyed by address space. The call never blocks, so it keeps its P.
func wakeAll(word *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake,
		math.MaxInt32, 0, 0, 0)
}

// wait sleeps while the word holds old, until a wake, a signal to the thread or the absolute
// monotonic deadline (0: none). It goes through the scheduler: a raw system call would pin a P and
// hang the garbage collector.
func wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	var ts *unix.Timespec
	if deadlineNs > 0 {
		t := unix.NsecToTimespec(deadlineNs)
		ts = &t
	}
	// EAGAIN, EINTR and ETIMEDOUT all mean: look again; the caller's loop does.
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitBitset,
		uintptr(old), uintptr(unsafe.Pointer(ts)), 0, futexMatchAny)
}
