package doorbell

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/spin"
)

// TestAlarms: rings that bring the lane no further lead to a pause, also if its tail swings; those
// that do lead to none, however far they bring it.
func TestAlarms(t *testing.T) {
	for name, tt := range map[string]struct {
		tail  func(i uint64) uint64
		quiet bool
	}{
		"stands": {func(uint64) uint64 { return 5 }, true},
		"swings": {func(i uint64) uint64 { return 5 + i%2 }, true},
		"wide":   {func(i uint64) uint64 { return 5 + i%2<<40 }, true},
		"grows":  {func(i uint64) uint64 { return 5 + i }, false},
		"leaps":  {func(i uint64) uint64 { return 5 + i*1000 }, false},
		"wraps":  {func(i uint64) uint64 { return 1<<64 - 5 + i }, false},
	} {
		a := alarms{tail: tt.tail(0)}
		for i := range uint64(3 * falseAlarms) {
			a.judge(tt.tail(i + 1))
		}
		if got := a.quietNs != 0; got != tt.quiet {
			t.Errorf("%s: a pause %v", name, got)
		}
	}
}

// TestDozesOnLanes: a reader that listens to a lane of another user does not sleep over its rings.
func TestDozesOnLanes(t *testing.T) {
	if err := futex.HasWaitMany(); err != nil {
		t.Skip(err)
	}
	q := heapQueue(t, 1)
	r := newReader(q, readerOptions{})
	var rung atomic.Uint32
	r.listen(0, &rung)
	rung.Add(1)
	deadline := spin.Now() + int64(time.Minute)
	r.doze(r.hints.epoch.Load(), deadline)
	if spin.Now() >= deadline {
		t.Error("slept until the deadline")
	}
}
