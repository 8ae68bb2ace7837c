package futex

import (
	"runtime"
	"sync"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// turnNs is half of the time after which the Go scheduler takes a processor from a goroutine that
// it has not scheduled anew meanwhile.
const turnNs = int64(5 * time.Millisecond)

// turns holds when the sleepers on one of the scheduler's processors went through it last. The
// runtime keeps an item for each of these, and what it throws away costs an early turn.
var turns = sync.Pool{New: func() any { return new(int64) }}

// takeTurn is for a goroutine that is about to sleep. For the scheduler a goroutine that sleeps and
// wakes in system calls runs all the time: after 10 ms its monitor takes the processor away from
// each sleep, every 20 µs, on a thread of its own that keeps a processor of the machine from
// others. One that has gone through the scheduler before that is left in peace.
func takeTurn() {
	last := turns.Get().(*int64)
	now := spin.Now()
	due := now-*last >= turnNs
	if due {
		*last = now
	}
	turns.Put(last)
	if due {
		runtime.Gosched()
	}
}
