package endpoint

import (
	"sync"

	"github.com/shmring/shmring/doorbell"
)

// waker ends the sleep of Run from another goroutine. The descriptor is -1 while nobody runs.
type waker struct {
	mu sync.Mutex
	fd int
}

// Wake ends the sleep of Run, which then looks at everything. It may be called from anywhere.
func (e *Endpoint) Wake() {
	w := &e.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		_ = doorbell.WriteEvent(w.fd) // fails only if it is set many times already
	}
}

// set changes the descriptor; the old one may be closed then.
func (w *waker) set(fd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fd = fd
}

// Work is what the goroutine of RunWith has to do beside driving the endpoint, as package port does
// commands. Its methods are called by that goroutine, without the endpoint's lock.
type Work interface {
	// Round does what can be done without waiting, and returns how much that was. now is
	// CLOCK_MONOTONIC in nanoseconds.
	Round(now int64) (work int, err error)
	// Idle is called before a sleep. It returns a descriptor that is readable once there is
	// something to do, or -1 if none tells: then the sleep is short. ready says that there is
	// something to do already.
	Idle() (fd int, ready bool, err error)
}
