package futex

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/internal/spin"
)

// Who sleeps and wakes for long without the scheduler goes through it before the next sleep, and
// not before each.
func TestTurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// yields reports whether another goroutine runs while one that had its last turn then takes one.
	yields := func(agoNs int64) bool {
		var ran atomic.Bool
		last := turns.Get().(*int64)
		*last = spin.Now() - agoNs
		turns.Put(last)
		done := make(chan struct{})
		go func() { ran.Store(true); close(done) }()
		takeTurn()
		yielded := ran.Load()
		<-done
		return yielded
	}
	// Each 61st time the scheduler looks first where who yields is put, and the same runs on.
	if due := yields(2 * turnNs); !due && !yields(2*turnNs) {
		t.Error("a turn that is due is not taken")
	}
	// The pool may lose an item, and the runtime may preempt: both cost a turn now and then.
	for range 1000 {
		if !yields(0) {
			return
		}
	}
	t.Error("each sleep takes a turn")
}
