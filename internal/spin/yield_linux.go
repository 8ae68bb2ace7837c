package spin

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Every look of this number lets other goroutines run, and not each one: a goroutine that is locked
// to its thread waits there for as long as it takes to wake another thread.
const goroutineEvery = 64

// Yield gives the processor to other threads of the machine, those of other processes too. look is
// the number of the caller's look. Now and then it lets other goroutines run.
func Yield(look uint) {
	if look%goroutineEvery == 0 {
		runtime.Gosched()
		return
	}
	_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
