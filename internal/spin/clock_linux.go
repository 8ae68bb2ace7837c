package spin

import (
	"time"

	"golang.org/x/sys/unix"
)

// The runtime reads CLOCK_MONOTONIC without a system call, but from a zero of its own. Both run at
// the same rate for ever, so one difference is enough, and a spinning reader may look at the clock
// as often as it likes.
var (
	started = time.Now()
	zeroNs  = zero()
)

// zero returns what CLOCK_MONOTONIC said at started, from the tightest of a few readings.
func zero() (at int64) {
	const readings = 8
	tightest := time.Duration(1<<63 - 1)
	for range readings {
		var ts unix.Timespec
		before := time.Since(started)
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return 0 // a kernel without this clock has no futex either
		}
		after := time.Since(started)
		if after-before < tightest {
			tightest = after - before
			at = ts.Nano() - int64(after)
		}
	}
	return at
}

// Now returns the monotonic clock in nanoseconds, the one that futex deadlines are measured by. It
// makes no system call, and is at most the time of one behind the kernel's.
func Now() int64 { return zeroNs + int64(time.Since(started)) }
