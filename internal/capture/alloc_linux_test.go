//go:build linux && !race

package capture_test

import (
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
)

// TestTapAllocatesNothing: a capture costs copies, and no garbage.
func TestTapAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	s := r.start(t, capture.Options{})
	payload := make([]byte, 64)
	es := make([]cq.Entry, 64)
	frame := r.arrive(t, payload)
	n := testing.AllocsPerRun(200, func() {
		r.kernel.Deliver(frame)
		_, _ = r.Progress()
		if k, _ := cq.Read(r.q, es); k == 1 {
			_ = r.Release(es[0])
		}
		_, _ = s.Read(64, func(*capture.Packet) error { return nil })
	})
	if n > 0 {
		t.Errorf("%v allocations a packet", n)
	}
}
