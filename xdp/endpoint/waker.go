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
