// Package drive is the loop of the goroutine that drives a device, for packages endpoint and
// device: it works while there is work, looks for a while when there is none, and sleeps then.
package drive

import (
	"sync"

	"github.com/shmring/shmring/internal/eventfd"
)

// CheckEveryNs is how often a device is to be asked whether it is still there: no poll ever tells
// that an interface is gone, and one that sends nothing does not notice either.
const CheckEveryNs = 100e6

// Device is what a loop drives. Its methods are called by the goroutine of Run.
type Device interface {
	// Round does what can be done without waiting, and returns how much that was. An error ends
	// the loop. now is CLOCK_MONOTONIC in nanoseconds.
	Round(now int64) (work int, err error)
	// Rest says what ends a sleep. It is called after a round that found nothing to do.
	Rest(now int64, s *Sleep)
}

// Loop is one goroutine's, but for Wake. The zero value is ready for Run.
type Loop struct {
	sleep Sleep
	mu    sync.Mutex // guards fd
	awake bool       // fd is open
	fd    int        // an eventfd, which ends a sleep
}

// Wake ends the sleep of a Run that is under way, which then does a round. It may be called from
// anywhere. A Run that begins later begins with a round.
func (l *Loop) Wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.awake {
		_ = eventfd.Write(l.fd) // fails only if it is set many times already
	}
}
