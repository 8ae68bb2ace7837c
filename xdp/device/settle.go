package device

import (
	"context"
	"time"
)

// Settle waits until the device process is done with every send that was accepted, or is gone. A
// port that is dropped before, or an endpoint that is closed, takes with it what it had sent just
// now. The context's cause is returned when that ends first; a send waits for up to three seconds
// for the hardware address of its destination.
func (e *Endpoint) Settle(ctx context.Context) error {
	const first, last = 20 * time.Microsecond, time.Millisecond
	for pause := first; e.sending(); pause = min(2*pause, last) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// sending reports whether a send is under way.
func (e *Endpoint) sending() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sess == nil {
		return false
	}
	for i := range e.slots {
		// Pairs with the server's store, before which it is done with the payload.
		if e.slots[i].busy && e.sess.page.done[i].Load() == e.slots[i].before {
			return true
		}
	}
	return false
}
