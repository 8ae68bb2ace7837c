// Package spin is what a goroutine does that looks for something before it sleeps: the clock, the
// pause between two looks, and for how long.
package spin

import (
	"runtime"
	"time"
)

// Default is how long a blocked reader looks before it sleeps, unless told otherwise. A wake
// across CPUs costs tens of microseconds, most of it the halted CPU's; spinning for half of that
// catches what comes soon and wastes no more than a fraction of a wake when nothing does.
const Default = 20 * time.Microsecond

// yields is how often a reader gives its P away between spinning and sleeping.
const yields = 2

// Budget resolves an option: 0 is the default, negative is none, and with one CPU it is always
// none, since there whoever spins keeps the producer from running.
func Budget(option time.Duration) time.Duration {
	switch {
	case option < 0 || runtime.NumCPU() == 1 || runtime.GOMAXPROCS(0) == 1:
		return 0
	case option == 0:
		return Default
	}
	return option
}

// Until calls ready until it reports true or the budget, then a few yields, is spent. ready must
// not block.
func Until(budget time.Duration, ready func() bool) bool {
	if budget <= 0 {
		return ready()
	}
	end := Now() + int64(budget)
	for {
		for range 32 { // the clock costs as much as some looks
			if ready() {
				return true
			}
			Pause(4)
		}
		if Now() >= end {
			break
		}
	}
	for range yields {
		runtime.Gosched()
		if ready() {
			return true
		}
	}
	return false
}

// Pause tells the processor that the caller spins: n PAUSE instructions on amd64, n ISBs on arm64,
// nothing elsewhere.
func Pause(n uint32) { pause(n) }
