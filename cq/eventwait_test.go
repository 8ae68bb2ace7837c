package cq_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestEventBusy: what is bound to a queue keeps it open.
func TestEventBusy(t *testing.T) {
	for _, handler := range []func(*cq.Event, error){nil, func(*cq.Event, error) {}} {
		t.Run(fmt.Sprint("handler=", handler != nil), func(t *testing.T) {
			_, e := createEvents(t, cq.EventOptions{Write: true, Handler: handler})
			must(t, cq.BindEvents(e))
			for what, end := range map[string]func() error{"close": e.Close, "detach": e.Detach} {
				wantErr(t, what, end(), cq.ErrBusy, syscall.EBUSY)
			}
			writeEvents(t, e, 0, 1) // it lives
			if handler == nil {
				if got := drainEvents(t, e); len(got) != 1 {
					t.Error(got)
				}
			}
			cq.UnbindEvents(e)
		})
	}
}
