package futex

import (
	"math"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
)

const (
	futexWaitBitset = 9
	futexWake       = 1
	futexMatchAny   = 0xffffffff
	futexSize32     = 2 // of struct futex_waitv: 32 bits, and not private
)

// WakeAll wakes every sleeper on the word, in any process. FUTEX_PRIVATE_FLAG must not be set: a
// private futex is keyed by address space. The call never blocks, so it keeps its P.
func WakeAll(word *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake,
		math.MaxInt32, 0, 0, 0)
}

// waitAlone sleeps while the word holds old, until a wake, a signal to the thread or the absolute
// monotonic deadline (0: none). It goes through the scheduler: a raw system call would pin a P and
// hang the garbage collector.
func waitAlone(word *atomic.Uint32, old uint32, deadlineNs int64) {
	var ts *unix.Timespec
	if deadlineNs > 0 {
		t := unix.NsecToTimespec(deadlineNs)
		ts = &t
	}
	takeTurn()
	// EAGAIN, EINTR and ETIMEDOUT all mean: look again; the caller's loop does.
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitBitset,
		uintptr(old), uintptr(unsafe.Pointer(ts)), 0, futexMatchAny)
}

// lookEvery is how long who sleeps on several words does without looking at them, where the kernel
// refuses such a sleep. Nobody begins there, but a filter of system calls may come later.
const lookEvery = time.Millisecond

// Watched is a word and the value that it had (struct futex_waitv).
type Watched struct {
	Value uint64
	Word  *atomic.Uint32
	flags uint64 // of which the upper half is reserved
}

// WaitMany sleeps while every word holds its value, until a wake, a signal to the thread or the
// absolute monotonic deadline (0: none). Its error is EAGAIN if a word holds another value, EFAULT
// if one is not mapped any more, and ENOSYS, or EPERM of a filter of system calls, where there is
// no such call: then it has slept on the first word alone, for a moment.
func WaitMany(words []Watched, deadlineNs int64) error {
	for i := range words {
		words[i].flags = futexSize32
	}
	var ts *unix.Timespec
	if deadlineNs > 0 {
		t := unix.NsecToTimespec(deadlineNs)
		ts = &t
	}
	takeTurn()
	_, _, errno := syscall.Syscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(&words[0])),
		uintptr(len(words)), 0, uintptr(unsafe.Pointer(ts)), unix.CLOCK_MONOTONIC, 0)
	switch errno {
	case 0:
		return nil
	case unix.ENOSYS, unix.EPERM:
		if soon := spin.Now() + int64(lookEvery); deadlineNs == 0 || soon < deadlineNs {
			deadlineNs = soon
		}
		waitAlone(words[0].Word, uint32(words[0].Value), deadlineNs)
	}
	return errno
}
