//go:build !linux

package doorbell

import (
	"sync/atomic"
	"time"
)

// Elsewhere there is no futex that two processes share: waits poll, so that the logic can be
// tested; shm refuses to create objects there.
const pollEvery = time.Millisecond

func wakeAll(*atomic.Uint32) {}

func wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	for word.Load() == old && (deadlineNs == 0 || Now() < deadlineNs) {
		time.Sleep(pollEvery)
	}
}

var started = time.Now()

// Now returns a monotonic clock in nanoseconds.
func Now() int64 { return int64(time.Since(started)) }
