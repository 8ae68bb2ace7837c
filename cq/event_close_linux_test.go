package cq_test

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestCloseThatFailsLosesNoReport closes an event queue all the time while a registration reports
// to it, which is refused and must not turn the report away.
func TestCloseThatFailsLosesNoReport(t *testing.T) {
	shmtest.Long(t)
	_, e := createEvents(t, cq.EventOptions{Size: 16})
	obj, at := payload(t, nil)
	for range 300 {
		r, err := cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})
		must(t, err)
		var read atomic.Bool
		closing := make(chan struct{})
		go func() {
			defer close(closing)
			for !read.Load() {
				wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}()
		_, err = eqSread(e, &cq.Event{}, time.Minute)
		read.Store(true)
		<-closing
		must(t, err)
		must(t, r.Close())
	}
}
